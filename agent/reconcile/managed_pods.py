"""Which pods and containers run here, with their cgroups and what hooks are asked about them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.cgroup import paths
from agent.snapshot.container import PodSandbox, RuntimeView
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, ContainerView, PodView

VM_HANDLER_PREFIX = "kata"  # whose containers have no cgroup of their own on the host


class ManagedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """One container; without a name it is the sandbox, which hooks know by that."""

    id: str
    name: str
    cgroup: str


class ManagedPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that is known by more than its cgroup, and all of it that runs."""

    pod: PodSandbox  # labels and annotations as they are now, where the cluster told them
    cgroup: str
    containers: tuple[ManagedContainer, ...] = ()  # the sandbox first


def managed_pods(snapshot: NodeSnapshot) -> tuple[ManagedPod, ...]:
    """Return the pods whose files may be written, by uid.

    Left out are those that nobody told of, which may ask for anything, and those that have ended.
    """
    runtime = snapshot.runtime.value
    by_uid = {one.uid: one for one in runtime.sandboxes.values() if one.uid and not one.stopped}
    found = (
        _managed_pod(pod, by_uid.get(pod.uid), runtime)
        for pod in snapshot.pods.value
        if pod.cgroup and pod.phase not in ENDED_PHASES
    )
    return tuple(place for place in found if place is not None)


def _managed_pod(
    pod: PodView, sandbox: PodSandbox | None, runtime: RuntimeView
) -> ManagedPod | None:
    if not pod.name and sandbox is None:
        return None
    asked = sandbox or PodSandbox(id="")
    if pod.name:  # the cluster's word: annotations may have been changed since the start
        asked = msgspec.structs.replace(
            asked,
            name=pod.name,
            namespace=pod.namespace,
            labels=pod.labels,
            annotations=pod.annotations,
        )
    asked = msgspec.structs.replace(asked, uid=pod.uid, cgroup_parent=pod.cgroup)
    return ManagedPod(
        pod=asked, cgroup=pod.cgroup, containers=_containers(pod, asked, runtime.containers)
    )


def _containers(
    pod: PodView, sandbox: PodSandbox, told: Mapping[str, object]
) -> tuple[ManagedContainer, ...]:
    running = [one for one in pod.containers if one.cgroup]
    known = {one.id: one.name for one in running if one.name}
    for one in running:
        name = getattr(told.get(one.id), "name", "")
        if name and one.id not in known:
            known[one.id] = name
    first = _sandbox(running, sandbox.id, known)
    places = () if first is None else (ManagedContainer(id=first.id, name="", cgroup=first.cgroup),)
    if sandbox.runtime_handler.startswith(VM_HANDLER_PREFIX):
        return places
    return places + tuple(
        ManagedContainer(id=one.id, name=known[one.id], cgroup=one.cgroup)
        for one in running
        if one.id in known
    )


def _sandbox(
    running: list[ContainerView], sandbox_id: str, known: Mapping[str, str]
) -> ContainerView | None:
    """Return the sandbox: as the runtime told, else the one that is nobody else; never a guess."""
    if sandbox_id:
        return next((one for one in running if one.id == sandbox_id), None)
    if not known:  # nobody has told of a container: any of these may be one
        return None
    by_name = {one.cgroup.rpartition("/")[2]: one for one in running}
    try:
        name = paths.find_sandbox(by_name, known)
    except paths.CgroupPathError:
        return None
    return None if name is None else by_name[name]
