"""Chooses the containers to verify: soon after their start, then once a minute. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from msgspec.structs import replace

from agent.allocation.index import allocation_annotation
from agent.snapshot.allocation import VerificationStatus
from agent.snapshot.container import ContainerState, PodSandbox, sandbox_from_pod
from agent.snapshot.node import ItemMemo, NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, ContainerView, PodView
from agent.verification.inspector import ContainerLocation
from agent.wire_formats.device_allocated import ANNOTATION

MAX_CHECKS_PER_RUN = (
    8  # 2 ms each; after a start of the node the checks are spread over some seconds
)
FIRST_S, LONGEST_S = 1.0, 300.0  # between checks of a container with an unknown verdict
RECHECK_S: Mapping[VerificationStatus, float] = {
    VerificationStatus.VERIFIED: 50.0,  # less than a minute, also when several are due at once
    VerificationStatus.MISSING: 50.0,  # may be solved by people or by the reconcile cycle
    VerificationStatus.EXCESS: 50.0,
}
UNALLOCATED_S = 300.0  # between checks of a container without devices
LIVE_STATES = frozenset((ContainerState.RUNNING, ContainerState.CREATED, ContainerState.UNKNOWN))
SANDBOX_NAME = "POD"  # old runtimes' name for the sandbox's own container


IsExempt = Callable[[PodSandbox], bool]


class VerificationTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One running container."""

    location: ContainerLocation
    pod: PodSandbox  # as the runtime reports it, else from the kubelet's list
    name: str
    injection_path: str  # nri, kubelet; empty: not injected by this agent
    is_allocated: bool = True  # its pod has an allocation
    is_assigned: bool = False  # the kubelet has assigned devices of this agent's plug-in to its pod
    is_late: bool = False  # its pod's allocation was written after the sandbox was created

    @property
    def id(self) -> str:
        """Return the container's id."""
        return self.location.container_id

    @property
    def has_devices(self) -> bool:
        """Return whether the container must have devices."""
        return self.is_allocated or self.is_assigned

    @property
    def is_holder(self) -> bool:
        """Return whether the container's pod has devices, also those that came too late for it."""
        return self.has_devices or self.is_late


def exempt_none(_: PodSandbox) -> bool:
    """Exempt no pod."""
    return False


def targets(
    snapshot: NodeSnapshot,
    exempt: IsExempt = exempt_none,
    listed: ItemMemo[PodView, tuple[VerificationTarget, ...]] | None = None,
) -> tuple[VerificationTarget, ...]:
    """Return the containers to verify, each once; pods without a device may be exempt.

    Pods without a device are verified only while another pod has an allocation. `listed` is a memo
    of `listed_targets`, which saves time.
    """
    allocations = snapshot.allocations.value.pods
    allocated = {uid for uid, pod in allocations.items() if not pod.refusal and pod.grant.devices}
    late, assigned = _late_pods(snapshot, allocated), _assigned_pods(snapshot)
    if not allocated and not late and not assigned:
        return ()
    # the second list has the running containers with their cgroups
    pods = {pod.uid: pod for pod in (*snapshot.cluster.pods, *snapshot.pods.value)}
    groups = {pod.uid: pod.cgroup for pod in snapshot.pods.value}
    listed = listed or ItemMemo(listed_targets)
    by_id = {one.id: one for one in chain.from_iterable(listed.map(pods.values()))}
    by_id |= {
        one.id: one for one in _runtime_targets(snapshot, groups, pods)
    }  # the runtime's data are more complete
    return tuple(_select(by_id.values(), allocated, assigned, late, exempt))


def _select(
    candidates: Iterable[VerificationTarget],
    allocated: Collection[str],
    assigned: Collection[str],
    late: Collection[str],
    exempt: IsExempt,
) -> Iterator[VerificationTarget]:
    for target in candidates:
        uid = target.pod.uid
        if uid in allocated:
            yield target
        elif uid in late:
            yield replace(target, is_allocated=False, is_late=True)
        elif uid in assigned:
            yield replace(target, is_allocated=False, is_assigned=True, injection_path="kubelet")
        elif allocated and not exempt(target.pod):
            yield replace(target, is_allocated=False)


def _assigned_pods(snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the pods to which the kubelet has assigned devices of this agent's plug-in."""
    served = snapshot.served.value
    own_resources = {resource.name for resource in served.resources if resource.state != "conflict"}
    return frozenset(device.pod_uid for device in served.held if device.resource in own_resources)


def _late_pods(snapshot: NodeSnapshot, allocated: Collection[str]) -> frozenset[str]:
    """Return the pods whose object has an allocation that their sandbox was created without."""
    sandboxes = snapshot.runtime.value.sandboxes.values()
    without = {
        sandbox.uid
        for sandbox in sandboxes
        if not sandbox.stopped and allocation_annotation(sandbox) is None
    }
    without.difference_update(allocated)
    return frozenset(
        pod.uid
        for pod in snapshot.cluster.pods
        if pod.uid in without
        and pod.phase not in ENDED_PHASES
        and pod.annotation(ANNOTATION) is not None
    )


def _runtime_targets(
    snapshot: NodeSnapshot, groups: Mapping[str, str], pods: Mapping[str, PodView]
) -> Iterator[VerificationTarget]:
    runtime = snapshot.runtime.value
    for container in runtime.containers.values():
        pod = runtime.sandboxes.get(container.sandbox_id)
        if pod is None or not pod.uid or container.state not in LIVE_STATES:
            continue
        yield VerificationTarget(
            location=_location(container.id, groups.get(pod.uid, ""), pod.cgroup_parent),
            pod=pod,
            name=container.name,
            injection_path=_injection_path(pods.get(pod.uid), container.name)
            if container.id in runtime.missed
            else "nri",
        )


def _injection_path(pod: PodView | None, name: str) -> str:
    """Return `kubelet` if the container requests a resource of a device plug-in."""
    is_requested = pod is not None and any(request.container == name for request in pod.asks)
    return "kubelet" if is_requested else ""


def listed_targets(pod: PodView) -> tuple[VerificationTarget, ...]:
    """Return the running containers of a listed pod, by what the list has of it."""
    sandbox = sandbox_from_pod(pod)
    return tuple(
        VerificationTarget(
            location=_location(container.id, pod.cgroup),
            pod=sandbox,
            name=container.name,
            injection_path=_injection_path(pod, container.name),
        )
        for container in pod.containers
        if _is_running(container)
    )


def _is_running(container: ContainerView) -> bool:
    """Return whether a container is named and runs; sandboxes have a cgroup and no name."""
    return bool(container.name and container.cgroup) and container.name != SANDBOX_NAME


def _location(container_id: str, *cgroups: str) -> ContainerLocation:
    unique = tuple(dict.fromkeys(cgroup for cgroup in cgroups if cgroup.startswith("/")))
    return ContainerLocation(container_id=container_id, pod_cgroups=unique)


class _DueTime(msgspec.Struct):
    at_s: float
    wait_s: float = FIRST_S
    is_holder: bool = False  # at the last check, its pod had devices


class VerificationSchedule:
    """When each container is verified next; containers that no longer exist are forgotten."""

    def __init__(self) -> None:
        self._due: dict[str, _DueTime] = {}

    def due(self, existing: Iterable[VerificationTarget], now_s: float) -> list[VerificationTarget]:
        """Return the containers to verify now, the longest overdue first; forget all others.

        Of containers that are due at the same time, those with devices come first. A container may
        be checked before the devices of its pod are known; it is due again when they are.
        """
        by_id = {target.id: target for target in existing}
        self._due = {key: self._due.get(key) or _DueTime(now_s) for key in by_id}
        new_holders = [
            key for key, one in by_id.items() if one.is_holder and not self._due[key].is_holder
        ]
        self.make_due(new_holders, now_s)
        overdue = [key for key, due in self._due.items() if due.at_s <= now_s]
        overdue.sort(key=lambda key: (self._due[key].at_s, not by_id[key].has_devices))
        return [by_id[key] for key in overdue[:MAX_CHECKS_PER_RUN]]

    def make_due(self, ids: Iterable[str], now_s: float) -> None:
        """Make containers due at once."""
        for key in ids:
            due = self._due.get(key)
            if due is not None:
                due.at_s = min(due.at_s, now_s)

    def recheck_soon(self, target: VerificationTarget, now_s: float) -> None:
        """Schedule a second check soon: one check does not justify a bad verdict."""
        due = self._due[target.id]
        due.at_s, due.is_holder = now_s + FIRST_S, target.is_holder

    def set_next(
        self, target: VerificationTarget, verdict: VerificationStatus, now_s: float
    ) -> None:
        """Set the time of the next check; the pause grows while the verdict is unknown."""
        due = self._due[target.id]
        due.is_holder = target.is_holder
        again_s = RECHECK_S.get(verdict)
        if again_s is None:
            due.at_s, due.wait_s = now_s + due.wait_s, min(LONGEST_S, due.wait_s * 2)
            return
        if verdict is VerificationStatus.VERIFIED and not target.has_devices:
            again_s = UNALLOCATED_S
        due.at_s, due.wait_s = now_s + again_s, FIRST_S
