"""Computes the CPUs that a static-policy kubelet reserves, when settings give only their number.

The kubelet takes them from all CPUs at its start, as it does for a container: whole NUMA nodes and
sockets first, then whole cores, then threads, each in the order of fewest free CPUs and lowest
number (`takeByTopologyNUMAPacked` of `pkg/kubelet/cm/cpumanager`). For less than a NUMA node these
are the lowest cores of the first NUMA node. If cores or sockets differ in size, releases of the
kubelet differ too, and the result is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.snapshot.cpu import Cpu, CpuSet, CpuTopology

# these change the order of CPUs, differently in different releases: the result would be a guess
UNSUPPORTED_OPTIONS = (
    "distribute-cpus-across-numa",
    "distribute-cpus-across-cores",
    "prefer-align-cpus-by-uncorecache",
)

CpuNumber = Callable[[Cpu], int]


def reserved_cpus(
    topology: CpuTopology, milli: int | None, options: Mapping[str, str]
) -> CpuSet | None:
    """Return the CPUs reserved for a number of thousandths; `None` if unknown.

    Of what the kubelet reserves only CPU counts; its eviction thresholds hold none.
    """
    if milli is None or any(options.get(name) == "true" for name in UNSUPPORTED_OPTIONS):
        return None
    count = -(-milli // 1000)
    taker = _CpuSelection(topology, count)
    return taker.run() if 0 < count <= len(topology.cpus) and taker.is_even() else None


def _node(cpu: Cpu) -> int:
    return cpu.node


def _core(cpu: Cpu) -> int:
    return cpu.core


class _CpuSelection:
    """One selection in progress: the free CPUs, and the number still needed."""

    def __init__(self, topology: CpuTopology, count: int) -> None:
        self._packages = {package.socket: package.package_id for package in topology.packages}
        self._all = topology.cpus
        self._free = list(topology.cpus)
        self._needed = count
        self._selected: set[int] = set()
        sockets, nodes = self._units(self._socket), self._units(_node)
        # the wider unit first: a node with several sockets, or a socket with several nodes
        narrow_nodes = len(sockets) < len(nodes)
        self._wide = (self._socket, _node) if narrow_nodes else (_node, self._socket)

    def _socket(self, cpu: Cpu) -> int:
        """Return the socket of a CPU; the kubelet orders sockets by the kernel's number."""
        has_packages = bool(self._packages) and min(self._packages.values()) >= 0
        return self._packages.get(cpu.socket, 0) if has_packages else cpu.socket

    def is_even(self) -> bool:
        """Return whether all cores have one size, and all sockets too."""
        units = (self._units(_core), self._units(self._socket))
        return all(len(set(map(len, cpus_by_unit.values()))) == 1 for cpus_by_unit in units)

    def run(self) -> CpuSet:
        """Select the CPUs and return them."""
        for unit in self._wide:
            self._select_whole_units(unit, self._ordered(unit))
        self._select_whole_units(_core, self._ordered(_core))
        for core in self._ordered(_core):
            self._select([cpu for cpu in self._free if cpu.core == core][: self._needed])
        return frozenset(self._selected)

    def _units(self, unit: CpuNumber) -> dict[int, list[Cpu]]:
        units: dict[int, list[Cpu]] = {}
        for cpu in self._all:
            units.setdefault(unit(cpu), []).append(cpu)
        return units

    def _select_whole_units(self, unit: CpuNumber, order: Iterable[int]) -> None:
        """Select units that are completely free, while that many CPUs are needed."""
        sizes = {number: len(cpus) for number, cpus in self._units(unit).items()}
        for number in order:
            cpus = [cpu for cpu in self._free if unit(cpu) == number]
            if len(cpus) == sizes[number] <= self._needed:
                self._select(cpus)

    def _select(self, cpus: list[Cpu]) -> None:
        self._selected.update(cpu.id for cpu in cpus)
        self._needed -= len(cpus)
        self._free = [cpu for cpu in self._free if cpu.id not in self._selected]

    def _ordered(self, unit: CpuNumber) -> list[int]:
        """Return the units with free CPUs, from the widest level down, fewest free first."""
        levels = (*self._wide, _core)
        depth = levels.index(unit) + 1
        free = [_count_by(self._free, level) for level in levels[:depth]]

        def rank(cpu: Cpu) -> tuple[tuple[int, int], ...]:
            pairs = zip(levels[:depth], free, strict=True)
            return tuple((counts[level(cpu)], level(cpu)) for level, counts in pairs)

        return list(dict.fromkeys(unit(cpu) for cpu in sorted(self._free, key=rank)))


def _count_by(cpus: Iterable[Cpu], unit: CpuNumber) -> dict[int, int]:
    counts: dict[int, int] = {}
    for cpu in cpus:
        counts[unit(cpu)] = counts.get(unit(cpu), 0) + 1
    return counts
