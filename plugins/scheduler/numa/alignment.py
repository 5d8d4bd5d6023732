"""Chooses CPUs and NUMA nodes of one node for one pod, together with its devices. Pure.

Order and texts as in Koordinator's `pkg/scheduler/plugins/nodenumaresource`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from plugins.scheduler.devices.allocator import (
    DEFAULT_RULES,
    DeviceChoices,
    NodeRefused,
    NodeState,
    Rules,
    allocate,
    designated_devices,
)
from plugins.scheduler.devices.device_table import GPU, Amounts, DeviceTable
from plugins.scheduler.devices.requests import DeviceRequest
from plugins.scheduler.devices.scores import ScoringStrategy
from plugins.scheduler.numa.cpu_choice import (
    MILLI,
    FreeCpus,
    NumaPod,
    NumaState,
    cpu_request,
    place_of,
)
from plugins.scheduler.numa.cpu_request import (
    FULL_CORES,
    NODE_NUMA_POLICY,
    CpuRequest,
    PodNumaRequest,
    PodRequest,
)
from plugins.scheduler.numa.hints import (
    RESTRICTED,
    Exclusive,
    NodeSet,
    NumaHint,
    ResourceHints,
    align,
    node_sets,
    prefer_smallest,
)
from plugins.scheduler.pod_object import CPU

SAME_CARDS_SCORE = 500  # of device hints whose GPUs are those of the whole node
NUMA_SCORING = ScoringStrategy(weights={"cpu": 1, "memory": 1})


class PodPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs, NUMA nodes and devices for a pod. Without CPUs of its own it shares the others."""

    cpus: frozenset[int] = frozenset()
    cpu_request: CpuRequest | None = None  # that the CPUs meet
    amounts: Mapping[int, Amounts] = {}  # by NUMA node
    devices: DeviceChoices = ()


def align_pod(
    node: NodeState,
    state: NumaState,
    request: PodRequest,
    rules: Rules = DEFAULT_RULES,
    strategy: ScoringStrategy | None = None,
    *,
    is_trial: bool = False,
) -> PodPlacement:
    """Return CPUs, NUMA nodes and devices for the pod; raise `NodeRefused`.

    A trial does not choose the CPUs, only whether there are any.
    """
    policy = numa_policy(state, request.numa)
    cpu = cpu_request(state, request.numa)
    check_amplified_cpu(state, request.numa.cpu_milli, is_bound=cpu is not None)
    alignment = _Alignment(node, state, request, cpu, rules, strategy, is_trial=is_trial)
    return alignment.align(policy) if policy else alignment.allocate_anywhere()


def numa_policy(state: NumaState, request: PodNumaRequest) -> str:
    """Return the policy in force; empty for none; raise `NodeRefused` if pod and node differ."""
    on_node = _policy(state.labels.get(NODE_NUMA_POLICY, ""))
    if not on_node and state.cpus is not None:
        on_node = state.cpus.kubelet_numa_policy
    of_pod = _policy(request.numa.numa_topology_policy)
    if on_node and of_pod and on_node != of_pod:
        raise NodeRefused("node(s) NUMA Topology policy not match", is_final=True)
    return of_pod or on_node


def _policy(text: str) -> str:
    return "" if text == "None" else text


def check_amplified_cpu(state: NumaState, cpu_milli: int, *, is_bound: bool) -> None:
    """Raise `NodeRefused` unless a node with amplified CPU has enough for the pod.

    CPUs of CPU sets count as often as the node offers them.
    """
    capacity = state.capacity
    if not cpu_milli or capacity.ratio == 1:
        return
    if capacity.ratio is None:
        raise NodeRefused("node(s) invalid CPU amplification ratio", is_final=True)
    in_sets = MILLI * len(frozenset[int]().union(*(pod.cpus for pod in state.pods)))
    used = state.requested_milli
    if used >= in_sets:
        used += amplify(in_sets, capacity.ratio) - in_sets
    milli = amplify(cpu_milli, capacity.ratio) if is_bound else cpu_milli
    if milli > capacity.allocatable_milli - used:
        raise NodeRefused("Insufficient amplified cpu")


def amplify(amount: int, ratio: float) -> int:
    """Return an amount as a node with amplified resources counts it."""
    return amount if ratio <= 1 else math.ceil(amount * ratio)


class _Alignment:
    """One pod on one node."""

    def __init__(
        self,
        node: NodeState,
        state: NumaState,
        request: PodRequest,
        cpu: CpuRequest | None,
        rules: Rules,
        strategy: ScoringStrategy | None,
        *,
        is_trial: bool,
    ) -> None:
        self._node = node
        self._is_trial = is_trial
        self._state = state
        self._request = request
        self._cpu = cpu
        self._rules = rules
        self._strategy = strategy
        self._ratio = state.capacity.ratio or 1.0
        self._cpus = None if cpu is None else FreeCpus(state, cpu)
        zones = {} if state.cpus is None else state.cpus.zones
        self._totals = {numa: self._amplified(amounts) for numa, amounts in zones.items()}
        self._free = {numa: self._zone_free(numa) for numa in zones}
        names = {name for zone in zones.values() for name in zone}
        self._amounts = {
            name: amount for name, amount in request.amounts.items() if amount and name in names
        }

    def allocate_anywhere(self) -> PodPlacement:
        """Allocate without a constraint on NUMA nodes."""
        return PodPlacement(
            cpus=self._choose_cpus({}), cpu_request=self._cpu, devices=self._devices(None)
        )

    def align(self, policy: str) -> PodPlacement:
        """Merge the hints of CPU, memory and devices, and allocate within the result."""
        if not self._totals:
            raise NodeRefused("node(s) missing NUMA resources", is_final=True)
        providers = [self._compute_hints(policy)]
        if self._request.devices is not None and self._rules.aligns_devices:
            providers.append(device_hints(self._node, self._request.devices, self._rules))
        alignment = align(policy, providers, frozenset(self._totals), self._exclusive())
        if alignment.affinity is None:
            raise NodeRefused("; ".join(alignment.reasons))
        nodes = alignment.affinity.nodes
        if nodes is None:
            return self.allocate_anywhere()
        amounts = self._split(nodes)
        return PodPlacement(
            cpus=self._choose_cpus(amounts),
            cpu_request=self._cpu,
            amounts=amounts,
            devices=self._devices(nodes),
        )

    def _choose_cpus(self, amounts: Mapping[int, Amounts]) -> frozenset[int]:
        if self._cpus is None:
            return frozenset()
        if self._is_trial:
            self._cpus.check(amounts)
            return frozenset()
        return self._cpus.choose(amounts)

    def _devices(self, nodes: NodeSet | None) -> DeviceChoices:
        request = self._request.devices
        if request is None:
            return ()
        numa_nodes = nodes if self._rules.aligns_devices else None
        return allocate(
            self._node, request, self._rules, strategy=self._strategy, numa_nodes=numa_nodes
        )

    # What is free

    def _amplified(self, amounts: Amounts) -> Amounts:
        if CPU not in amounts:
            return amounts
        return {**amounts, CPU: amplify(amounts[CPU], self._ratio)}

    def _zone_free(self, numa: int) -> Amounts:
        """Return what is free on a NUMA node, as CPUs only those that the request can use."""
        free = dict(self._totals[numa])
        if not self._rules.upstream_compatible:  # Koordinator counts pods with a record alone
            for name, amount in self._state.unrecorded.items():
                free[name] = free.get(name, 0) - amount // len(self._totals)
        for pod in self._state.pods:
            for name, amount in pod.amounts.get(numa, {}).items():
                free[name] = free.get(name, 0) - amount
        if self._ratio > 1 and CPU in free:
            bound = MILLI * sum(len(self._cpus_of(pod, numa)) for pod in self._state.pods)
            free[CPU] -= amplify(bound, self._ratio) - bound
        if self._cpu is not None and self._cpus is not None and free.get(CPU, 0) > 0:
            is_limited = self._cpu.is_required or not self._rules.upstream_compatible
            usable = MILLI * len(self._cpus.by_node.get(numa, ()))
            free[CPU] = min(free[CPU], usable) if is_limited else free[CPU]
        return {name: max(0, amount) for name, amount in free.items()}

    def _cpus_of(self, pod: NumaPod, numa: int) -> list[int]:
        return [cpu for cpu in pod.cpus if self._numa_of(cpu) == numa]

    def _numa_of(self, cpu: int) -> int | None:
        place = place_of(self._state, cpu)
        return None if place is None else place.node

    # Hints

    def _compute_hints(self, policy: str) -> ResourceHints:
        sets: list[tuple[NodeSet, int]] = []
        for nodes in node_sets(self._totals):
            try:
                amounts = self._split(nodes)
                if self._cpus is not None:
                    self._cpus.check(amounts)
            except NodeRefused:
                continue
            sets.append((nodes, self._score(nodes)))
        return {
            name: self._hints_of(name, sets, is_restricted=policy == RESTRICTED)
            for name in sorted(self._amounts)
        }

    def _hints_of(
        self, name: str, sets: Iterable[tuple[NodeSet, int]], *, is_restricted: bool
    ) -> tuple[NumaHint, ...]:
        """Return the sets whose nodes all have some of the resource."""
        usable = [
            (nodes, score)
            for nodes, score in sets
            if all(self._free[numa].get(name, 0) for numa in nodes)
        ]
        if is_restricted:
            return tuple(NumaHint(nodes, score=score) for nodes, score in usable)
        return prefer_smallest(usable)

    def _score(self, nodes: NodeSet) -> int:
        total: dict[str, int] = {}
        free: dict[str, int] = {}
        for numa in nodes:
            for name, amount in self._totals[numa].items():
                total[name] = total.get(name, 0) + amount
                free[name] = free.get(name, 0) + self._free[numa].get(name, 0)
        requested = self._amounts if self._cpu is None else self._amplified(self._amounts)
        return NUMA_SCORING.score(total, free, requested)

    def _exclusive(self) -> Exclusive:
        spec = self._request.numa.numa
        single: set[int] = set()
        shared: set[int] = set()
        for pod in self._state.pods:
            nodes = {self._numa_of(cpu) for cpu in pod.cpus} - {None}
            (single if len(nodes) == 1 else shared).update(
                node for node in nodes if node is not None
            )
        return Exclusive(
            is_required=spec.exclusive == "Required"
            or (bool(_policy(spec.numa_topology_policy)) and not spec.exclusive),
            is_preferred=spec.exclusive == "Preferred" and not self._rules.upstream_compatible,
            single=frozenset(single - shared),
            shared=frozenset(shared),
        )

    # Amounts of NUMA nodes

    def _split(self, nodes: NodeSet) -> Mapping[int, Amounts]:
        """Split the request evenly over NUMA nodes; raise `NodeRefused`.

        Later ones take what the ones before them could not.
        """
        by_node: dict[int, dict[str, int]] = {}
        for name, amount in sorted(self._amounts.items()):
            remaining = amount
            ordered = self._split_order(name, nodes)
            for position, numa in enumerate(ordered):
                share = self._share(name, remaining, len(ordered) - position)
                part = min(self._splittable(name, numa), share)
                if part:
                    by_node.setdefault(numa, {})[name] = part
                    remaining -= part
            if remaining:
                raise NodeRefused(f"Insufficient NUMA {name}")
        return dict(sorted(by_node.items()))

    def _split_order(self, name: str, nodes: NodeSet) -> list[int]:
        """Return the nodes in the order in which a split fills them.

        Koordinator means to begin with the one that has the least, but compares the amounts of the
        nodes whose numbers are the positions in the list. Whether a pod fits depends on that, so
        that ours does the same.
        """
        ordered = sorted(nodes)
        for start in range(1, len(ordered)):
            for position in range(start, 0, -1):
                one, other = (
                    self._free.get(at, {}).get(name, 0) for at in (position, position - 1)
                )
                if one >= other:
                    break
                ordered[position], ordered[position - 1] = ordered[position - 1], ordered[position]
        return ordered

    def _share(self, name: str, remaining: int, count: int) -> int:
        if name != CPU or self._cpu is None:
            return remaining // count
        unit = self._unit()
        return -(-remaining // MILLI) * MILLI // unit // count * unit

    def _splittable(self, name: str, numa: int) -> int:
        free = self._free[numa].get(name, 0)
        if name != CPU or self._cpu is None or self._rules.upstream_compatible:
            return free
        return free // self._unit() * self._unit()

    def _unit(self) -> int:
        """Return what a split keeps whole: CPUs, or cores if those are required."""
        cpu, cpus = self._cpu, self._state.cpus
        if cpu is None or cpus is None or not cpu.is_required or cpu.bind_policy != FULL_CORES:
            return MILLI
        return MILLI * cpus.counts.per_core


def device_hints(
    node: NodeState, request: DeviceRequest, rules: Rules = DEFAULT_RULES
) -> ResourceHints:
    """Return the sets of NUMA nodes that can give the devices, the same for each kind.

    Empty for devices whose places are not known. Raises `NodeRefused` if the whole node cannot
    give them. Designated devices leave one set: their own NUMA nodes.
    """
    if node.table is None:
        return {}
    if request.designation:
        nodes = _designated_nodes(node.table, request)
        allocate(node, request, rules, numa_nodes=nodes)
        hint = NumaHint(nodes, score=SAME_CARDS_SCORE)
        return {kind.kind: (hint,) for kind in request.kinds}
    places = {
        device.numa_node
        for of_kind in node.table.devices.values()
        for device in of_kind
        if device.has_topology and device.numa_node >= 0
    }
    if not places:
        return {}
    for kind in request.kinds:
        placed = sum(device.has_topology for device in node.table.of(kind.kind))
        if not kind.applies_for_all and kind.count > placed:
            raise NodeRefused("Insufficient NUMA Scoped Devices", is_final=True)
    everywhere = _cards(allocate(node, request, rules, numa_nodes=frozenset(places)))
    sets: list[tuple[NodeSet, int]] = []
    for nodes in node_sets(places):
        try:
            choices = allocate(node, request, rules, numa_nodes=nodes)
        except NodeRefused:
            continue
        sets.append((nodes, SAME_CARDS_SCORE if _cards(choices) == everywhere else 0))
    hints = prefer_smallest(sets)
    return {kind.kind: hints for kind in request.kinds}


def _designated_nodes(table: DeviceTable, request: DeviceRequest) -> NodeSet:
    """Return the NUMA nodes of the designated devices; raise `NodeRefused` if one has none."""
    keys = designated_devices(table, request)
    devices = [
        device
        for of_kind in table.devices.values()
        for device in of_kind
        if (device.kind, device.minor) in keys
    ]
    if any(not device.has_topology or device.numa_node < 0 for device in devices):
        raise NodeRefused("Designated Allocation Lack NUMA Node ID")
    return frozenset(device.numa_node for device in devices)


def _cards(choices: DeviceChoices) -> frozenset[int]:
    return frozenset(one.device.minor for one in choices if one.device.kind == GPU)
