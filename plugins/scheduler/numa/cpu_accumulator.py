"""Chooses CPUs for one pod: whole cores or one thread of each, near each other, others kept whole.

Rules as in Koordinator's `pkg/scheduler/plugins/nodenumaresource/cpu_accumulator.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from plugins.scheduler.numa.cpu_request import (
    FULL_CORES,
    NUMA_NODE_LEVEL,
    PCPU_LEVEL,
    CpuBindPolicy,
    ExclusivePolicy,
)


class CpuPlace(msgspec.Struct, frozen=True, order=True):
    """Where a CPU is. Ordered by socket, NUMA node, core and CPU."""

    socket: int
    node: int
    core: int
    cpu: int

    @property
    def core_key(self) -> tuple[int, int, int]:
        """Return the core, whose number may repeat in another socket."""
        return self.socket, self.node, self.core


class CpuCounts(msgspec.Struct, frozen=True):
    """CPUs of one core, NUMA node and socket of a machine; the smallest one counts."""

    per_core: int
    per_node: int
    per_socket: int


def cpu_counts(places: Iterable[CpuPlace]) -> CpuCounts:
    """Return how many CPUs the parts of a machine have."""
    groups: tuple[dict[object, int], ...] = ({}, {}, {})
    for place in places:
        for group, key in zip(groups, (place.core_key, place.node, place.socket), strict=True):
            group[key] = group.get(key, 0) + 1
    return CpuCounts(*(max(group.values(), default=0) for group in groups))


class CpuSearch(msgspec.Struct, frozen=True, kw_only=True):
    """One search on a machine.

    `exclusive_cpus` are CPUs of pods with an exclusive policy, by that policy. `prefers_full`:
    parts with the fewest free CPUs come first, else those with the most.
    """

    places: Mapping[int, CpuPlace]  # of all CPUs
    exclusive_cpus: Mapping[str, frozenset[int]] = {}
    bind_policy: CpuBindPolicy = FULL_CORES
    exclusive_policy: ExclusivePolicy = ""
    prefers_full: bool = True

    def choose(self, free: Iterable[int], count: int) -> frozenset[int] | None:
        """Return so many of the free CPUs; `None` if there are too few."""
        run = _Accumulation(self, free)
        if count > len(run.free):
            return None
        counts = cpu_counts(self.places.values())
        if self.bind_policy == FULL_CORES or counts.per_core == 1:
            run.take_whole_cores(count, counts)
        else:
            run.take_spread(count, counts)
        return frozenset(run.result)


Part = Callable[[CpuPlace], int]
ALL_LEVELS = (PCPU_LEVEL, NUMA_NODE_LEVEL)


def _node_of(place: CpuPlace) -> int:
    return place.node


def _socket_of(place: CpuPlace) -> int:
    return place.socket


class _Accumulation:
    """CPUs that are taken one after another."""

    def __init__(self, search: CpuSearch, free: Iterable[int]) -> None:
        self._search = search
        self.free = {cpu: search.places[cpu] for cpu in free if cpu in search.places}
        self.result: set[int] = set()
        self._takes_cores = False
        self._core_sizes: dict[tuple[int, int, int], int] = {}
        for place in search.places.values():
            self._core_sizes[place.core_key] = self._core_sizes.get(place.core_key, 0) + 1

    def take_whole_cores(self, count: int, counts: CpuCounts) -> None:
        """Take whole cores of one node, else of one socket, else of several; the rest singly."""
        self._takes_cores = True
        if count <= counts.per_node and self._take_from_part(count, _node_of, (NUMA_NODE_LEVEL,)):
            return
        if count <= counts.per_socket and self._take_from_part(count, _socket_of, ()):
            return
        by_socket = self._by_part(self._whole_cores(()), _socket_of)
        remaining = count
        for socket, places in sorted(by_socket.items(), key=lambda item: (-len(item[1]), item[0])):
            if remaining >= len(places):
                self._take(places)
                remaining -= len(places)
                del by_socket[socket]
        for _, places in sorted(by_socket.items(), key=lambda item: (len(item[1]), item[0])):
            for start in range(0, len(places), counts.per_core):
                if remaining >= counts.per_core:
                    self._take(places[start : start + counts.per_core])
                    remaining -= counts.per_core
        self._take_rest(remaining)

    def take_spread(self, count: int, counts: CpuCounts) -> None:
        """Take one CPU of each core, of one node, else of one socket; the rest singly."""
        if count <= counts.per_node and self._take_from_part(count, _node_of, ALL_LEVELS):
            return
        if count <= counts.per_socket and self._take_from_part(count, _socket_of, (PCPU_LEVEL,)):
            return
        self._take_rest(count)

    def _take_from_part(self, count: int, part: Part, hidden: tuple[str, ...]) -> bool:
        """Take CPUs of the best part that has enough.

        First without those that pods with an exclusive policy of a hidden level keep from it.
        """
        for levels in dict.fromkeys((hidden, ())):
            candidates = self._whole_cores if self._takes_cores else self._spread_cpus
            by_part = self._by_part(candidates(levels), part)
            for key in self._ranked_parts(by_part, part, levels):
                if len(by_part[key]) >= count:
                    self._take(self._in_order(by_part[key])[:count])
                    return True
        return False

    def _in_order(self, places: list[CpuPlace]) -> list[CpuPlace]:
        """Return the CPUs of one part in the order in which they are taken."""
        return places if self._takes_cores else list(_in_spread_order(places))

    def _ranked_parts(
        self, by_part: Mapping[int, list[CpuPlace]], part: Part, hidden: tuple[str, ...]
    ) -> list[int]:
        """Return the parts by their free CPUs, then by those of their sockets, then by number.

        What counts of a node are its free CPUs, of whole cores only if those are taken.
        """
        visible = self._visible(hidden)
        in_part = by_part
        if part is _node_of and not self._takes_cores:
            in_part = self._by_part(visible, part)
        in_socket = self._by_part(visible, _socket_of)
        sign = 1 if self._search.prefers_full else -1

        def rank(key: int) -> tuple[int, int, int]:
            socket = by_part[key][0].socket
            of_socket = sign * len(in_socket[socket]) if part is _node_of else 0
            return sign * len(in_part[key]), of_socket, key

        return sorted(by_part, key=rank)

    def _whole_cores(self, hidden: tuple[str, ...]) -> list[CpuPlace]:
        """Return the CPUs of cores that are wholly free, core by core."""
        by_core: dict[tuple[int, int, int], list[CpuPlace]] = {}
        for place in self._visible(hidden):
            by_core.setdefault(place.core_key, []).append(place)
        return [
            place
            for key, places in sorted(by_core.items())
            if len(places) == self._core_sizes[key]
            for place in places
        ]

    def _spread_cpus(self, hidden: tuple[str, ...]) -> list[CpuPlace]:
        """Return free CPUs by number; one of each core while some are hidden."""
        places = sorted(self._visible(hidden), key=lambda place: place.cpu)
        if not hidden:
            return places
        first: dict[tuple[int, int, int], CpuPlace] = {}
        for place in places:
            first.setdefault(place.core_key, place)
        return list(first.values())

    def _visible(self, hidden: tuple[str, ...]) -> list[CpuPlace]:
        """Return the free CPUs in order, of no core or node that is hidden from the pod.

        Hidden are those with CPUs of pods that have the same exclusive policy.
        """
        free = sorted(place for cpu, place in self.free.items() if cpu not in self.result)
        policy = self._search.exclusive_policy
        if policy not in hidden:
            return free
        others = self._search.exclusive_cpus.get(policy, frozenset()) | self.result
        places = [self._search.places[cpu] for cpu in others if cpu in self._search.places]
        if policy == PCPU_LEVEL:
            cores = {place.core_key for place in places}
            return [place for place in free if place.core_key not in cores]
        nodes = {place.node for place in places}
        return [place for place in free if place.node not in nodes]

    def _take_rest(self, remaining: int) -> None:
        """Take single CPUs, of the sockets that CPUs were taken of first."""
        for hidden in (ALL_LEVELS, ()):
            if not remaining:
                return
            ordered = [place for core in self._rest_order(self._visible(hidden)) for place in core]
            cpus = list(_in_spread_order(ordered))[:remaining]
            self._take(cpus)
            remaining -= len(cpus)

    def _rest_order(self, places: list[CpuPlace]) -> list[list[CpuPlace]]:
        by_core: dict[tuple[int, int, int], list[CpuPlace]] = {}
        for place in places:
            by_core.setdefault(place.core_key, []).append(place)
        in_socket = {k: len(v) for k, v in self._by_part(places, _socket_of).items()}
        in_node = {k: len(v) for k, v in self._by_part(places, _node_of).items()}
        sockets = [self._search.places[cpu].socket for cpu in self.result]
        sign = 1 if self._search.prefers_full else -1

        def rank(core: list[CpuPlace]) -> tuple[int, ...]:
            place = core[0]
            return (
                -sockets.count(place.socket),
                sign * in_socket[place.socket],
                sign * in_node[place.node],
                len(core),
                place.socket,
                place.core,
            )

        return sorted(by_core.values(), key=rank)

    def _by_part(self, places: Iterable[CpuPlace], part: Part) -> dict[int, list[CpuPlace]]:
        by_part: dict[int, list[CpuPlace]] = {}
        for place in places:
            by_part.setdefault(part(place), []).append(place)
        return by_part

    def _take(self, places: Iterable[CpuPlace]) -> None:
        self.result.update(place.cpu for place in places)


def _in_spread_order(places: Iterable[CpuPlace]) -> Iterator[CpuPlace]:
    """Yield the first CPU of each core, then the second ones."""
    by_core: dict[tuple[int, int, int], list[CpuPlace]] = {}
    for place in places:
        by_core.setdefault(place.core_key, []).append(place)
    for index in range(max(map(len, by_core.values()), default=0)):
        yield from (cpus[index] for cpus in by_core.values() if index < len(cpus))
