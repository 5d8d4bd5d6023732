"""Which containers are looked at, and when: soon after their start, then once a minute. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.grants.claims import claim_text
from agent.model.cluster.pods import ENDED
from agent.model.foreign.device_allocated import KEY
from agent.model.grant.proof import Verdict
from agent.model.pod import ContainerView, PodView
from agent.model.runtime.seen import ContainerState, SandboxSeen, sandbox_of
from agent.model.snapshot import NodeSnapshot
from agent.proof.look import Whereabouts

LOOKS_A_RUN = 8  # 2 ms each; containers of a node that just started are spread over some seconds
FIRST_S, LONGEST_S = 1.0, 300.0  # between looks at one that is starting, or cannot be told
AGAIN_S: Mapping[Verdict, float] = {
    Verdict.VERIFIED: 50.0,  # less than a minute, also when several are due at once
    Verdict.MISSING: 50.0,  # people mend them, or reconciling does
    Verdict.EXCESS: 50.0,
}
UNGRANTED_S = 300.0  # of a container without devices that has no granted card
ALIVE = frozenset((ContainerState.RUNNING, ContainerState.CREATED, ContainerState.UNKNOWN))
WITHOUT_NAME = "POD"  # what old runtimes call the sandbox's own container


Exempt = Callable[[SandboxSeen], bool]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One running container."""

    where: Whereabouts
    pod: SandboxSeen  # as the runtime told of it, or as the kubelet's list does
    name: str
    way: str  # nri, kubelet; empty: it came by none of ours
    granted: bool = True  # its pod has a grant
    assigned: bool = False  # the kubelet has assigned devices to its pod, by our device plug-in
    late: bool = False  # its pod's grant was written after the sandbox had been made

    @property
    def id(self) -> str:
        """Return the container's id."""
        return self.where.container_id

    @property
    def has_devices(self) -> bool:
        """Return whether the container is to have devices."""
        return self.granted or self.assigned


def never(_: SandboxSeen) -> bool:
    """Exempt no pod."""
    return False


def targets(snapshot: NodeSnapshot, exempt: Exempt = never) -> tuple[Target, ...]:
    """Return the containers to look at, each once; pods without a device may be exempt.

    Pods without a device are looked at only while another pod has a grant.
    """
    grants = snapshot.grants.value.pods
    granted = {uid for uid, pod in grants.items() if not pod.refusal and pod.grant.devices}
    late, assigned = _late(snapshot, granted), _assigned(snapshot)
    if not granted and not late and not assigned:
        return ()
    # of the two lists the later one has what runs, with its cgroups
    pods = {pod.uid: pod for pod in (*snapshot.cluster.pods, *snapshot.pods.value)}
    groups = {pod.uid: pod.cgroup for pod in snapshot.pods.value}
    found = {one.id: one for one in _of_pods(pods.values(), groups)}
    found |= {one.id: one for one in _of_runtime(snapshot, groups, pods)}  # the runtime tells more
    return tuple(_chosen(found.values(), granted, assigned, late, exempt))


def _chosen(
    found: Iterable[Target],
    granted: Collection[str],
    assigned: Collection[str],
    late: Collection[str],
    exempt: Exempt,
) -> Iterator[Target]:
    for target in found:
        uid = target.pod.uid
        if uid in granted:
            yield target
        elif uid in late:
            yield replace(target, granted=False, late=True)
        elif uid in assigned:
            yield replace(target, granted=False, assigned=True, way="kubelet")
        elif granted and not exempt(target.pod):
            yield replace(target, granted=False)


def _assigned(snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the pods to which the kubelet has assigned devices of this agent's plug-in."""
    served = snapshot.served.value
    ours = {one.name for one in served.resources if one.state != "conflict"}
    return frozenset(held.pod_uid for held in served.held if held.resource in ours)


def _late(snapshot: NodeSnapshot, granted: Collection[str]) -> frozenset[str]:
    """Return the pods whose object has a grant and whose sandbox was made without one."""
    boxes = snapshot.runtime.value.sandboxes.values()
    without = {box.uid for box in boxes if not box.stopped and claim_text(box) is None}
    without.difference_update(granted)
    return frozenset(
        pod.uid
        for pod in snapshot.cluster.pods
        if pod.uid in without and pod.phase not in ENDED and pod.annotation(KEY) is not None
    )


def _of_runtime(
    snapshot: NodeSnapshot, groups: Mapping[str, str], pods: Mapping[str, PodView]
) -> Iterator[Target]:
    runtime = snapshot.runtime.value
    for container in runtime.containers.values():
        pod = runtime.sandboxes.get(container.sandbox_id)
        if pod is None or not pod.uid or container.state not in ALIVE:
            continue
        yield Target(
            where=_where(container.id, groups.get(pod.uid, ""), pod.cgroup_parent),
            pod=pod,
            name=container.name,
            way=_by_kubelet(pods.get(pod.uid), container.name)
            if container.id in runtime.missed
            else "nri",
        )


def _by_kubelet(pod: PodView | None, name: str) -> str:
    """Return `kubelet` if the container asks for something of a device plug-in."""
    asks = pod is not None and any(ask.container == name for ask in pod.asks)
    return "kubelet" if asks else ""


def _of_pods(pods: Iterable[PodView], groups: Mapping[str, str]) -> Iterator[Target]:
    for pod in pods:
        seen = sandbox_of(pod)
        for container in pod.containers:
            if _runs(container):
                where = _where(container.id, groups.get(pod.uid, ""), pod.cgroup)
                way = _by_kubelet(pod, container.name)
                yield Target(where=where, pod=seen, name=container.name, way=way)


def _runs(container: ContainerView) -> bool:
    """Say whether it is a named container that runs: sandboxes are known by their cgroup alone."""
    return bool(container.name and container.cgroup) and container.name != WITHOUT_NAME


def _where(container_id: str, *cgroups: str) -> Whereabouts:
    found = tuple(dict.fromkeys(cgroup for cgroup in cgroups if cgroup.startswith("/")))
    return Whereabouts(container_id=container_id, pod_cgroups=found)


class _Due(msgspec.Struct):
    at_s: float
    wait_s: float = FIRST_S


class Schedule:
    """When each container is looked at next; it knows no more of them than are here."""

    def __init__(self) -> None:
        self._due: dict[str, _Due] = {}

    def due(self, here: Iterable[Target], now_s: float) -> list[Target]:
        """Return those to look at now, the longest overdue first; forget those that are gone.

        Of containers that are due at the same time those with devices come first.
        """
        known = {target.id: target for target in here}
        self._due = {key: self._due.get(key) or _Due(now_s) for key in known}
        overdue = [key for key, due in self._due.items() if due.at_s <= now_s]
        overdue.sort(key=lambda key: (self._due[key].at_s, not known[key].has_devices))
        return [known[key] for key in overdue[:LOOKS_A_RUN]]

    def hasten(self, ids: Iterable[str], now_s: float) -> None:
        """Make containers due at once."""
        for key in ids:
            due = self._due.get(key)
            if due is not None:
                due.at_s = min(due.at_s, now_s)

    def confirm(self, target: Target, now_s: float) -> None:
        """Have a container looked at again soon: one look does not justify its verdict."""
        self._due[target.id].at_s = now_s + FIRST_S

    def looked(self, target: Target, verdict: Verdict, now_s: float) -> None:
        """Set the time of the next look; the pause grows while a container cannot be judged."""
        due = self._due[target.id]
        again_s = AGAIN_S.get(verdict)
        if again_s is None:
            due.at_s, due.wait_s = now_s + due.wait_s, min(LONGEST_S, due.wait_s * 2)
            return
        if verdict is Verdict.VERIFIED and not target.has_devices:
            again_s = UNGRANTED_S
        due.at_s, due.wait_s = now_s + again_s, FIRST_S
