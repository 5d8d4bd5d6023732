"""Chooses the containers to verify: soon after their start, then once a minute. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.allocation.index import allocation_annotation
from agent.snapshot.allocation import VerificationStatus
from agent.snapshot.container import ContainerState, PodSandbox, sandbox_from_pod
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, ContainerView, PodView
from agent.verification.inspector import ContainerLocation
from agent.wire_formats.device_allocated import ANNOTATION

MAX_CHECKS_PER_RUN = (
    8  # 2 ms each; containers of a node that just started are spread over some seconds
)
FIRST_S, LONGEST_S = 1.0, 300.0  # between looks at one that is starting, or cannot be told
RECHECK_S: Mapping[VerificationStatus, float] = {
    VerificationStatus.VERIFIED: 50.0,  # less than a minute, also when several are due at once
    VerificationStatus.MISSING: 50.0,  # people mend them, or reconciling does
    VerificationStatus.EXCESS: 50.0,
}
UNALLOCATED_S = 300.0  # of a container without devices that has no granted card
LIVE_STATES = frozenset((ContainerState.RUNNING, ContainerState.CREATED, ContainerState.UNKNOWN))
SANDBOX_NAME = "POD"  # what old runtimes call the sandbox's own container


IsExempt = Callable[[PodSandbox], bool]


class VerificationTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One running container."""

    location: ContainerLocation
    pod: PodSandbox  # as the runtime told of it, or as the kubelet's list does
    name: str
    injection_path: str  # nri, kubelet; empty: it came by none of ours
    is_allocated: bool = True  # its pod has a grant
    is_assigned: bool = False  # the kubelet has assigned devices to its pod, by our device plug-in
    is_late: bool = False  # its pod's grant was written after the sandbox had been made

    @property
    def id(self) -> str:
        """Return the container's id."""
        return self.location.container_id

    @property
    def has_devices(self) -> bool:
        """Return whether the container is to have devices."""
        return self.is_allocated or self.is_assigned


def exempt_none(_: PodSandbox) -> bool:
    """Exempt no pod."""
    return False


def targets(
    snapshot: NodeSnapshot, exempt: IsExempt = exempt_none
) -> tuple[VerificationTarget, ...]:
    """Return the containers to look at, each once; pods without a device may be exempt.

    Pods without a device are looked at only while another pod has a grant.
    """
    grants = snapshot.grants.value.pods
    granted = {uid for uid, pod in grants.items() if not pod.refusal and pod.grant.devices}
    late, assigned = _late_pods(snapshot, granted), _assigned_pods(snapshot)
    if not granted and not late and not assigned:
        return ()
    # of the two lists the later one has what runs, with its cgroups
    pods = {pod.uid: pod for pod in (*snapshot.cluster.pods, *snapshot.pods.value)}
    groups = {pod.uid: pod.cgroup for pod in snapshot.pods.value}
    found = {one.id: one for one in _listed_targets(pods.values(), groups)}
    found |= {
        one.id: one for one in _runtime_targets(snapshot, groups, pods)
    }  # the runtime tells more
    return tuple(_select(found.values(), granted, assigned, late, exempt))


def _select(
    found: Iterable[VerificationTarget],
    granted: Collection[str],
    assigned: Collection[str],
    late: Collection[str],
    exempt: IsExempt,
) -> Iterator[VerificationTarget]:
    for target in found:
        uid = target.pod.uid
        if uid in granted:
            yield target
        elif uid in late:
            yield replace(target, is_allocated=False, is_late=True)
        elif uid in assigned:
            yield replace(target, is_allocated=False, is_assigned=True, injection_path="kubelet")
        elif granted and not exempt(target.pod):
            yield replace(target, is_allocated=False)


def _assigned_pods(snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the pods to which the kubelet has assigned devices of this agent's plug-in."""
    served = snapshot.served.value
    ours = {one.name for one in served.resources if one.state != "conflict"}
    return frozenset(held.pod_uid for held in served.held if held.resource in ours)


def _late_pods(snapshot: NodeSnapshot, granted: Collection[str]) -> frozenset[str]:
    """Return the pods whose object has a grant and whose sandbox was made without one."""
    boxes = snapshot.runtime.value.sandboxes.values()
    without = {box.uid for box in boxes if not box.stopped and allocation_annotation(box) is None}
    without.difference_update(granted)
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
    """Return `kubelet` if the container asks for something of a device plug-in."""
    asks = pod is not None and any(ask.container == name for ask in pod.asks)
    return "kubelet" if asks else ""


def _listed_targets(
    pods: Iterable[PodView], groups: Mapping[str, str]
) -> Iterator[VerificationTarget]:
    for pod in pods:
        seen = sandbox_from_pod(pod)
        for container in pod.containers:
            if _is_running(container):
                where = _location(container.id, groups.get(pod.uid, ""), pod.cgroup)
                way = _injection_path(pod, container.name)
                yield VerificationTarget(
                    location=where, pod=seen, name=container.name, injection_path=way
                )


def _is_running(container: ContainerView) -> bool:
    """Say whether it is a named container that runs: sandboxes are known by their cgroup alone."""
    return bool(container.name and container.cgroup) and container.name != SANDBOX_NAME


def _location(container_id: str, *cgroups: str) -> ContainerLocation:
    found = tuple(dict.fromkeys(cgroup for cgroup in cgroups if cgroup.startswith("/")))
    return ContainerLocation(container_id=container_id, pod_cgroups=found)


class _DueTime(msgspec.Struct):
    at_s: float
    wait_s: float = FIRST_S


class VerificationSchedule:
    """When each container is looked at next; it knows no more of them than are here."""

    def __init__(self) -> None:
        self._due: dict[str, _DueTime] = {}

    def due(self, here: Iterable[VerificationTarget], now_s: float) -> list[VerificationTarget]:
        """Return those to look at now, the longest overdue first; forget those that are gone.

        Of containers that are due at the same time those with devices come first.
        """
        known = {target.id: target for target in here}
        self._due = {key: self._due.get(key) or _DueTime(now_s) for key in known}
        overdue = [key for key, due in self._due.items() if due.at_s <= now_s]
        overdue.sort(key=lambda key: (self._due[key].at_s, not known[key].has_devices))
        return [known[key] for key in overdue[:MAX_CHECKS_PER_RUN]]

    def make_due(self, ids: Iterable[str], now_s: float) -> None:
        """Make containers due at once."""
        for key in ids:
            due = self._due.get(key)
            if due is not None:
                due.at_s = min(due.at_s, now_s)

    def recheck_soon(self, target: VerificationTarget, now_s: float) -> None:
        """Have a container looked at again soon: one look does not justify its verdict."""
        self._due[target.id].at_s = now_s + FIRST_S

    def set_next(
        self, target: VerificationTarget, verdict: VerificationStatus, now_s: float
    ) -> None:
        """Set the time of the next look; the pause grows while a container cannot be judged."""
        due = self._due[target.id]
        again_s = RECHECK_S.get(verdict)
        if again_s is None:
            due.at_s, due.wait_s = now_s + due.wait_s, min(LONGEST_S, due.wait_s * 2)
            return
        if verdict is VerificationStatus.VERIFIED and not target.has_devices:
            again_s = UNALLOCATED_S
        due.at_s, due.wait_s = now_s + again_s, FIRST_S
