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

# they order the CPUs otherwise, and not the same in all releases: no answer is better than a guess
UNSUPPORTED_OPTIONS = (
    "distribute-cpus-across-numa",
    "distribute-cpus-across-cores",
    "prefer-align-cpus-by-uncorecache",
)

CpuNumber = Callable[[Cpu], int]


def reserved_cpus(
    topology: CpuTopology, milli: int | None, options: Mapping[str, str]
) -> CpuSet | None:
    """Return the CPUs kept back for so many thousandths; `None` where that cannot be told.

    Of what the kubelet reserves only CPU counts; its eviction thresholds hold none.
    """
    if milli is None or any(options.get(name) == "true" for name in UNSUPPORTED_OPTIONS):
        return None
    count = -(-milli // 1000)
    taking = _CpuTaker(topology, count)
    return taking.run() if 0 < count <= len(topology.cpus) and taking.is_even() else None


class _CpuTaker:
    """One choice in progress: what is free still, and how many are wanted still."""

    def __init__(self, topology: CpuTopology, count: int) -> None:
        packages = {package.socket: package.package_id for package in topology.packages}
        # the kubelet orders sockets by the number that the kernel gave them
        has_packages = len(packages) > 0 and min(packages.values()) >= 0
        self._socket: CpuNumber = lambda cpu: (
            packages.get(cpu.socket, 0) if has_packages else cpu.socket
        )
        self._node: CpuNumber = lambda cpu: cpu.node
        self._core: CpuNumber = lambda cpu: cpu.core
        self._all = topology.cpus
        self._free = list(topology.cpus)
        self._wanted = count
        self._taken: set[int] = set()
        sockets, nodes = self._units(self._socket), self._units(self._node)
        # the wider unit first: a node of several sockets, or a socket of several nodes
        narrow_nodes = len(sockets) < len(nodes)
        self._wide = (self._socket, self._node) if narrow_nodes else (self._node, self._socket)

    def is_even(self) -> bool:
        """Say whether all cores are of one size, and all sockets."""
        units = (self._units(self._core), self._units(self._socket))
        return all(len(set(map(len, cpus_by_unit.values()))) == 1 for cpus_by_unit in units)

    def run(self) -> CpuSet:
        """Take as many as are wanted and return them."""
        for unit in self._wide:
            self._whole(unit, self._ordered(unit))
        self._whole(self._core, self._ordered(self._core))
        for core in self._ordered(self._core):
            self._take([cpu for cpu in self._free if cpu.core == core][: self._wanted])
        return frozenset(self._taken)

    def _units(self, unit: CpuNumber) -> dict[int, list[Cpu]]:
        units: dict[int, list[Cpu]] = {}
        for cpu in self._all:
            units.setdefault(unit(cpu), []).append(cpu)
        return units

    def _whole(self, unit: CpuNumber, order: Iterable[int]) -> None:
        """Take those that are free as a whole, while that many CPUs are wanted."""
        sizes = {number: len(cpus) for number, cpus in self._units(unit).items()}
        for number in order:
            cpus = [cpu for cpu in self._free if unit(cpu) == number]
            if len(cpus) == sizes[number] <= self._wanted:
                self._take(cpus)

    def _take(self, cpus: list[Cpu]) -> None:
        self._taken.update(cpu.id for cpu in cpus)
        self._wanted -= len(cpus)
        self._free = [cpu for cpu in self._free if cpu.id not in self._taken]

    def _ordered(self, unit: CpuNumber) -> list[int]:
        """Return the units with free CPUs, from the widest level down, fewest free first."""
        levels = (*self._wide, self._core)
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
