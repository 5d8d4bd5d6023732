"""Which memory node a PCI function is near, and which rule says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from agent.errors import ParseError
from agent.topology.address import is_root, parse_user_address
from agent.topology.numa import UNKNOWN, NumaTopology
from agent.topology.pci import PciFunction, PciTree

_BUS_RANGE = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2})-([0-9a-f]{2})")
_HOST_BRIDGE = 0x0600


class NodeAnswer(NamedTuple):
    """A memory node with CPUs, or -1, and the rule that answered."""

    node: int
    source: str


class NumaOverride(msgspec.Struct, frozen=True):
    """A person's word against the firmware's: functions that match are near the node.

    `match` is an address, a range of buses DDDD:BB-BB, or a root pciDDDD:BB.
    """

    match: str
    node: int

    def __post_init__(self) -> None:
        """Raise `ParseError` for a match of no known form."""
        if not is_root(self.match) and not _BUS_RANGE.fullmatch(self.match):
            parse_user_address(self.match)

    def matches(self, function: PciFunction) -> bool:
        """Say whether the override is about this function."""
        if is_root(self.match):
            return function.root == self.match
        found = _BUS_RANGE.fullmatch(self.match)
        if found is None:
            return function.address == parse_user_address(self.match)
        domain, bus, _ = function.address.split(":")
        return int(domain, 16) == int(found[1], 16) and found[2] <= bus <= found[3]


class FilePlace(msgspec.Struct, frozen=True):
    """What a topology file says of one function: memory node, and switches outermost first."""

    node: int
    switches: tuple[str, ...] = ()

    @property
    def hierarchy(self) -> tuple[str, ...]:
        """Return a root that stands for the node, then the switches."""
        return (f"numa{self.node}", *self.switches)


class TopologyFile(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine's topology as its provider wrote it; fills gaps of sysfs only."""

    label: str  # base name and SHA-256 prefix
    places: Mapping[str, FilePlace]  # by address
    ignored: int = 0  # functions that are not here
    warnings: tuple[str, ...] = ()

    def on(self, tree: PciTree) -> TopologyFile:
        """Keep what is about functions of this host; a host bridge as device raises."""
        present = {address: tree.functions.get(address) for address in self.places}
        for address, function in present.items():
            if function is not None and function.base_class == _HOST_BRIDGE:
                raise ParseError(f"topology file {self.label}: a host bridge as device", address)
        places = {a: place for a, place in self.places.items() if present[a] is not None}
        ignored = len(self.places) - len(places)
        return TopologyFile(
            label=self.label, places=places, ignored=ignored, warnings=self.warnings
        )


class PlacementRules(msgspec.Struct, frozen=True):
    """What people add to what the firmware says."""

    overrides: tuple[NumaOverride, ...] = ()
    file: TopologyFile | None = None


NO_RULES = PlacementRules()


def override_problems(rules: PlacementRules, tree: PciTree, numa: NumaTopology) -> tuple[str, ...]:
    """Name the overrides that can have no effect: no such function, or no such memory node."""
    found = []
    for override in rules.overrides:
        if not any(override.matches(function) for function in tree.functions.values()):
            found.append(f"numa override {override.match}: matches no function")
        if numa.near(override.node) == UNKNOWN:
            found.append(f"numa override {override.match}: no memory node {override.node}")
    return tuple(found)


class Placer:
    """Answers for many functions of one tree; what several answers need is computed once."""

    def __init__(self, tree: PciTree, numa: NumaTopology, rules: PlacementRules = NO_RULES) -> None:
        self._tree = tree
        self._numa = numa
        self._rules = rules
        self._cpu_nodes = numa.cpu_nodes()
        self._below: Mapping[str, frozenset[int]] | None = None

    def numa_node(self, function: PciFunction) -> NodeAnswer:
        """Return the first rule's answer, in the order below; never a guess."""
        rules = (
            ("override", self._override),
            ("firmware", self._known),
            ("pf", self._physical),
            ("parent", self._parent),
            ("local_cpus", self._local_cpus),
            ("siblings", self._siblings),
            ("topology_file", self._file),
            ("single", self._single),
        )
        for source, rule in rules:
            if (node := rule(function)) != UNKNOWN:
                return NodeAnswer(node, source)
        return NodeAnswer(UNKNOWN, "unknown")

    def _override(self, function: PciFunction) -> int:
        for override in self._rules.overrides:
            if override.matches(function):
                return self._numa.near(override.node)
        return UNKNOWN

    def _known(self, function: PciFunction) -> int:
        return UNKNOWN if function.gone else self._numa.near(function.numa_node)

    def _physical(self, function: PciFunction) -> int:
        physical = self._tree.physical(function)
        return self.numa_node(physical).node if physical is not None else UNKNOWN

    def _parent(self, function: PciFunction) -> int:
        for address in reversed(function.bridges):
            bridge = self._tree.get(address)
            if bridge is not None and (node := self._known(bridge)) != UNKNOWN:
                return node
        return UNKNOWN

    def _local_cpus(self, function: PciFunction) -> int:
        # without a node the kernel prints all online CPUs: with one node that proves nothing
        if not function.local_cpus or len(self._cpu_nodes) < 2:
            return UNKNOWN
        found = [node.id for node in self._cpu_nodes if node.cpus & function.local_cpus]
        return found[0] if len(found) == 1 else UNKNOWN

    def _siblings(self, function: PciFunction) -> int:
        if self._below is None:
            self._below = self._known_below()
        for above in reversed(function.path[:-1]):
            if nodes := self._below.get(above):
                return next(iter(nodes)) if len(nodes) == 1 else UNKNOWN
        return UNKNOWN

    def _known_below(self) -> Mapping[str, frozenset[int]]:
        """Return the memory nodes known for anything below each root and bridge."""
        found: dict[str, set[int]] = {}
        for function in self._tree.functions.values():
            if (node := self._known(function)) != UNKNOWN:
                for above in function.path[:-1]:
                    found.setdefault(above, set()).add(node)
        return {above: frozenset(nodes) for above, nodes in found.items()}

    def _file(self, function: PciFunction) -> int:
        place = self._rules.file.places.get(function.address) if self._rules.file else None
        return self._numa.near(place.node) if place is not None else UNKNOWN

    def _single(self, _function: PciFunction) -> int:
        return self._cpu_nodes[0].id if len(self._cpu_nodes) == 1 else UNKNOWN
