"""Whole captured machines as the agent sees them: PCI tree, memory nodes and CPUs."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from agent.host.cpu import read_cpu_numa
from agent.host.pci import read_pci
from agent.recording.tree import LinkEntry, TreeBuilder
from agent.snapshot.cpu import CpuTopology, NumaNode, NumaTopology
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pci import PciFunction, PciTree
from agent.topology.distance import SELF, DirectLink, ordered_pair, pair_levels, position_of
from agent.topology.placement import NO_RULES, NumaNodeFinder, NumaPlacement, PlacementRules
from tests.captures import capture


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, read once for all tests."""

    tree: PciTree
    cpus: CpuTopology
    numa: NumaTopology

    def function(self, address: str) -> PciFunction:
        """Return a function that must be there."""
        return self.tree.functions[address]


def read_machine(host: HostFiles) -> Machine:
    """Read a host's whole topology."""
    cpus, numa = read_cpu_numa(host)
    return Machine(read_pci(host), cpus, numa)


@functools.lru_cache(maxsize=8)
def machine(name: str) -> Machine:
    """Return a captured machine by the start of its name."""
    return read_machine(capture(name))


def tree_of(*functions: PciFunction) -> PciTree:
    """Make a tree of functions built by hand."""
    return PciTree(functions={function.address: function for function in functions})


def nodes(count: int) -> NumaTopology:
    """Make so many memory nodes of two CPUs each, one a socket."""
    return NumaTopology(
        nodes=tuple(
            NumaNode(
                id=i, cpus=frozenset((2 * i, 2 * i + 1)), memory_bytes=1 << 30, near=i, socket=i
            )
            for i in range(count)
        )
    )


class Sysfs:
    """Writes PCI functions the way the kernel shows them."""

    def __init__(self) -> None:
        self.builder = TreeBuilder()

    def function(self, path: str, /, **attributes: str) -> str:
        """Add a function by its path below the host bridge; text starting with > is a link."""
        address = path.rpartition("/")[2]
        self.builder.put(f"/sys/bus/pci/devices/{address}", LinkEntry(f"../../../devices/{path}"))
        facts = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": "0"}
        for name, text in {**facts, **attributes}.items():
            entry = LinkEntry(text[1:]) if text.startswith(">") else f"{text}\n".encode()
            self.builder.put(f"/sys/devices/{path}/{name}", entry)
        return address

    def read(self) -> PciTree:
        return read_pci(self.builder.build())


def numa_node_of(
    tree: PciTree, numa: NumaTopology, address: str, rules: PlacementRules = NO_RULES
) -> NumaPlacement:
    """Answer for one function; one that is not in the tree has no facts but its address."""
    function = tree.get(address) or PciFunction(address=address)
    return NumaNodeFinder(tree, numa, rules).numa_node(function)


def level(
    tree: PciTree,
    numa: NumaTopology,
    a: str,
    b: str,
    links: Iterable[DirectLink] = (),
    *,
    rules: PlacementRules = NO_RULES,
) -> str:
    """Return the link level of two addresses if there is one, else their PCI level."""
    placer = NumaNodeFinder(tree, numa, rules)
    places = rules.file.places if rules.file else {}
    seats = []
    for address in (a, b):
        function = tree.get(address) or PciFunction(address=address)
        virtual = places[address].hierarchy if address in places else ()
        seats.append(position_of(tree, function, placer.numa_node(function).node, virtual))
    return pair_levels(seats, links, tree.switch_links).get(ordered_pair(a, b), SELF)
