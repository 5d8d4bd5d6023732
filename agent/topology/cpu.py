"""Builds a consistent CPU topology from raw sysfs sets. Pure.

Two CPUs share a core (cluster, die, package, cache) if their sets are equal. A set counts only if
every usable member has the same one, because firmware and recordings may be inconsistent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.snapshot.cpu import Cpu, CpuCache, CpuInfo, CpuPackage, CpuSet, CpuTopology

L3 = 3
NO_PACKAGE_ID = -1


class RawCache(msgspec.Struct, frozen=True, kw_only=True):
    """One `index<M>` of one CPU as the kernel shows it."""

    level: int
    kind: str
    cpus: CpuSet | None = None  # None: no map, or an empty one
    id: int | None = None
    size_bytes: int | None = None


class RawCpu(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU's sets of related CPUs; `None` if its files have none."""

    core: CpuSet | None = None
    cluster: CpuSet | None = None
    die: CpuSet | None = None
    package: CpuSet | None = None
    package_id: int | None = None
    caches: tuple[RawCache, ...] = ()
    capacity: int | None = None  # Arm: compute capacity, 1024 is the fastest


class RawCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The data that were read of the CPUs of one host; sets may have CPUs that are not usable."""

    present: CpuSet = frozenset()
    cpus: Mapping[int, RawCpu] = msgspec.field(
        default_factory=lambda: MappingProxyType({})
    )  # usable
    without_topology: CpuSet = frozenset()
    isolated: CpuSet = frozenset()
    nohz_full: CpuSet = frozenset()
    allowed: CpuSet | None = None
    kinds: tuple[tuple[str, CpuSet], ...] = ()
    smt_active: bool | None = None
    smt_control: str | None = None
    info: CpuInfo = CpuInfo()
    skipped: int = 0


class CpuGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of usable CPUs, each list sorted by smallest CPU: that order is the numbering."""

    cores: tuple[CpuSet, ...] = ()
    clusters: tuple[CpuSet, ...] = ()
    dies: tuple[CpuSet, ...] = ()
    packages: tuple[CpuPackage, ...] = ()
    caches: tuple[CpuCache, ...] = ()
    inconsistent: CpuSet = frozenset()  # CPUs whose sets differ from those of their members


def group_cpus(cpus: Mapping[int, RawCpu]) -> CpuGroups:
    """Group the usable CPUs; every CPU is in exactly one core and one package."""
    cores, cpus_without_core = _consistent_sets(
        _usable_sets({n: cpu.core or frozenset((n,)) for n, cpu in cpus.items()})
    )
    cores = _sorted([*cores, *(frozenset((cpu,)) for cpu in cpus_without_core)])
    package_sets = _usable_sets({n: cpu.package for n, cpu in cpus.items()})
    packages, cpus_without_package = _consistent_sets(package_sets)
    packages = _sorted([*packages, *_by_package_id(cpus, package_sets, packages)])
    dies, cpus_without_die = _consistent_sets(_usable_sets({n: cpu.die for n, cpu in cpus.items()}))
    clusters, cpus_without_cluster = _consistent_sets(
        _usable_sets({n: cpu.cluster for n, cpu in cpus.items()})
    )
    caches, cpus_without_cache = _caches(cpus, cores)
    larger_groups = {*cores, *dies, *packages}
    return CpuGroups(
        cores=tuple(cores),
        clusters=tuple(s for s in _sorted(clusters) if len(s) > 1 and s not in larger_groups),
        dies=tuple(s for s in _sorted(dies) if len(s) > 1 and s not in packages),
        packages=tuple(
            CpuPackage(socket=socket, package_id=_package_id(cpus[min(members)]), cpus=members)
            for socket, members in enumerate(packages)
        ),
        caches=caches,
        inconsistent=frozenset().union(
            cpus_without_core,
            cpus_without_package,
            cpus_without_die,
            cpus_without_cluster,
            cpus_without_cache,
        ),
    )


def _usable_sets(raw_sets: Mapping[int, CpuSet | None]) -> dict[int, CpuSet]:
    """Restrict each CPU's set to usable CPUs; CPUs without a set are left out."""
    usable = frozenset(raw_sets)
    trimmed: dict[CpuSet, CpuSet] = {}  # few different sets occur, many times
    sets: dict[int, CpuSet] = {}
    for number, cpu_set in raw_sets.items():
        if cpu_set is not None:
            if cpu_set not in trimmed:
                trimmed[cpu_set] = cpu_set & usable
            sets[number] = trimmed[cpu_set]
    return sets


def _consistent_sets(sets: Mapping[int, CpuSet]) -> tuple[list[CpuSet], CpuSet]:
    """Return the sets on which all their members agree, and the CPUs in none of them."""
    members_by_set: defaultdict[CpuSet, set[int]] = defaultdict(set)
    for number, cpu_set in sets.items():
        members_by_set[cpu_set].add(number)
    units = [
        cpu_set for cpu_set, numbers in members_by_set.items() if cpu_set and cpu_set <= numbers
    ]
    return units, frozenset(sets).difference(*units)


def _sorted(groups: Iterable[CpuSet]) -> list[CpuSet]:
    return sorted(groups, key=min)


def _package_id(cpu: RawCpu) -> int:
    return NO_PACKAGE_ID if cpu.package_id is None else cpu.package_id


def _by_package_id(
    cpus: Mapping[int, RawCpu], sets: Mapping[int, CpuSet], packages: list[CpuSet]
) -> list[CpuSet]:
    """Group CPUs without a confirmed package by id; those without any data form one package."""
    groups: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for number in frozenset(cpus).difference(*packages):
        package_id = _package_id(cpus[number])
        if package_id >= 0:
            groups["id", package_id].add(number)
        elif number in sets:
            groups["alone", number].add(number)
        else:
            groups["silent", 0].add(number)
    return [frozenset(group) for group in groups.values()]


def _caches(
    cpus: Mapping[int, RawCpu], cores: list[CpuSet]
) -> tuple[tuple[CpuCache, ...], frozenset[int]]:
    """Group caches into units: (level, kind, set); an inconsistent set shrinks to the core."""
    usable = frozenset(cpus)
    core_of = {number: core for core in cores for number in core}
    kinds: defaultdict[tuple[int, str], dict[int, RawCache]] = defaultdict(dict)
    for number, cpu in cpus.items():
        for cache in cpu.caches:
            kinds[cache.level, cache.kind].setdefault(number, cache)
    caches: list[CpuCache] = []
    inconsistent: set[int] = set()
    for _, raw in sorted(kinds.items()):
        sets = {n: (cache.cpus or core_of[n]) & usable for n, cache in raw.items()}
        units, ungrouped = _consistent_sets(sets)
        units += {core_of[number] & ungrouped for number in ungrouped}
        caches += _cache_units(_sorted(units), raw)
        inconsistent |= ungrouped
    return tuple(caches), frozenset(inconsistent)


def _cache_units(units: list[CpuSet], raw: Mapping[int, RawCache]) -> list[CpuCache]:
    """Give the units of one level and kind the kernel's ids if those are unique."""
    kernel_ids = [{raw[number].id for number in unit} for unit in units]
    ids = [next(iter(ids)) if len(ids) == 1 else None for ids in kernel_ids]
    has_unique_ids = None not in ids and len(set(ids)) == len(ids)
    first = [raw[min(unit)] for unit in units]
    return [
        CpuCache(
            level=cache.level,
            kind=cache.kind,
            id=number if has_unique_ids and number is not None else ordinal,
            cpus=unit,
            size_bytes=cache.size_bytes,
        )
        for ordinal, (unit, cache, number) in enumerate(zip(units, first, ids, strict=True))
    ]


def build_cpus(raw: RawCpus, levels: CpuGroups, node_of: Mapping[int, int]) -> CpuTopology:
    """Return the topology, numbered and restricted to usable CPUs; `node_of` has the NUMA nodes."""
    usable = frozenset(raw.cpus)
    core_of = {n: ordinal for ordinal, core in enumerate(levels.cores) for n in core}
    socket_of = {n: package.socket for package in levels.packages for n in package.cpus}
    l3_of = {n: cache.id for cache in levels.caches if cache.level == L3 for n in cache.cpus}
    cpus = tuple(
        Cpu(id=n, core=core_of[n], socket=socket_of[n], node=node_of[n], l3=l3_of.get(n, 0))
        for n in sorted(usable)
    )
    smt_active = raw.smt_active
    if smt_active is None:
        smt_active = any(len(core) > 1 for core in levels.cores)
    return CpuTopology(
        present=raw.present,
        usable=usable,
        without_topology=raw.without_topology,
        isolated=raw.isolated & usable,
        nohz_full=raw.nohz_full & usable,
        allowed=None if raw.allowed is None else raw.allowed & usable,
        cpus=cpus,
        cores=levels.cores,
        clusters=levels.clusters,
        dies=levels.dies,
        packages=levels.packages,
        caches=levels.caches,
        kinds=_kinds(raw, usable),
        smt_active=smt_active,
        smt_control=raw.smt_control,
        info=raw.info,
        skipped=raw.skipped,
        warnings=_warnings(levels),
    )


def _kinds(raw: RawCpus, usable: CpuSet) -> tuple[tuple[str, CpuSet], ...]:
    """Return the core kinds of a hybrid machine.

    By capacity if the kernel has no names for them.
    """
    named_kinds = tuple(sorted((name, cpus & usable) for name, cpus in raw.kinds if cpus & usable))
    if named_kinds:
        return named_kinds
    groups: defaultdict[int, set[int]] = defaultdict(set)
    for number, cpu in raw.cpus.items():
        if cpu.capacity is not None:
            groups[cpu.capacity].add(number)
    if len(groups) < 2:
        return ()
    return tuple((f"capacity-{value}", frozenset(groups[value])) for value in sorted(groups))


def _warnings(levels: CpuGroups) -> tuple[str, ...]:
    if not levels.inconsistent:
        return ()
    return (f"cpu_topology_inconsistent: first at CPU {min(levels.inconsistent)}",)
