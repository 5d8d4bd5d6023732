"""Finds the NUMA node of a PCI function, with the rule that determined it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from agent.errors import ParseError
from agent.snapshot.cpu import UNKNOWN_NODE, CpuTopology, NumaTopology
from agent.snapshot.device import (
    Device,
    DeviceKind,
    Placement,
    VendorDevice,
    pci_address_of,
)
from agent.snapshot.inventory import Problem
from agent.snapshot.pci import (
    FilePlace,
    NumaOverride,
    PciFunction,
    PciTree,
    TopologyFile,
)
from agent.topology.distance import near_disks, nvme_positions, position_of
from agent.topology.pcie_link import degradation
from agent.topology.switches import switch_chips, switches_above
from agent.wire_formats.device_info import NUMA_NODE_FACT, PCIE_ROOT_FACT, SOURCE_FILE_FACT


class NumaPlacement(NamedTuple):
    """A NUMA node with CPUs, or -1, and the rule that determined it."""

    node: int
    source: str


class PlacementRules(msgspec.Struct, frozen=True):
    """Settings of people that add to the firmware's data."""

    overrides: tuple[NumaOverride, ...] = ()
    file: TopologyFile | None = None


NO_RULES = PlacementRules()


def override_problems(rules: PlacementRules, tree: PciTree, numa: NumaTopology) -> tuple[str, ...]:
    """Return texts for overrides without effect: no such function, or no such NUMA node."""
    problems = []
    for override in rules.overrides:
        if not any(override.matches(function) for function in tree.functions.values()):
            problems.append(f"numa override {override.match}: matches no function")
        if numa.near(override.node) == UNKNOWN_NODE:
            problems.append(f"numa override {override.match}: no memory node {override.node}")
    return tuple(problems)


class NumaNodeFinder:
    """Finds the NUMA nodes of functions of one tree; shared intermediate results are cached."""

    def __init__(self, tree: PciTree, numa: NumaTopology, rules: PlacementRules = NO_RULES) -> None:
        self._tree = tree
        self._numa = numa
        self._rules = rules
        self._cpu_nodes = tuple(node for node in numa.nodes if node.cpus)
        self._below: Mapping[str, frozenset[int]] | None = None

    def numa_node(self, function: PciFunction) -> NumaPlacement:
        """Return the result of the first rule that has one; never a guess."""
        rules = (
            ("override", self._override),
            ("firmware", self._firmware_node),
            ("pf", self._physical),
            ("parent", self._parent),
            ("local_cpus", self._local_cpus),
            ("siblings", self._siblings),
            ("topology_file", self._file),
            ("single", self._single),
        )
        for source, rule in rules:
            if (node := rule(function)) != UNKNOWN_NODE:
                return NumaPlacement(node, source)
        return NumaPlacement(UNKNOWN_NODE, "unknown")

    def _override(self, function: PciFunction) -> int:
        for override in self._rules.overrides:
            if override.matches(function):
                return self._numa.near(override.node)
        return UNKNOWN_NODE

    def _firmware_node(self, function: PciFunction) -> int:
        return UNKNOWN_NODE if function.gone else self._numa.near(function.numa_node)

    def _physical(self, function: PciFunction) -> int:
        physical = self._tree.physical(function)
        return self.numa_node(physical).node if physical is not None else UNKNOWN_NODE

    def _parent(self, function: PciFunction) -> int:
        for address in reversed(function.bridges):
            bridge = self._tree.get(address)
            if bridge is not None and (node := self._firmware_node(bridge)) != UNKNOWN_NODE:
                return node
        return UNKNOWN_NODE

    def _local_cpus(self, function: PciFunction) -> int:
        # without a node the kernel prints all online CPUs: with one node that proves nothing
        if not function.local_cpus or len(self._cpu_nodes) < 2:
            return UNKNOWN_NODE
        nodes = [node.id for node in self._cpu_nodes if node.cpus & function.local_cpus]
        return nodes[0] if len(nodes) == 1 else UNKNOWN_NODE

    def _siblings(self, function: PciFunction) -> int:
        if self._below is None:
            self._below = self._nodes_below()
        for above in reversed(function.path[:-1]):
            if nodes := self._below.get(above):
                return next(iter(nodes)) if len(nodes) == 1 else UNKNOWN_NODE
        return UNKNOWN_NODE

    def _nodes_below(self) -> Mapping[str, frozenset[int]]:
        """Return the known NUMA nodes of all functions below each root and bridge."""
        nodes_below: dict[str, set[int]] = {}
        for function in self._tree.functions.values():
            if (node := self._firmware_node(function)) != UNKNOWN_NODE:
                for above in function.path[:-1]:
                    nodes_below.setdefault(above, set()).add(node)
        return {above: frozenset(nodes) for above, nodes in nodes_below.items()}

    def _file(self, function: PciFunction) -> int:
        place = self._rules.file.places.get(function.address) if self._rules.file else None
        return self._numa.near(place.node) if place is not None else UNKNOWN_NODE

    def _single(self, _function: PciFunction) -> int:
        return self._cpu_nodes[0].id if len(self._cpu_nodes) == 1 else UNKNOWN_NODE


# source of a NUMA node that the vendor's library reported, if no file has it
LIBRARY_SOURCE = "library"


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of people about places."""

    rules: PlacementRules = NO_RULES
    pcie_scope: str = "root"  # or switch
    # addresses whose low speed lasts (`persistently_slow`)
    slow_links: frozenset[str] = frozenset()
    file_refusal: str = ""  # why the topology file could not be parsed


NO_PLACEMENT_SETTINGS = PlacementSettings()


def pcie_scope_id(place: Placement, scope: str) -> str:
    """Return `pcieID`: the root, or with scope `switch` the chip below which the device is.

    If only the topology file has the device's switch, the file gives the name: devices of one
    virtual switch then match although each has a root of its own here.
    """
    if scope == "switch" and place.virtual[1:]:
        return "/".join(place.virtual[:2])
    if scope == "switch" and place.root and place.chip:
        return f"{place.root}/{place.chip}"
    return place.root or ""


class DevicePlacer:
    """Finds the places of devices; tables for the rules are built once for all devices."""

    def __init__(
        self, pci: PciTree, cpus: CpuTopology, numa: NumaTopology, settings: PlacementSettings
    ) -> None:
        self.pci = pci
        self.numa = numa
        self.settings = settings
        self._packages = {package.socket: package.package_id for package in cpus.packages}
        self._placer = NumaNodeFinder(pci, numa, settings.rules)
        self._disks = nvme_positions(pci)

    def device(self, info: VendorDevice) -> Device:
        """Return the device of a vendor's answer with its place."""
        address = pci_address_of(info)
        place = Placement()
        if address is not None:
            function = self.pci.get(address) or PciFunction(address=address)
            place = self.place(function)
            if info.kind is not DeviceKind.RDMA and self._disks:
                position = position_of(self.pci, function, place.numa_node)
                disks = near_disks(position, self._disks, self.pci.switch_links)
                place = replace(place, near_disks=disks)
        place = self._with_facts(place, dict(info.facts))
        return Device(
            info=info, place=place, pcie_scope_id=pcie_scope_id(place, self.settings.pcie_scope)
        )

    def _with_facts(self, place: Placement, facts: Mapping[str, str]) -> Placement:
        """Add facts of a device-info file or of a vendor's library that sysfs lacks."""
        node, root = facts.get(NUMA_NODE_FACT, ""), facts.get(PCIE_ROOT_FACT)
        if (
            place.numa_node == UNKNOWN_NODE
            and node.isdecimal()
            and len(node) < 6
            and self._may_exist(int(node))
        ):
            source = SOURCE_FILE_FACT if SOURCE_FILE_FACT in facts else LIBRARY_SOURCE
            place = replace(place, numa_node=int(node), numa_source=source)
        return replace(place, root=root) if place.root is None and root else place

    def _may_exist(self, node: int) -> bool:
        return not self.numa.nodes or self.numa.node(node) is not None

    def place(self, function: PciFunction) -> Placement:
        """Return the place of a PCI function."""
        placement = self._placer.numa_node(function)
        node = self.numa.node(placement.node)
        socket = node.socket if node is not None else UNKNOWN_NODE
        switches = switches_above(self.pci, function)
        file_place = self._file_place(function) if not switches else None
        chips = switch_chips(self.pci, switches)
        port = self.pci.get(function.bridges[-1]) if function.bridges else None
        slow = function.address in self.settings.slow_links
        return Placement(
            numa_node=placement.node,
            numa_source=placement.source,
            socket=socket,
            package_id=self._packages.get(socket, UNKNOWN_NODE),
            root=function.root,
            path=function.path,
            switch=switches[-1] if switches else None,
            chip=chips[-1] if chips else None,
            link=function.link,
            link_degraded=degradation(
                function.link, port.link if port else None, slow_for_long=slow
            ),
            acs=self._acs(function),
            virtual=file_place.hierarchy if file_place is not None else (),
        )

    def _file_place(self, function: PciFunction) -> FilePlace | None:
        file = self.settings.rules.file
        physical = self.pci.physical(function) or function
        return file.places.get(physical.address) if file is not None else None

    def _acs(self, function: PciFunction) -> tuple[int | None, ...] | None:
        bridges = [self.pci.get(address) for address in function.bridges]
        readable = any(bridge is not None and bridge.port_type is not None for bridge in bridges)
        return (
            tuple(b.acs_control if b is not None else None for b in bridges) if readable else None
        )


def restrict_topology_file(
    settings: PlacementSettings, pci: PciTree
) -> tuple[PlacementRules, list[Problem]]:
    """Restrict the topology file to present functions; refuse it if it is inconsistent."""
    rules, refusal = settings.rules, settings.file_refusal
    file = None
    try:
        file = rules.file.restricted_to(pci) if rules.file is not None else None
    except ParseError as error:
        refusal = str(error)
    problems = [Problem(reason="TopologyFileRefused", message=refusal)] if refusal else []
    for warning in file.warnings if file is not None else ():
        problems.append(Problem(reason="TopologyFileOdd", message=warning))
    return replace(rules, file=file), problems


def placement_problems(devices: Iterable[Device], placer: DevicePlacer) -> list[Problem]:
    """Return the problems of the places of these devices."""
    rules = placer.settings.rules
    problems = [
        Problem(reason="NumaOverrideUnused", message=text)
        for text in override_problems(rules, placer.pci, placer.numa)
    ]
    cards = [d for d in devices if d.info.kind is not DeviceKind.RDMA and d.place.path]
    roots = {card.place.root for card in cards}
    has_no_switch = all(not card.place.switch and not card.place.virtual[1:] for card in cards)
    if len(cards) >= 2 and len(roots) == 1 and None not in roots and has_no_switch:
        problems.append(
            Problem(reason="FlatPCITopology", message=_flat_topology_text(roots.pop(), len(cards)))
        )
    unknown: dict[str, list[Device]] = {}
    for device in devices:
        if device.place.path and device.place.numa_node == UNKNOWN_NODE:
            unknown.setdefault(device.place.root or "no root", []).append(device)
        function = placer.pci.get(pci_address_of(device.info))
        if function is not None and _is_node_missing(function, placer.numa):
            problems.append(Problem(reason="NumaNodeMissing", message=_missing_node_text(function)))
    return problems + [
        Problem(reason="UnknownNumaNode", message=_unknown_node_text(root, unplaced))
        for root, unplaced in sorted(unknown.items())
    ]


def _is_node_missing(function: PciFunction, numa: NumaTopology) -> bool:
    node = function.numa_node
    return node is not None and node >= 0 and numa.node(node) is None


def _missing_node_text(function: PciFunction) -> str:
    return (
        f"{function.address}: firmware names memory node {function.numa_node}, which is not there;"
        " set discovery.numa_overrides"
    )


def _flat_topology_text(root: str | None, count: int) -> str:
    return (
        f"all {count} accelerators are below {root or 'no root'} without a switch: distances mean"
        " nothing here; set discovery.topology_file"
    )


def _unknown_node_text(root: str, devices: Sequence[Device]) -> str:
    return (
        f"{root}: the memory node of {len(devices)} devices is unknown, first"
        f" {devices[0].place.path[-1]}; set discovery.numa_overrides"
    )
