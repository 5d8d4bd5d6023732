"""Which CPUs belong to pods alone: by the scheduler's word, or by the kubelet's.

The CPUs that pods share, by socket and memory node.

Who holds the CPUs of this node, and which are shared: what hooks and publishers both need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from agent.snapshot.cluster import KubeletView
from agent.snapshot.cpu import Cpu, CpuSet, CpuTopology
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, PodView
from agent.topology.cpu_manager import reserved_cpus
from agent.wire_formats.annotations import (
    QOS_LABEL,
    AnnotationError,
    InvalidAnnotation,
    NodeAnnotations,
    parse_cpus,
    parse_json_object,
    parse_node_annotations,
)
from agent.wire_formats.resource_status import RESOURCE_STATUS

STATIC_POLICY = "static"  # the CPU manager's policy that gives CPUs away

EXCLUSIVE_CLASS = "LSE"  # the class whose CPUs best-effort pods may not use either

_SHARED_CLASSES = ("LS", "BE")  # classes whose pods hold no CPUs, whatever the kubelet gave them


class PodCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs of one pod."""

    uid: str
    name: str = ""  # empty: the kubelet has not listed it
    namespace: str = ""
    cpus: CpuSet
    label: str = ""  # of its QoS class; what the pod does not say is not guessed here


def allocated_cpus(pod: PodView) -> CpuSet:
    """Return what the scheduler gave the pod, none without its annotation.

    Raise `BadAnnotation` for an annotation that means nothing.
    """
    text = next((value for key, value in pod.annotations if key == RESOURCE_STATUS), None)
    if text is None:
        return frozenset()
    cpus = parse_json_object(text).get("cpuset")
    return frozenset() if cpus in (None, "") else parse_cpus(cpus)


def scheduled_cpus(
    pods: Iterable[PodView],
) -> tuple[tuple[PodCpus, ...], tuple[InvalidAnnotation, ...]]:
    """Return the pods that the scheduler gave CPUs, and the annotations that mean nothing.

    A pod that has ended holds none: the scheduler gives its CPUs to others while it is still
    listed.
    """
    found: list[PodCpus] = []
    refused: list[InvalidAnnotation] = []
    for pod in (pod for pod in pods if pod.phase not in ENDED_PHASES):
        try:
            cpus = allocated_cpus(pod)
        except AnnotationError as error:
            refused.append(InvalidAnnotation(path=RESOURCE_STATUS, why=str(error), pod=pod))
            continue
        if cpus:
            found.append(_pod_cpus(pod, cpus))
    return tuple(found), tuple(refused)


def kubelet_cpus(
    kubelet: KubeletView, pods: Iterable[PodView], scheduled: Iterable[PodCpus]
) -> tuple[PodCpus, ...]:
    """Return the pods whose CPUs are the kubelet's gift, by uid.

    Not those of the classes that share CPUs, nor those that the scheduler gave some: what the
    kubelet gave them does not hold. A pod that nobody listed counts, without a name.
    """
    if kubelet.cpu_manager_policy != STATIC_POLICY:
        return ()
    known = {pod.uid: pod for pod in pods}
    others = {one.uid for one in scheduled}
    others |= {uid for uid, pod in known.items() if pod.label(QOS_LABEL) in _SHARED_CLASSES}
    return tuple(
        _pod_cpus(known[uid], cpus) if uid in known else PodCpus(uid=uid, cpus=cpus)
        for uid, cpus in sorted(kubelet.pod_cpus)
        if cpus and uid not in others
    )


def _pod_cpus(pod: PodView, cpus: CpuSet) -> PodCpus:
    label = pod.label(QOS_LABEL) or ""
    return PodCpus(uid=pod.uid, name=pod.name, namespace=pod.namespace, cpus=cpus, label=label)


class CpuPool(msgspec.Struct, frozen=True):
    """The shared CPUs of one memory node of one socket."""

    socket: int
    node: int
    cpus: CpuSet


class CpuPools(msgspec.Struct, frozen=True, kw_only=True):
    """What latency-sensitive pods share, and what best-effort pods do."""

    ls: tuple[CpuPool, ...]
    be: tuple[CpuPool, ...]


def build_cpu_pools(
    machine: Iterable[Cpu],
    scheduled: Iterable[PodCpus],
    kubelet: Iterable[PodCpus],
    withheld: CpuSet,
) -> CpuPools:
    """Return both pools; `withheld` are CPUs that no pod may use at all.

    What the kubelet reserves stays in: it must leave something where others hold all. CPUs of a
    pod are missing for latency-sensitive pods; best-effort pods run there while it idles, unless
    it asked for them alone.
    """
    machine, scheduled = tuple(machine), tuple(scheduled)
    gone = withheld.union(*(pod.cpus for pod in kubelet))
    held = frozenset[int]().union(*(pod.cpus for pod in scheduled))
    alone = frozenset[int]().union(*(pod.cpus for pod in scheduled if pod.label == EXCLUSIVE_CLASS))
    return CpuPools(ls=_group_cpus(machine, gone | held), be=_group_cpus(machine, gone | alone))


def _group_cpus(machine: Iterable[Cpu], without: CpuSet) -> tuple[CpuPool, ...]:
    groups: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for cpu in machine:
        if cpu.id not in without:
            groups[cpu.socket, cpu.node].add(cpu.id)
    return tuple(CpuPool(*place, frozenset(cpus)) for place, cpus in sorted(groups.items()))


class NodeCpus(msgspec.Struct, frozen=True, kw_only=True):
    """What Node, kubelet and pods say together. `None` is what cannot be told yet."""

    annotations: NodeAnnotations
    reserved: CpuSet  # that a person reserved
    kubelet: KubeletView | None
    kubelet_pods: tuple[PodCpus, ...] | None
    pools: CpuPools | None
    invalid_annotations: tuple[InvalidAnnotation, ...] = ()  # pods' annotations that mean nothing

    @property
    def is_static(self) -> bool | None:
        """Say whether the kubelet gives CPUs away itself; `None` if it has not told."""
        if self.kubelet is None or not has_settings(self.kubelet):
            return None
        return self.kubelet.cpu_manager_policy == STATIC_POLICY


def kubelet_view(snapshot: NodeSnapshot, *, reads_kubelet: bool) -> KubeletView | None:
    """Return the kubelet's facts, empty ones where nobody asks for them, `None` before it told."""
    told = snapshot.cluster.kubelet.value
    return (
        told
        if told is not None or (reads_kubelet and snapshot.cluster.is_clustered)
        else KubeletView()
    )


def has_settings(kubelet: KubeletView | None) -> bool:
    """Say whether the kubelet told its settings, or is not asked; its checkpoint has few."""
    asked_for_nothing = kubelet == KubeletView()
    return kubelet is not None and (asked_for_nothing or kubelet.topology_policy is not None)


def has_pods(snapshot: NodeSnapshot) -> bool:
    """Say whether the pods' annotations were read: a cgroup shows that a pod is there, no more."""
    if not snapshot.cluster.is_clustered:
        return True
    pods = snapshot.pods
    return pods.taken_s is not None and (not pods.value or any(pod.name for pod in pods.value))


def node_cpus(snapshot: NodeSnapshot, *, reads_kubelet: bool) -> NodeCpus:
    """Return who holds what; `asked` says whether the kubelet is asked at all.

    Pools are told when it is known who holds CPUs. Without a cluster that is nobody, and nothing
    is reserved.
    """
    cpus, pods = snapshot.cpus.value, snapshot.pods.value
    kubelet = kubelet_view(snapshot, reads_kubelet=reads_kubelet)
    named = parse_node_annotations(snapshot.cluster.node.value, cpus.usable)
    scheduled, refused = scheduled_cpus(pods)
    kept = _reserved_cpus(named, cpus)
    own = None if kubelet is None else kubelet_cpus(kubelet, pods, scheduled)
    pools = None
    if own is not None and has_pods(snapshot):
        services = named.system_qos.exclusive_cpus if named.system_qos else frozenset()
        pools = build_cpu_pools(cpus.cpus, scheduled, own, kept | services)
    return NodeCpus(
        annotations=named,
        reserved=kept,
        kubelet=kubelet,
        kubelet_pods=own,
        pools=pools,
        invalid_annotations=refused,
    )


def _reserved_cpus(named: NodeAnnotations, cpus: CpuTopology) -> CpuSet:
    """Return the reserved CPUs: those named, or as many as are wanted, chosen as a kubelet does."""
    reservation = named.reservation
    return reservation.cpus or reserved_cpus(cpus, reservation.count * 1000, {}) or frozenset()
