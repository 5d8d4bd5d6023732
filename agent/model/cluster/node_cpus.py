"""Who holds the CPUs of this node, and which are shared: what hooks and publishers both need."""

from __future__ import annotations

import msgspec

from agent.model.cluster.annotation import Refused
from agent.model.cluster.facts import KubeletFacts
from agent.model.cluster.kubelet_choice import kubelet_choice
from agent.model.cluster.node_wishes import Wishes, wishes
from agent.model.cluster.pod_cpus import STATIC, PodCpus, kubelet_cpus, scheduled_cpus
from agent.model.cluster.shared_pools import Pools, shared_pools
from agent.model.snapshot import NodeSnapshot
from agent.topology.cpu import CpuSet, CpuTopology


class NodeCpus(msgspec.Struct, frozen=True, kw_only=True):
    """What Node, kubelet and pods say together. `None` is what cannot be told yet."""

    wishes: Wishes
    kept: CpuSet  # that a person reserved
    kubelet: KubeletFacts | None
    of_kubelet: tuple[PodCpus, ...] | None
    pools: Pools | None
    refused: tuple[Refused, ...] = ()  # pods' annotations that mean nothing

    @property
    def static(self) -> bool | None:
        """Say whether the kubelet gives CPUs away itself; `None` if it has not told."""
        if self.kubelet is None or not knows_settings(self.kubelet):
            return None
        return self.kubelet.cpu_manager_policy == STATIC


def kubelet_facts(snapshot: NodeSnapshot, *, asked: bool) -> KubeletFacts | None:
    """Return the kubelet's facts, empty ones where nobody asks for them, `None` before it told."""
    told = snapshot.cluster.kubelet.value
    return told if told is not None or (asked and snapshot.cluster.clustered) else KubeletFacts()


def knows_settings(kubelet: KubeletFacts | None) -> bool:
    """Say whether the kubelet told its settings, or is not asked; its checkpoint has few."""
    asked_for_nothing = kubelet == KubeletFacts()
    return kubelet is not None and (asked_for_nothing or kubelet.topology_policy is not None)


def knows_pods(snapshot: NodeSnapshot) -> bool:
    """Say whether the pods' annotations were read: a cgroup shows that a pod is there, no more."""
    if not snapshot.cluster.clustered:
        return True
    pods = snapshot.pods
    return pods.taken_s is not None and (not pods.value or any(pod.name for pod in pods.value))


def node_cpus(snapshot: NodeSnapshot, *, asked: bool) -> NodeCpus:
    """Return who holds what; `asked` says whether the kubelet is asked at all.

    Pools are told when it is known who holds CPUs. Without a cluster that is nobody, and nothing
    is reserved.
    """
    cpus, pods = snapshot.cpus.value, snapshot.pods.value
    kubelet = kubelet_facts(snapshot, asked=asked)
    named = wishes(snapshot.cluster.node.value, cpus.usable)
    scheduled, refused = scheduled_cpus(pods)
    kept = _chosen(named, cpus)
    own = None if kubelet is None else kubelet_cpus(kubelet, pods, scheduled)
    pools = None
    if own is not None and knows_pods(snapshot):
        services = named.system_qos.withheld if named.system_qos else frozenset()
        pools = shared_pools(cpus.cpus, scheduled, own, kept | services)
    return NodeCpus(
        wishes=named, kept=kept, kubelet=kubelet, of_kubelet=own, pools=pools, refused=refused
    )


def _chosen(named: Wishes, cpus: CpuTopology) -> CpuSet:
    """Return the reserved CPUs: those named, or as many as are wanted, chosen as a kubelet does."""
    reservation = named.reservation
    return reservation.cpus or kubelet_choice(cpus, reservation.count * 1000, {}) or frozenset()
