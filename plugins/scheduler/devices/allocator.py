"""Chooses the devices of one node for one pod, or reports why the node does not have them. Pure.

Order and texts are those of Koordinator's `pkg/scheduler/plugins/deviceshare`. Where its behaviour
is a defect, this module differs, unless `Rules.upstream_compatible` is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import zip_longest

import msgspec

from agent.errors import AgentError
from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    HONOR,
    MODEL_LABEL,
    NO_LABELS,
    POLICY_LABEL,
    UNKNOWN,
    VENDOR_LABEL,
    Amounts,
    DeviceFunction,
    DeviceTable,
    Labels,
    NodeDevice,
    PartitionTable,
    built_in_partitions,
)
from plugins.scheduler.devices.device_usage import (
    NO_USAGE,
    DeviceKey,
    NodeDeviceUsage,
    minors_by_id,
)
from plugins.scheduler.devices.partitions import choose_partition
from plugins.scheduler.devices.requests import (
    APPLY_FOR_ALL,
    ISOLATION_LABEL,
    NO_MATCH,
    NPU_CORE,
    PCIE_LEVEL,
    RESTRICTED,
    SAME_PCIE,
    SHARED_TEMPLATES,
    WHOLE_CARD_RESOURCES,
    DeviceRequest,
    InvalidRequest,
    KindRequest,
    SharedTemplates,
    is_of_other_vendor,
    matching_template,
)
from plugins.scheduler.devices.scores import ScoringStrategy
from plugins.scheduler.devices.topology_tree import SCOPE_DEPTHS, TreeSearch
from plugins.scheduler.devices.vendor_limits import vendor_refusal

NOT_DESIGNATED = "node(s) do not have the designated devices"


class NodeRefused(AgentError):
    """The node does not have the devices; `is_final`: not even without its pods."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_final = is_final


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the plug-in that decide on devices."""

    upstream_compatible: bool = False  # repeat Koordinator's defects
    # Koordinator ignores the policy `PCIeLevel`: pods that run there would wait here
    enforces_exclusive_policy: bool = False
    requires_device_object: bool = True
    unshared_models: frozenset[tuple[str, str]] = frozenset()  # vendor and model
    # vendors' own device plug-ins serve the pods, within what annotations can tell them
    serves_vendor_plugins: bool = False
    templates: SharedTemplates = SHARED_TEMPLATES
    aligns_devices: bool = True  # to NUMA nodes, where a policy asks for alignment


DEFAULT_RULES = Rules()


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One allocated device of a pod, with its amounts."""

    device: NodeDevice
    amounts: Amounts
    function: DeviceFunction | None = None
    template: str = ""

    def as_allocated(self) -> AllocatedDevice:
        """Return the entry as the index of allocations has it."""
        return AllocatedDevice(
            type=self.device.kind,
            id=self.device.id,
            minor=self.device.minor,
            resources=tuple(self.amounts.items()),
            vfs=() if self.function is None else (self.function.bus_id,),
            template=self.template,
        )


DeviceChoices = tuple[DeviceChoice, ...]  # by kind in the order of the request, then minor


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node that a decision reads."""

    name: str
    labels: Labels = NO_LABELS
    table: DeviceTable | None = None  # None: the node has no Device object
    usage: NodeDeviceUsage = NO_USAGE

    @property
    def device_labels(self) -> Labels:
        """Return the labels of the Device object, and over them those of the Node."""
        return self.labels if self.table is None else {**self.table.labels, **self.labels}


def check_request(request: DeviceRequest, rules: Rules = DEFAULT_RULES) -> None:
    """Raise `InvalidRequest` for a request that no model of any node can satisfy."""
    gpu = request.of(GPU)
    if gpu is None or not gpu.is_shared or NPU_CORE not in gpu.amounts:
        return
    if not any(matching_template(model, gpu.amounts) for model in rules.templates.values()):
        raise InvalidRequest(NO_MATCH)


def filter_node(
    node: NodeState,
    request: DeviceRequest,
    rules: Rules = DEFAULT_RULES,
    numa_nodes: frozenset[int] | None = None,
) -> None:
    """Raise `NodeRefused` if the node does not have the devices for the pod now."""
    vendor, model = node.labels.get(VENDOR_LABEL, ""), node.labels.get(MODEL_LABEL, "")
    if any(is_of_other_vendor(name, vendor) for name in request.resources):
        raise NodeRefused("node(s) have devices of another vendor", is_final=True)
    if request.is_shared:
        provider = request.isolation_provider
        if provider and node.labels.get(ISOLATION_LABEL) != provider:
            reason = "GPUIsolationProviderHAMICore not found on the node"
            raise NodeRefused(reason, is_final=True)
        if (vendor, model) in rules.unshared_models:
            reason = f'model "{model}" of vendor "{vendor}" does not support GPU Share'
            raise NodeRefused(reason, is_final=True)
    if node.table is None:
        if request.designation:
            raise NodeRefused(NOT_DESIGNATED, is_final=True)
        is_for_kubelet = all(name in WHOLE_CARD_RESOURCES for name in request.resources)
        if is_for_kubelet or not rules.requires_device_object:
            return
        raise NodeRefused("node(s) missing Device", is_final=True)
    allocate(node, request, rules, numa_nodes=numa_nodes, is_trial=True)


def allocate(
    node: NodeState,
    request: DeviceRequest,
    rules: Rules = DEFAULT_RULES,
    *,
    strategy: ScoringStrategy | None = None,
    numa_nodes: frozenset[int] | None = None,
    is_trial: bool = False,
) -> DeviceChoices:
    """Return the devices for the pod; raise `NodeRefused`.

    `strategy` prefers devices among those that serve equally well. `numa_nodes` limits the places.
    Of a kind of which the request designates devices, the pod gets all of these and no others.
    A trial does not choose NICs of a node that is known to have enough of them.
    """
    if node.table is None:
        return ()
    allocation = _Allocation(node, node.table, request, rules, strategy, numa_nodes)
    return allocation.run(is_trial=is_trial)


def has_local_choice(node: NodeState, request: DeviceRequest, rules: Rules = DEFAULT_RULES) -> bool:
    """Return whether joint allocation can give each card devices on its own PCIe root.

    False for pods without joint allocation, and where decisions repeat Koordinator's.
    """
    if node.table is None or request.joint is None or request.is_shared:
        return False
    return _Allocation(node, node.table, request, rules, None, None).has_local_choice()


class _Allocation:
    """The choice for one pod on one node."""

    def __init__(
        self,
        node: NodeState,
        table: DeviceTable,
        request: DeviceRequest,
        rules: Rules,
        strategy: ScoringStrategy | None,
        numa_nodes: frozenset[int] | None,
    ) -> None:
        self._node = node
        self._table = table
        self._usage = node.usage
        self._request = request
        self._rules = rules
        self._strategy = strategy
        self._numa_nodes = numa_nodes
        self._plugin_vendor = (  # whose own device plug-in serves the pod
            node.device_labels.get(VENDOR_LABEL, "") if rules.serves_vendor_plugins else ""
        )

        # virtual functions of each designated device
        self._designation = designated_devices(table, request) if request.designation else {}
        self._designation_kinds = frozenset(kind for kind, _ in self._designation)

    def run(self, *, is_trial: bool) -> DeviceChoices:
        """Choose for all kinds; the primary kind first, then those that follow it."""
        choices = self._choose(is_trial=is_trial)
        if not self._designation:
            return choices
        keys = {(one.device.kind, one.device.minor) for one in choices}
        absent_kinds = {kind.kind for kind in self._request.kinds} - {kind for kind, _ in keys}
        if any(key not in keys and key[0] not in absent_kinds for key in self._designation):
            raise NodeRefused("designated devices do not match the request", is_final=True)
        return choices

    def _choose(self, *, is_trial: bool) -> DeviceChoices:
        joint = self._joint_kinds()
        by_kind: dict[str, DeviceChoices] = {}
        skips_others = (
            is_trial
            and len(joint) > 1
            and not self._request.is_shared
            and self._table.is_secondary_well_planned
        )
        if joint:
            primary, *secondary = joint
            by_kind[primary.kind] = self._allocate_kind(primary)
            pcie = frozenset(one.device.pcie for one in by_kind[primary.kind])
            for kind in () if skips_others else secondary:
                by_kind[kind.kind] = self._allocate_beside(kind, by_kind[primary.kind], pcie)
        for kind in self._request.kinds:
            if kind.kind not in by_kind and not (skips_others and kind.kind != joint[0].kind):
                by_kind[kind.kind] = self._allocate_kind(kind)
        return tuple(
            one
            for kind in self._request.kinds
            for one in sorted(by_kind.get(kind.kind, ()), key=lambda one: one.device.minor)
        )

    def _joint_kinds(self) -> list[KindRequest]:
        """Return the kinds that are allocated together, the primary one first."""
        joint = self._request.joint
        if joint is None or len(self._request.kinds) < 2:
            return []
        kinds = (self._request.of(name) for name in joint.device_types or ())
        return [
            kind
            for kind in kinds
            if kind is not None and self._request.hint(kind.kind).allocate_strategy != APPLY_FOR_ALL
        ]

    def _allocate_beside(
        self, kind: KindRequest, primary: DeviceChoices, pcie: frozenset[str]
    ) -> DeviceChoices:
        """Allocate devices near those of the primary kind, at least one for each PCIe root."""
        joint = self._request.joint
        is_same_pcie = joint is not None and joint.required_scope == SAME_PCIE
        count = max(kind.count, len(pcie)) if is_same_pcie else kind.count
        choices = self._allocate_plain(
            kind, count=count, limit=max(count, len(pcie)), primary=primary
        )
        if is_same_pcie and {one.device.pcie for one in choices} != pcie:
            raise NodeRefused("node(s) Device Joint-Allocate rules violation")
        return choices

    def _allocate_kind(self, kind: KindRequest) -> DeviceChoices:
        if kind.kind == GPU:
            return self._allocate_gpus(kind)
        count = kind.count
        if kind.applies_for_all:
            hint = self._request.hint(kind.kind)
            count = sum(hint.selects(device.labels) for device in self._table.of(kind.kind))
        return self._allocate_plain(kind, count=count, limit=count)

    # GPUs

    def _allocate_gpus(self, kind: KindRequest) -> DeviceChoices:
        self._check_vendor(kind)
        template = self._template(kind)
        devices = self._partition(kind) or self._from_tree(kind)
        if devices is None:
            choices = self._allocate_plain(kind, count=kind.count, limit=kind.count)
            devices = tuple(one.device for one in choices)
        return tuple(
            DeviceChoice(
                device=device, amounts=fill_memory(kind.amounts, device.total), template=template
            )
            for device in devices
        )

    def _check_vendor(self, kind: KindRequest) -> None:
        """Raise `NodeRefused` if the vendor's plug-in could serve the pod with no healthy card."""
        if not self._plugin_vendor:
            return
        refusals = [self._vendor_refusal(kind, one) for one in self._table.of(GPU) if one.total]
        if refusals and all(refusals):
            raise NodeRefused(refusals[0], is_final=True)

    def _vendor_refusal(self, kind: KindRequest, card: NodeDevice) -> str:
        amounts = fill_memory(kind.amounts, card.total)
        return vendor_refusal(self._plugin_vendor, kind.count, amounts)

    def _template(self, kind: KindRequest) -> str:
        """Return the template of a virtual NPU; empty for a request that needs none."""
        if not kind.is_shared or NPU_CORE not in kind.amounts:
            return ""
        labels = self._node.labels
        model = f"{labels.get(VENDOR_LABEL, '')}-{labels.get(MODEL_LABEL, '')}"
        template = matching_template(self._rules.templates.get(model, {}), kind.amounts)
        if not template:
            raise NodeRefused(NO_MATCH, is_final=True)
        return template

    def _partition(self, kind: KindRequest) -> tuple[NodeDevice, ...] | None:
        """Return the devices of a partition; `None` if the pod may have others, too."""
        spec = self._request.partition
        table, policy = self._partition_table()
        is_honored = spec is not None or policy == HONOR
        if kind.is_shared or (table is None and not is_honored):
            return None
        try:
            return self._partition_devices(kind, table)
        except NodeRefused:
            if is_honored:
                raise
            return None

    def _partition_table(self) -> tuple[PartitionTable | None, str]:
        """Return the table and the policy, both of the Device object if that has a table."""
        if self._table.partitions is not None:
            return self._table.partitions, self._table.labels.get(POLICY_LABEL, "")
        built_in = built_in_partitions(self._node.labels)
        return built_in, self._node.labels.get(POLICY_LABEL, "")

    def _partition_devices(
        self, kind: KindRequest, table: PartitionTable | None
    ) -> tuple[NodeDevice, ...]:
        if table is None:
            raise NodeRefused("node(s) missing GPU Partition Table", is_final=True)
        if kind.count not in table:
            raise NodeRefused("node(s) Unsupported number of GPU requests", is_final=True)
        spec = self._request.partition
        used = {one.minor for one in self._table.of(GPU) if self._usage.is_used(one)}
        usable = {
            candidate.minor: candidate
            for candidate in self._candidates(kind)
            if candidate.minor not in used and self._fits(kind.amounts, candidate)
        }
        partition = choose_partition(
            table,
            kind.count,
            usable.__contains__,
            lambda minor: minor not in used,
            bandwidth=None if spec is None else spec.bandwidth,
            best_score_only=spec is not None and spec.allocate_policy == RESTRICTED,
            lowest_score_first=self._rules.upstream_compatible,
        )
        if partition is None:
            raise NodeRefused("Insufficient Partitioned GPU Devices")
        return tuple(usable[minor] for minor in partition.minors)

    def _from_tree(self, kind: KindRequest) -> tuple[NodeDevice, ...] | None:
        """Return the devices of the narrowest part; `None` if places are unknown or unused."""
        scope = self._request.hint(GPU).required_topology_scope
        devices = self._table.of(GPU)
        if not devices:
            return None
        if not all(device.has_topology for device in devices):
            if scope:
                raise NodeRefused("node(s) missing GPU Device Topology Tree", is_final=True)
            return None
        if kind.is_shared and kind.count > 1:
            if scope:
                raise NodeRefused("node(s) Unsupported Multi-Shared GPU", is_final=True)
            return None
        search = TreeSearch(
            count=kind.count,
            fits=partial(self._fits, kind.amounts),
            is_used=self._usage.is_used,
            scope_depth=SCOPE_DEPTHS.get(scope, 0),
            is_shared=kind.is_shared,
            score=None if self._strategy is None else partial(self._tree_score, kind.amounts),
            uses_switches=not self._rules.upstream_compatible,
        )
        candidates = self._candidates(kind)
        found = search.find(self._beside_others(candidates)) or search.find(candidates)
        if not found:
            scoped = "Topology Scoped GPU" if scope else "GPU"
            raise NodeRefused(f"Insufficient {scoped} Devices")
        return found

    def _beside_others(self, cards: list[NodeDevice]) -> list[NodeDevice]:
        """Return the cards on PCIe roots that have a free device of each kind allocated jointly.

        None for pods without joint allocation, and where `SamePCIe` is required: Koordinator looks
        at the cards alone then, so that a pod would fit there and not here.
        """
        joint = self._request.joint
        if joint is None or joint.required_scope == SAME_PCIE or self._rules.upstream_compatible:
            return []
        others = self._joint_kinds()[1:]
        if not others:
            return []
        roots = frozenset.intersection(*map(self._roots_with, others))
        return [card for card in cards if card.pcie in roots]

    def _roots_with(self, kind: KindRequest) -> frozenset[str]:
        """Return the PCIe roots with a free device of that kind."""
        needs_function = self._request.hint(kind.kind).vf_selector is not None
        return frozenset(
            candidate.pcie
            for candidate in self._candidates(kind)
            if self._fits(kind.amounts, candidate)
            and (not needs_function or self._function(candidate) is not None)
        )

    def has_local_choice(self) -> bool:
        """Return whether each card can have devices of all other joint kinds on its PCIe root."""
        gpu = self._request.of(GPU)
        if gpu is None:
            return False
        near = self._beside_others(self._candidates(gpu))
        return sum(self._fits(gpu.amounts, card) for card in near) >= gpu.count

    # Any kind

    def _candidates(self, kind: KindRequest) -> list[NodeDevice]:
        hint, numa_nodes = self._request.hint(kind.kind), self._numa_nodes
        devices = [
            device
            for device in self._table.of(kind.kind)
            if device.total
            and hint.selects(device.labels)
            and (
                numa_nodes is None
                or (device.has_topology and device.numa_node in (*numa_nodes, UNKNOWN))
            )
        ]
        if kind.kind in self._designation_kinds:
            devices = [
                device for device in devices if (device.kind, device.minor) in self._designation
            ]
        if kind.kind == GPU and self._plugin_vendor:
            devices = [device for device in devices if not self._vendor_refusal(kind, device)]
        if hint.exclusive_policy == PCIE_LEVEL and self._rules.enforces_exclusive_policy:
            used = {one.pcie for one in self._table.of(kind.kind) if self._usage.is_used(one)}
            devices = [device for device in devices if device.pcie not in used]
        return devices

    def _allocate_plain(
        self, kind: KindRequest, *, count: int, limit: int, primary: DeviceChoices = ()
    ) -> DeviceChoices:
        """Return at least `count` and at most `limit` devices, near the primary ones if any."""
        name, devices = kind.kind, self._table.of(kind.kind)
        if not devices or not count:
            raise NodeRefused(f"Insufficient {name} devices", is_final=True)
        needs_function = self._request.hint(name).vf_selector is not None
        if needs_function and not any(device.function_groups for device in devices):
            raise NodeRefused(f"Insufficient {name} VirtualFunctions", is_final=True)
        candidates = sorted(
            self._candidates(kind), key=lambda device: -self._score(kind.amounts, device)
        )
        choices: list[DeviceChoice] = []
        for device in self._by_distance(candidates, primary) if primary else candidates:
            if len(choices) == limit:
                break
            if not self._fits(kind.amounts, device):
                continue
            function = self._function(device) if needs_function else None
            if function is not None or not needs_function:
                choices.append(DeviceChoice(device=device, amounts=kind.amounts, function=function))
        if len(choices) < count:
            raise NodeRefused(f"Insufficient {name} devices")
        return tuple(choices)

    def _by_distance(
        self, candidates: list[NodeDevice], primary: DeviceChoices
    ) -> Iterator[NodeDevice]:
        """Yield devices on the PCIe roots of the primary ones in turns, then by NUMA and socket.

        Of a root, those on the switches of the primary ones come first, in turns as well.
        """
        roots = {one.device.pcie for one in primary}
        by_root: dict[str, list[NodeDevice]] = {}
        others: list[NodeDevice] = []
        for device in candidates:
            (by_root.setdefault(device.pcie, []) if device.pcie in roots else others).append(device)
        switches = {one.device.switch for one in primary} - {""}
        if switches and not self._rules.upstream_compatible:
            by_root = {
                root: _switches_first(devices, switches) for root, devices in by_root.items()
            }
        order = {device.minor: position for position, device in enumerate(candidates)}
        for in_turn in zip_longest(*by_root.values()):
            devices = [device for device in in_turn if device is not None]
            yield from sorted(devices, key=lambda device: order[device.minor])
        yield from others if self._rules.upstream_compatible else _nearest_first(others, primary)

    def _function(self, device: NodeDevice) -> DeviceFunction | None:
        """Return the free virtual function with the smallest bus id that the pod may have."""
        selector = self._request.hint(device.kind).vf_selector
        taken = self._usage.allocated_functions(device)
        functions = self._designation.get((device.kind, device.minor), ())
        free = (
            function
            for group in device.function_groups
            if selector is None or selector.matches(group.labels)
            for function in group.functions
            if function.bus_id not in taken and (not functions or function.bus_id in functions)
        )
        return min(free, key=lambda function: function.bus_id, default=None)

    def _fits(self, amounts: Amounts, device: NodeDevice) -> bool:
        free = self._usage.free(device)
        if self._rules.upstream_compatible:
            return all(amount <= free.get(name, amount) for name, amount in amounts.items())
        # that of pods in bytes is rounded down to percents: those may be free without the memory
        memory = fill_memory(amounts, device.total).get(GPU_MEMORY, 0)
        fits = all(amount <= free.get(name, -1) for name, amount in amounts.items())
        return fits and memory <= free.get(GPU_MEMORY, 0)

    def _score(self, amounts: Amounts, device: NodeDevice) -> int:
        if self._strategy is None:
            return 0
        return self._strategy.device_score(device, self._usage, amounts)

    def _tree_score(self, amounts: Amounts, device: NodeDevice) -> int:
        if self._strategy is not None and self._rules.upstream_compatible:
            return self._strategy.swapped_score(device.total, self._usage.free(device), amounts)
        return self._score(amounts, device)


def designated_devices(
    table: DeviceTable, request: DeviceRequest
) -> Mapping[DeviceKey, tuple[str, ...]]:
    """Return the virtual functions of each designated device; raise `NodeRefused` without it.

    A device is meant by its id, because minors may change; without an id by its minor.
    """
    minors = minors_by_id(table)
    keys = {(device.kind, device.minor) for of in table.devices.values() for device in of}
    functions: dict[DeviceKey, tuple[str, ...]] = {}
    for one in request.designation:
        minor = minors.get((one.type, one.id)) if one.id else one.minor
        if minor is None or (one.type, minor) not in keys:
            raise NodeRefused(NOT_DESIGNATED, is_final=True)
        functions[one.type, minor] = one.vfs
    return functions


def _switches_first(devices: list[NodeDevice], switches: set[str]) -> list[NodeDevice]:
    """Return the devices of one root: of these switches in turns, then the others."""
    by_switch: dict[str, list[NodeDevice]] = {}
    for device in devices:
        if device.switch in switches:
            by_switch.setdefault(device.switch, []).append(device)
    turns = zip_longest(*by_switch.values())
    near = [device for in_turn in turns for device in in_turn if device is not None]
    return near + [device for device in devices if device.switch not in switches]


def _nearest_first(devices: Iterable[NodeDevice], primary: DeviceChoices) -> list[NodeDevice]:
    numa_nodes = {one.device.numa_node for one in primary} - {UNKNOWN}
    sockets = {one.device.socket for one in primary} - {UNKNOWN}

    def distance(device: NodeDevice) -> int:
        if device.numa_node in numa_nodes:
            return 0
        return 1 if device.socket in sockets else 2

    return sorted(devices, key=distance)


def fill_memory(amounts: Amounts, total: Mapping[str, int]) -> Amounts:
    """Return the amounts with both forms of memory, each computed from the other, rounded down."""
    memory = total.get(GPU_MEMORY, 0)
    if GPU_MEMORY_RATIO in amounts:
        return {**amounts, GPU_MEMORY: amounts[GPU_MEMORY_RATIO] * memory // 100}
    if GPU_MEMORY in amounts and memory:
        return {**amounts, GPU_MEMORY_RATIO: amounts[GPU_MEMORY] * 100 // memory}
    return amounts
