"""Which containers are looked at, and when: soon after their start, then rarely. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from agent.model.grant.proof import Verdict
from agent.model.pod import ContainerView, PodView
from agent.model.runtime.seen import ContainerState, SandboxSeen
from agent.model.snapshot import NodeSnapshot
from agent.proof.look import Whereabouts

LOOKS_A_RUN = 8  # 2 ms each; containers of a node that just started are spread over some seconds
FIRST_S, LONGEST_S = 1.0, 300.0  # between looks at one that is starting, or cannot be told
AGAIN_S: Mapping[Verdict, float] = {
    Verdict.VERIFIED: 600.0,
    Verdict.MISSING: 60.0,  # people mend them, or reconciling does
    Verdict.EXCESS: 60.0,
}
ALIVE = frozenset((ContainerState.RUNNING, ContainerState.CREATED, ContainerState.UNKNOWN))
WITHOUT_NAME = "POD"  # what old runtimes call the sandbox's own container


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One container of a pod that holds a grant."""

    where: Whereabouts
    pod: SandboxSeen  # as the runtime told of it, or as the kubelet's list does
    name: str
    way: str  # nri, kubelet; empty: it came by none of ours

    @property
    def id(self) -> str:
        """Return the container's id."""
        return self.where.container_id


def targets(snapshot: NodeSnapshot) -> tuple[Target, ...]:
    """Return the containers to look at, each once."""
    granted = {
        uid
        for uid, pod in snapshot.grants.value.pods.items()
        if not pod.refusal and pod.grant.devices
    }
    if not granted:
        return ()
    # of the two lists the later one has what runs, with its cgroups
    pods = {pod.uid: pod for pod in (*snapshot.cluster.pods, *snapshot.pods.value)}
    groups = {pod.uid: pod.cgroup for pod in snapshot.pods.value}
    found = {one.id: one for one in _listed(pods.values(), granted, groups)}
    found |= {one.id: one for one in _told(snapshot, granted, groups, pods)}  # it knows more
    return tuple(found.values())


def _told(
    snapshot: NodeSnapshot,
    granted: Collection[str],
    groups: Mapping[str, str],
    pods: Mapping[str, PodView],
) -> Iterator[Target]:
    runtime = snapshot.runtime.value
    for container in runtime.containers.values():
        pod = runtime.sandboxes.get(container.sandbox_id)
        if pod is None or pod.uid not in granted or container.state not in ALIVE:
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


def _listed(
    pods: Iterable[PodView], granted: Collection[str], groups: Mapping[str, str]
) -> Iterator[Target]:
    for pod in pods:
        if pod.uid not in granted:
            continue
        seen = SandboxSeen(
            id="",
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            labels=pod.labels,
            annotations=pod.annotations,
            host_network=pod.host_network,
        )
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
        """Return those to look at now, the longest overdue first; forget those that are gone."""
        known = {target.id: target for target in here}
        self._due = {key: self._due.get(key) or _Due(now_s) for key in known}
        overdue = [key for key, due in self._due.items() if due.at_s <= now_s]
        overdue.sort(key=lambda key: self._due[key].at_s)
        return [known[key] for key in overdue[:LOOKS_A_RUN]]

    def looked(self, target: Target, verdict: Verdict, now_s: float) -> None:
        """Say when it is looked at again: what is not known yet sooner, and less and less often."""
        due = self._due[target.id]
        if verdict in AGAIN_S:
            due.at_s, due.wait_s = now_s + AGAIN_S[verdict], FIRST_S
        else:
            due.at_s, due.wait_s = now_s + due.wait_s, min(LONGEST_S, due.wait_s * 2)
