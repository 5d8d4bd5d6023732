"""Which pods and containers run here, with their cgroups and what hooks are asked about them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.cgroup import paths
from agent.model.cluster.pods import ENDED
from agent.model.pod import ContainerView, PodView
from agent.model.runtime.seen import RuntimeView, SandboxSeen
from agent.model.snapshot import NodeSnapshot

VM_HANDLERS = "kata"  # whose containers have no cgroup of their own on the host


class ContainerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One container; without a name it is the sandbox, which hooks know by that."""

    id: str
    name: str
    cgroup: str


class PodPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that is known by more than its cgroup, and all of it that runs."""

    pod: SandboxSeen  # labels and annotations as they are now, where the cluster told them
    cgroup: str
    containers: tuple[ContainerPlace, ...] = ()  # the sandbox first


def places(snapshot: NodeSnapshot) -> tuple[PodPlace, ...]:
    """Return the pods whose files may be written, by uid.

    Left out are those that nobody told of, which may ask for anything, and those that have ended.
    """
    runtime = snapshot.runtime.value
    by_uid = {one.uid: one for one in runtime.sandboxes.values() if one.uid and not one.stopped}
    found = (
        _place(pod, by_uid.get(pod.uid), runtime)
        for pod in snapshot.pods.value
        if pod.cgroup and pod.phase not in ENDED
    )
    return tuple(place for place in found if place is not None)


def _place(pod: PodView, sandbox: SandboxSeen | None, runtime: RuntimeView) -> PodPlace | None:
    if not pod.name and sandbox is None:
        return None
    asked = sandbox or SandboxSeen(id="")
    if pod.name:  # the cluster's word: annotations may have been changed since the start
        asked = msgspec.structs.replace(
            asked,
            name=pod.name,
            namespace=pod.namespace,
            labels=pod.labels,
            annotations=pod.annotations,
        )
    asked = msgspec.structs.replace(asked, uid=pod.uid, cgroup_parent=pod.cgroup)
    return PodPlace(
        pod=asked, cgroup=pod.cgroup, containers=_containers(pod, asked, runtime.containers)
    )


def _containers(
    pod: PodView, sandbox: SandboxSeen, told: Mapping[str, object]
) -> tuple[ContainerPlace, ...]:
    running = [one for one in pod.containers if one.cgroup]
    known = {one.id: one.name for one in running if one.name}
    for one in running:
        name = getattr(told.get(one.id), "name", "")
        if name and one.id not in known:
            known[one.id] = name
    first = _sandbox(running, sandbox.id, known)
    places = () if first is None else (ContainerPlace(id=first.id, name="", cgroup=first.cgroup),)
    if sandbox.runtime_handler.startswith(VM_HANDLERS):
        return places
    return places + tuple(
        ContainerPlace(id=one.id, name=known[one.id], cgroup=one.cgroup)
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
        name = paths.sandbox(by_name, known)
    except paths.BadCgroupPath:
        return None
    return None if name is None else by_name[name]
