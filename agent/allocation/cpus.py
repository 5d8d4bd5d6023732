"""CPUs that belong to single pods, by the scheduler's or the kubelet's allocation, and shared CPUs.

Hooks and publishers both use them.
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

STATIC_POLICY = "static"  # the CPU manager's policy that allocates CPUs to pods

EXCLUSIVE_CLASS = "LSE"  # the class whose CPUs best-effort pods may not use either

_SHARED_CLASSES = ("LS", "BE")  # classes whose pods own no CPUs, whatever the kubelet allocated


class PodCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs that belong to one pod."""

    uid: str
    name: str = ""  # empty: the kubelet has not listed it
    namespace: str = ""
    cpus: CpuSet
    label: str = ""  # of its QoS class; not guessed if the pod has none


def allocated_cpus(pod: PodView) -> CpuSet:
    """Return the CPUs that the scheduler allocated to the pod; none without its annotation.

    Raise `AnnotationError` for an invalid annotation.
    """
    text = next((value for key, value in pod.annotations if key == RESOURCE_STATUS), None)
    if text is None:
        return frozenset()
    cpus = parse_json_object(text).get("cpuset")
    return frozenset() if cpus in (None, "") else parse_cpus(cpus)


def scheduled_cpus(
    pods: Iterable[PodView],
) -> tuple[tuple[PodCpus, ...], tuple[InvalidAnnotation, ...]]:
    """Return the pods with CPUs of the scheduler, and the invalid annotations.

    An ended pod owns no CPUs: the scheduler allocates them again while the pod is still listed.
    """
    owners: list[PodCpus] = []
    invalid: list[InvalidAnnotation] = []
    for pod in pods:
        if pod.phase in ENDED_PHASES:
            continue
        try:
            cpus = allocated_cpus(pod)
        except AnnotationError as error:
            invalid.append(InvalidAnnotation(path=RESOURCE_STATUS, why=str(error), pod=pod))
            continue
        if cpus:
            owners.append(_pod_cpus(pod, cpus))
    return tuple(owners), tuple(invalid)


def kubelet_cpus(
    kubelet: KubeletView, pods: Iterable[PodView], scheduled: Iterable[PodCpus]
) -> tuple[PodCpus, ...]:
    """Return the pods with CPUs of the kubelet, by uid.

    Pods of classes that share CPUs, and pods with CPUs of the scheduler, are left out: for them the
    kubelet's allocation is not in force. A pod that is not listed is included without a name.
    """
    if kubelet.cpu_manager_policy != STATIC_POLICY:
        return ()
    by_uid = {pod.uid: pod for pod in pods}
    others = {one.uid for one in scheduled}
    others |= {uid for uid, pod in by_uid.items() if pod.label(QOS_LABEL) in _SHARED_CLASSES}
    return tuple(
        _pod_cpus(by_uid[uid], cpus) if uid in by_uid else PodCpus(uid=uid, cpus=cpus)
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
    """The CPUs that latency-sensitive pods share, and those that best-effort pods share."""

    ls: tuple[CpuPool, ...]
    be: tuple[CpuPool, ...]


def build_cpu_pools(
    machine_cpus: Iterable[Cpu],
    scheduled: Iterable[PodCpus],
    kubelet: Iterable[PodCpus],
    withheld: CpuSet,
) -> CpuPools:
    """Return both pools; `withheld` are CPUs that no pod may use.

    CPUs that the kubelet reserves are included: some must be left if pods own all others.
    Latency-sensitive pods may not use the CPUs of a pod; best-effort pods may use them while it
    idles, except those of an exclusive class.
    """
    machine_cpus, scheduled = tuple(machine_cpus), tuple(scheduled)
    unavailable = withheld.union(*(pod.cpus for pod in kubelet))
    owned = frozenset[int]().union(*(pod.cpus for pod in scheduled))
    exclusive = frozenset[int]().union(
        *(pod.cpus for pod in scheduled if pod.label == EXCLUSIVE_CLASS)
    )
    return CpuPools(
        ls=_group_cpus(machine_cpus, unavailable | owned),
        be=_group_cpus(machine_cpus, unavailable | exclusive),
    )


def _group_cpus(machine_cpus: Iterable[Cpu], without: CpuSet) -> tuple[CpuPool, ...]:
    groups: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for cpu in machine_cpus:
        if cpu.id not in without:
            groups[cpu.socket, cpu.node].add(cpu.id)
    return tuple(CpuPool(*place, frozenset(cpus)) for place, cpus in sorted(groups.items()))


class NodeCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU facts of Node, kubelet and pods together. `None` means not known yet."""

    annotations: NodeAnnotations
    reserved: CpuSet  # reserved by a person, in an annotation of the Node
    kubelet: KubeletView | None
    kubelet_pods: tuple[PodCpus, ...] | None
    pools: CpuPools | None
    invalid_annotations: tuple[InvalidAnnotation, ...] = ()  # of pods

    @property
    def is_static(self) -> bool | None:
        """Return whether the kubelet allocates CPUs itself; `None` while unknown."""
        if self.kubelet is None or not has_settings(self.kubelet):
            return None
        return self.kubelet.cpu_manager_policy == STATIC_POLICY


def kubelet_view(snapshot: NodeSnapshot, *, reads_kubelet: bool) -> KubeletView | None:
    """Return the kubelet's facts: empty ones if it is not read, `None` before the first read."""
    view = snapshot.cluster.kubelet.value
    return (
        view
        if view is not None or (reads_kubelet and snapshot.cluster.is_clustered)
        else KubeletView()
    )


def has_settings(kubelet: KubeletView | None) -> bool:
    """Return whether the kubelet's settings are known or not read; a checkpoint has few."""
    is_unread = kubelet == KubeletView()
    return kubelet is not None and (is_unread or kubelet.topology_policy is not None)


def has_pods(snapshot: NodeSnapshot) -> bool:
    """Return whether the pods' annotations are known; a cgroup only shows that a pod exists."""
    if not snapshot.cluster.is_clustered:
        return True
    pods = snapshot.pods
    return pods.taken_s is not None and (not pods.value or any(pod.name for pod in pods.value))


def node_cpus(snapshot: NodeSnapshot, *, reads_kubelet: bool) -> NodeCpus:
    """Return the owners of CPUs; `reads_kubelet`: whether the agent reads the kubelet.

    The pools are computed once all owners are known. Without a cluster there are no owners and no
    reservations.
    """
    cpus, pods = snapshot.cpus.value, snapshot.pods.value
    kubelet = kubelet_view(snapshot, reads_kubelet=reads_kubelet)
    annotations = parse_node_annotations(snapshot.cluster.node.value, cpus.usable)
    scheduled, invalid = scheduled_cpus(pods)
    reserved = annotated_cpus(annotations, cpus)
    kubelet_pods = None if kubelet is None else kubelet_cpus(kubelet, pods, scheduled)
    pools = None
    if kubelet_pods is not None and has_pods(snapshot):
        services = annotations.system_qos.exclusive_cpus if annotations.system_qos else frozenset()
        pools = build_cpu_pools(cpus.cpus, scheduled, kubelet_pods, reserved | services)
    return NodeCpus(
        annotations=annotations,
        reserved=reserved,
        kubelet=kubelet,
        kubelet_pods=kubelet_pods,
        pools=pools,
        invalid_annotations=invalid,
    )


def annotated_cpus(annotations: NodeAnnotations, cpus: CpuTopology) -> CpuSet:
    """Return the named reserved CPUs, or a reserved number of them, chosen as the kubelet does."""
    reservation = annotations.reservation
    if reservation.cpus or not reservation.count:
        return reservation.cpus
    return reserved_cpus(cpus, reservation.count * 1000, {}) or frozenset()
