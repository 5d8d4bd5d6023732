"""Pods as cgroups show them, joined with pods as the kubelet lists them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from agent.model.pod import ContainerView, PodView

# static pods: the kubelet's cgroup is named by the hash of the file, the API's pod is a mirror
STATIC_UID_KEYS = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash")


def cgroup_uid(pod: PodView) -> str:
    """Return the uid that the pod's cgroup is named by."""
    found = (value for key, value in pod.annotations if key in STATIC_UID_KEYS)
    return next(filter(None, found), pod.uid)


def join(seen: Iterable[PodView], listed: Iterable[PodView]) -> tuple[PodView, ...]:
    """Return every pod that is seen or listed, by uid. A seen pod keeps its cgroup's uid and QoS.

    Containers of both are joined by id: the list knows names, the cgroups know what runs.
    """
    by_uid = {cgroup_uid(pod): pod for pod in listed}
    pods = []
    for pod in seen:
        known = by_uid.pop(pod.uid, None)
        if known is None:
            pods.append(pod)
            continue
        containers = _containers(pod.containers, known.containers)
        pods.append(
            dataclasses.replace(
                known, uid=pod.uid, qos=pod.qos, cgroup=pod.cgroup, containers=containers
            )
        )
    return tuple(sorted([*pods, *by_uid.values()], key=lambda pod: (pod.uid, pod.cgroup)))


def _containers(
    seen: Iterable[ContainerView], listed: Iterable[ContainerView]
) -> tuple[ContainerView, ...]:
    by_id = {container.id: container for container in listed}
    for container in seen:
        known = by_id.get(container.id, container)
        by_id[container.id] = dataclasses.replace(known, cgroup=container.cgroup)
    return tuple(sorted(by_id.values(), key=lambda container: container.id))
