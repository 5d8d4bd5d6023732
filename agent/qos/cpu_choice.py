"""Which CPUs best-effort pods get: whole cores, spread over memory nodes. Pure.

The rule of choice is Koordinator's (`pkg/koordlet/qosmanager/plugins/cpusuppress`). Two things
differ: buckets of CPUs are those of a pair of memory node and socket, never of two such pairs; and
CPUs that best-effort pods have stay theirs where possible, so that fewer threads move.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from agent.snapshot.cpu import Cpu, CpuSet

MIN_CPUS = 2  # for best-effort pods, where so many may be used at all
GROWTH_DIVISOR = 10  # a set grows by a tenth of the node's CPUs in one step


class CandidateCpus(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs that best-effort pods may use: those of pods of class LSR, and all others."""

    lsr: tuple[Cpu, ...] = ()
    shared: tuple[Cpu, ...] = ()

    @property
    def count(self) -> int:
        """Return how many there are."""
        return len(self.lsr) + len(self.shared)


def candidate_cpus(cpus: Iterable[Cpu], excluded: CpuSet, lsr: CpuSet) -> CandidateCpus:
    """Return the CPUs without excluded ones, split by whether an LSR pod owns them."""
    usable = tuple(cpu for cpu in cpus if cpu.id not in excluded)
    return CandidateCpus(
        lsr=tuple(cpu for cpu in usable if cpu.id in lsr),
        shared=tuple(cpu for cpu in usable if cpu.id not in lsr),
    )


def growth_step(cpu_count: int) -> int:
    """Return by how many CPUs a set may grow in one step."""
    return -(-cpu_count // GROWTH_DIVISOR)


def choose_cpu_count(budget_milli: int, largest: int, candidates: int) -> int:
    """Return how many CPUs to use: those of the budget, between the floor and both limits."""
    wanted = max(MIN_CPUS, -(-budget_milli // 1000))
    return min(wanted, largest, candidates)


def select_cpus(candidates: CandidateCpus, count: int, previous: CpuSet) -> CpuSet:
    """Return `count` candidates, of both pools in proportion; with no candidate, none.

    Of the CPUs in `previous` as many stay as possible. Without previous ones the result is that of
    Koordinator.
    """
    if not candidates.count:
        return frozenset()
    count = min(count, candidates.count)
    of_lsr = count * len(candidates.lsr) // candidates.count
    return frozenset(
        (
            *adjust_choice(candidates.lsr, of_lsr, previous),
            *adjust_choice(candidates.shared, count - of_lsr, previous),
        )
    )


def adjust_choice(pool: Sequence[Cpu], count: int, previous: CpuSet) -> tuple[int, ...]:
    """Return `count` CPUs of a pool: a part of the previous ones, or all of them and more.

    A core that best-effort pods have in part is completed first.
    """
    owned = [cpu for cpu in pool if cpu.id in previous]
    if count <= len(owned):
        return choose_cpus(owned, count)
    others = [cpu for cpu in pool if cpu.id not in previous]
    cores = {cpu.core for cpu in owned}
    siblings = sorted((cpu for cpu in others if cpu.core in cores), key=_core_order)
    siblings = siblings[: count - len(owned)]
    added = choose_cpus(
        [cpu for cpu in others if cpu not in siblings], count - len(owned) - len(siblings)
    )
    return (*(cpu.id for cpu in (*owned, *siblings)), *added)


def choose_cpus(pool: Sequence[Cpu], count: int) -> tuple[int, ...]:
    """Return `count` CPUs in the order of choice; none if the pool has fewer.

    Pairs of siblings are taken from each memory node in turn while more than one CPU is missing,
    then single CPUs.
    """
    if count <= 0 or count > len(pool):
        return ()
    buckets = _buckets(pool)
    chosen: list[int] = []
    start = idle_visits = 0
    while count - len(chosen) > 1 and idle_visits < len(buckets):
        pair = _take_pair(buckets[start])
        chosen += pair
        idle_visits = 0 if pair else idle_visits + 1
        start = (start + 1) % len(buckets)
    while len(chosen) < count:
        if buckets[start]:
            chosen.append(buckets[start].pop(0).id)
        start = (start + 1) % len(buckets)
    return tuple(chosen)


def _buckets(pool: Iterable[Cpu]) -> list[list[Cpu]]:
    """Return the CPUs of each memory node of each socket, larger ones first."""
    buckets: defaultdict[tuple[int, int], list[Cpu]] = defaultdict(list)
    for cpu in sorted(pool, key=_core_order):
        buckets[cpu.node, cpu.socket].append(cpu)
    return sorted(buckets.values(), key=lambda cpus: (-len(cpus), cpus[0].id))


def _take_pair(bucket: list[Cpu]) -> list[int]:
    """Remove the first two neighbours of one core from a bucket, and return them; else nothing."""
    for index in range(len(bucket) - 1):
        first, second = bucket[index : index + 2]
        if first.core == second.core:
            del bucket[index : index + 2]
            return [first.id, second.id]
    return []


def _core_order(cpu: Cpu) -> tuple[int, int]:
    return cpu.core, cpu.id
