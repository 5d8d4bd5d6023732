"""Decides whether a pod gets a CPU set on a node, and chooses its CPUs. Pure.

Order and texts as in Koordinator's `pkg/scheduler/plugins/nodenumaresource/resource_manager.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from plugins.scheduler.devices.allocator import NodeRefused
from plugins.scheduler.devices.device_table import NO_AMOUNTS, NO_LABELS, Amounts, Labels
from plugins.scheduler.numa.cpu_accumulator import CpuPlace, CpuSearch
from plugins.scheduler.numa.cpu_request import (
    FULL_CORES,
    FULL_CORES_ONLY,
    NODE_BIND_POLICY,
    NODE_NUMA_POLICY,
    NODE_NUMA_STRATEGY,
    SPREAD,
    CpuBindPolicy,
    CpuRequest,
    PodNumaRequest,
)
from plugins.scheduler.numa.node_cpus import CpuCapacity, NodeCpus
from plugins.scheduler.pod_object import CPU

MILLI = 1000
TOO_FEW_CPUS = "not enough cpus available to satisfy request"


class NumaPod(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and NUMA nodes of a pod on the node."""

    cpus: frozenset[int] = frozenset()
    exclusive_policy: str = ""
    amounts: Mapping[int, Amounts] = {}  # by NUMA node


class NumaState(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and NUMA nodes of a node that a decision reads."""

    labels: Labels = NO_LABELS
    cpus: NodeCpus | None = None  # None: there is no NodeResourceTopology
    pods: tuple[NumaPod, ...] = ()
    capacity: CpuCapacity = CpuCapacity()
    requested_milli: int = 0  # CPU of all pods, on nodes with amplified CPU alone
    unrecorded: Amounts = NO_AMOUNTS  # of pods of which no NUMA node is recorded

    @property
    def has_policy(self) -> bool:
        """Return whether the node requires CPU sets, NUMA alignment or amplified CPU."""
        policy = self.labels.get(NODE_NUMA_POLICY, "None")
        of_kubelet = "" if self.cpus is None else self.cpus.kubelet_numa_policy
        return (
            policy not in ("", "None")
            or bool(of_kubelet or _node_policy(self))
            or self.capacity.ratio != 1
        )


def cpu_request(state: NumaState, request: PodNumaRequest) -> CpuRequest | None:
    """Return the request for a CPU set on this node; `None` for a pod that shares CPUs.

    The policy of a node is a required one, and on such a node every pod gets a CPU set.
    """
    of_node = _node_policy(state)
    if not request.cpu_milli or not (request.wants_cpu_set or of_node):
        return None
    if request.cpu_milli % MILLI:
        raise NodeRefused("the requested CPUs must be integer", is_final=True)
    if state.cpus is None or not state.cpus.places:
        raise NodeRefused("node(s) invalid CPU Topology", is_final=True)
    count = request.cpu_milli // MILLI
    of_pod = request.required_policy
    if of_node and of_pod and of_pod != of_node:
        reason = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
        raise NodeRefused(reason, is_final=True)
    required = of_node or of_pod
    if required == FULL_CORES and count % state.cpus.counts.per_core:
        raise NodeRefused("node(s) requested cpus not multiple cpus per core", is_final=True)
    return CpuRequest(
        count=count,
        bind_policy=required or request.preferred_policy,
        is_required=bool(required),
        exclusive_policy=request.exclusive_policy,
    )


def _node_policy(state: NumaState) -> CpuBindPolicy:
    label = state.labels.get(NODE_BIND_POLICY, "")
    if label == FULL_CORES_ONLY or (state.cpus is not None and state.cpus.is_full_cores_only):
        return FULL_CORES
    return SPREAD if label == SPREAD else ""


class FreeCpus:
    """The CPUs of a node that no pod has, as one request for a CPU set sees them."""

    def __init__(self, state: NumaState, request: CpuRequest) -> None:
        assert state.cpus is not None  # noqa: S101 - `cpu_request` has checked it
        self._request = request
        self._places = state.cpus.places
        self._per_core = state.cpus.counts.per_core
        in_use = frozenset().union(*(pod.cpus for pod in state.pods))
        exclusive: dict[str, frozenset[int]] = {}
        for pod in state.pods:
            if pod.cpus and pod.exclusive_policy:
                before = exclusive.get(pod.exclusive_policy, frozenset())
                exclusive[pod.exclusive_policy] = before | pod.cpus
        self._search = CpuSearch(
            places=self._places,
            exclusive_cpus=exclusive,
            bind_policy=request.bind_policy,
            exclusive_policy=request.exclusive_policy,
            prefers_full=state.labels.get(NODE_NUMA_STRATEGY) == "MostAllocated",
        )
        self._free = self._usable(frozenset(self._places) - state.cpus.reserved - in_use)
        by_node: dict[int, set[int]] = {}
        for cpu in self._free:
            by_node.setdefault(self._places[cpu].node, set()).add(cpu)
        self.by_node = {node: frozenset(cpus) for node, cpus in by_node.items()}

    def check(self, amounts: Mapping[int, Amounts]) -> None:
        """Raise `NodeRefused` unless `choose` can meet the request with these amounts."""
        if len(self._free) < self._request.count:
            raise NodeRefused(TOO_FEW_CPUS)
        counts = self._counts(amounts)
        if amounts and sum(counts.values()) != self._request.count:
            raise NodeRefused(TOO_FEW_CPUS)
        # other CPUs than whole cores are never among the candidates of that policy
        is_whole = self._request.is_required and self._request.bind_policy == FULL_CORES
        if is_whole and any(count % self._per_core for count in counts.values()):
            raise NodeRefused(self._policy_reason())

    def choose(self, amounts: Mapping[int, Amounts]) -> frozenset[int]:
        """Return CPUs for the whole request, as many of each NUMA node as its amount says.

        Without amounts of NUMA nodes all CPUs serve. Raises `NodeRefused`.
        """
        self.check(amounts)
        if not amounts:
            cpus = self._take(self._free, self._request.count)
        else:
            parts = [
                self._take(self.by_node.get(node, frozenset()), count)
                for node, count in self._counts(amounts).items()
            ]
            cpus = frozenset[int]().union(*parts)
        if self._request.is_required and not self._meets_policy(cpus):
            raise NodeRefused(self._policy_reason())
        return cpus

    def _counts(self, amounts: Mapping[int, Amounts]) -> dict[int, int]:
        """Return how many CPUs each NUMA node gives."""
        return {
            node: min(amount.get(CPU, 0) // MILLI, len(self.by_node.get(node, ())))
            for node, amount in amounts.items()
        }

    def _policy_reason(self) -> str:
        policy = self._request.bind_policy
        return f"insufficient CPUs to satisfy required cpu bind policy {policy}"

    def _take(self, free: frozenset[int], count: int) -> frozenset[int]:
        return self._search.choose(free, count) or frozenset()

    def _usable(self, free: Iterable[int]) -> frozenset[int]:
        """Return the free CPUs that a required policy leaves: whole cores, or one of each core."""
        if not self._request.is_required:
            return frozenset(free)
        by_core = self._by_core(free)
        if self._request.bind_policy == SPREAD:
            return frozenset(min(cpus) for cpus in by_core.values())
        whole = (cpus for cpus in by_core.values() if len(cpus) == self._per_core)
        return frozenset(cpu for cpus in whole for cpu in cpus)

    def _meets_policy(self, cpus: Iterable[int]) -> bool:
        size = 1 if self._request.bind_policy == SPREAD else self._per_core
        return all(len(cpus) == size for cpus in self._by_core(cpus).values())

    def _by_core(self, cpus: Iterable[int]) -> dict[tuple[int, int, int], list[int]]:
        by_core: dict[tuple[int, int, int], list[int]] = {}
        for cpu in cpus:
            by_core.setdefault(self._places[cpu].core_key, []).append(cpu)
        return by_core


def place_of(state: NumaState, cpu: int) -> CpuPlace | None:
    """Return where a CPU of a node is; `None` if it has no such CPU."""
    return None if state.cpus is None else state.cpus.places.get(cpu)
