"""Who is who: cgroups and the kubelet's pods, devices' processes and their containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from agent.cgroup.layout import parse_owner
from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.model.inventory import DeviceSample
from agent.model.pod import ContainerView, PodView, static_uid

MAX_PROCESSES = 4096  # looked up in one cycle
MAX_CGROUP_BYTES = 16 * 1024

Owner = tuple[str, str]  # pod uid, container id


def join(seen: Iterable[PodView], listed: Iterable[PodView]) -> tuple[PodView, ...]:
    """Return every pod that is seen or listed, by uid. A seen pod keeps its cgroup's uid and QoS.

    Containers of both are joined by id: the list knows names, the cgroups know what runs. Anybody
    may claim to be a static pod's mirror: of two that claim the same one none is believed.
    """
    by_uid = {pod.uid: pod for pod in listed}
    claims = [(uid, pod.uid) for pod in by_uid.values() if (uid := static_uid(pod)) is not None]
    times = Counter(uid for uid, _ in claims)
    by_hash = {uid: own for uid, own in claims if times[uid] == 1}
    pods = []
    for pod in seen:
        known = by_uid.pop(pod.uid, None) or by_uid.pop(by_hash.get(pod.uid, ""), None)
        if known is None:
            pods.append(pod)
            continue
        containers = _containers(pod.containers, known.containers)
        pods.append(
            msgspec.structs.replace(
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
        by_id[container.id] = msgspec.structs.replace(known, cgroup=container.cgroup)
    return tuple(sorted(by_id.values(), key=lambda container: container.id))


def parse_process_cgroup(data: bytes) -> Owner | None:
    """Return the owner that `/proc/<pid>/cgroup` names in any hierarchy; `None`: no pod's."""
    for line in data.decode("utf-8", "replace").splitlines():
        owner = parse_owner(line.rpartition(":")[2])
        if owner is not None:
            return owner
    return None


def owners(host: HostFiles, samples: Iterable[DeviceSample]) -> dict[int, Owner]:
    """Return the owners of all processes on devices, by pid on the host.

    Asks each process for its cgroup: devices have few processes where a node has hundreds of
    containers, and one such read costs no more than one `cgroup.procs`.
    """
    pids = {p.pid for sample in samples for p in sample.processes or ()}
    found: dict[int, Owner] = {}
    for pid in sorted(pids)[:MAX_PROCESSES]:
        try:
            owner = parse_process_cgroup(host.read(f"/proc/{pid}/cgroup", MAX_CGROUP_BYTES))
        except HostFileError:  # it has ended
            continue
        if owner is not None:
            found[pid] = owner
    return found
