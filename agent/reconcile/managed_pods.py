"""The pods and containers that run here, with their cgroups and the data that hooks get."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.cgroup import paths
from agent.snapshot.container import PodSandbox, RuntimeView
from agent.snapshot.node import IdentityMemo, ItemMemo, NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, ContainerView, PodView

VM_HANDLER_PREFIX = "kata"  # containers of such a handler have no cgroup on the host


class ManagedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """One container. An empty name means the sandbox, for hooks too."""

    id: str
    name: str
    cgroup: str


class ManagedPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that has a name or a sandbox, with its running containers."""

    pod: PodSandbox  # with the cluster's current labels and annotations, if it has reported them
    cgroup: str
    containers: tuple[ManagedContainer, ...] = ()  # the sandbox first
    is_listed: bool = False  # by the cluster or the kubelet: hooks may find its requests


class ManagedPods:
    """The pods whose files may be written. A pod that did not change stays the same object."""

    def __init__(self) -> None:
        self._pod = IdentityMemo[ItemMemo[PodView, ManagedPod | None]]()

    def list(self, snapshot: NodeSnapshot) -> tuple[ManagedPod, ...]:
        """Return the pods by uid.

        Pods that neither the cluster nor the runtime has reported are left out, because their
        requests are unknown. Pods that have ended are left out too.
        """
        runtime = snapshot.runtime.value
        inputs = (runtime.sandboxes, runtime.containers)
        memo = self._pod.get(inputs, lambda: ItemMemo(_pod_manager(runtime)))
        candidates = memo.map(
            pod for pod in snapshot.pods.value if pod.cgroup and pod.phase not in ENDED_PHASES
        )
        return tuple(managed_pod for managed_pod in candidates if managed_pod is not None)


def _pod_manager(runtime: RuntimeView) -> Callable[[PodView], ManagedPod | None]:
    """Return the function from a pod to its managed pod, by what the runtime reports."""
    by_uid = {
        sandbox.uid: sandbox
        for sandbox in runtime.sandboxes.values()
        if sandbox.uid and not sandbox.stopped
    }
    return lambda pod: _managed_pod(pod, by_uid.get(pod.uid), runtime)


def _managed_pod(
    pod: PodView, sandbox: PodSandbox | None, runtime: RuntimeView
) -> ManagedPod | None:
    if not pod.name and sandbox is None:
        return None
    pod_sandbox = sandbox or PodSandbox(id="")
    if pod.name:  # annotations may have changed since the sandbox was created
        pod_sandbox = msgspec.structs.replace(
            pod_sandbox,
            name=pod.name,
            namespace=pod.namespace,
            labels=pod.labels,
            annotations=pod.annotations,
        )
    pod_sandbox = msgspec.structs.replace(pod_sandbox, uid=pod.uid, cgroup_parent=pod.cgroup)
    return ManagedPod(
        pod=pod_sandbox,
        cgroup=pod.cgroup,
        containers=_containers(pod, pod_sandbox, runtime.containers),
        is_listed=bool(pod.name),
    )


def _containers(
    pod: PodView, sandbox: PodSandbox, runtime_containers: Mapping[str, object]
) -> tuple[ManagedContainer, ...]:
    running = [container for container in pod.containers if container.cgroup]
    names = {one.id: one.name for one in running if one.name}
    for one in running:
        name = getattr(runtime_containers.get(one.id), "name", "")
        if name and one.id not in names:
            names[one.id] = name
    pause = _sandbox(running, sandbox.id, names)
    sandboxes = (
        () if pause is None else (ManagedContainer(id=pause.id, name="", cgroup=pause.cgroup),)
    )
    if sandbox.runtime_handler.startswith(VM_HANDLER_PREFIX):
        return sandboxes
    return sandboxes + tuple(
        ManagedContainer(id=one.id, name=names[one.id], cgroup=one.cgroup)
        for one in running
        if one.id in names
    )


def _sandbox(
    running: list[ContainerView], sandbox_id: str, names: Mapping[str, str]
) -> ContainerView | None:
    """Return the sandbox that the runtime reports, else the only group that is no app container.

    Without enough data for either the answer is None.
    """
    if sandbox_id:
        return next((one for one in running if one.id == sandbox_id), None)
    if not names:  # no container is identified: each of these may be an app container
        return None
    by_name = {one.cgroup.rpartition("/")[2]: one for one in running}
    try:
        name = paths.find_sandbox(by_name, names)
    except paths.CgroupPathError:
        return None
    return None if name is None else by_name[name]
