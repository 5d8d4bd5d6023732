"""Files that need not be read each second: every cycle takes its share of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from agent.cgroup import files, parse
from agent.cgroup.layout import CgroupLayout
from agent.collect.reader import Door
from agent.errors import HostFileError, ParseError
from agent.model.usage import Pressure

V = TypeVar("V")

EVERY = 10  # cycles; ten seconds, as Koordinator's PSI collector
FRESH_S = 10.0  # an older value may not be subtracted from one of now
PRESSURE_BYTES = 512
MAX_NUMA_BYTES = 1 << 16
NODE_PRESSURE = tuple(f"/proc/pressure/{resource}" for resource in files.RESOURCES)

PressureMap = Mapping[str, Pressure]


class Pace(msgspec.Struct, frozen=True):
    """In which of how many cycles a slow file's turn is."""

    node_memory: int = EVERY
    pressure: int | None = EVERY  # None: never

    @classmethod
    def of(cls, interval_s: float, pressure_interval_s: float | None) -> Pace:
        """Return the pace for cycles that are `interval_s` apart."""
        pressure = None
        if pressure_interval_s is not None:
            pressure = max(1, round(pressure_interval_s / interval_s))
        return cls(node_memory=max(1, int(FRESH_S / interval_s)), pressure=pressure)


class SlowColumn(Generic[V]):
    """A value a key, fetched when the key is new and in every tenth cycle after that.

    Keys take turns, so that no cycle is longer than the others. Descriptors are not kept: the
    kernel would hold a page for each.
    """

    def __init__(self, fetch: Callable[[str], V | None], every: int = EVERY) -> None:
        self._fetch = fetch
        self._every = every
        self._turn = 0
        self._keys: tuple[str, ...] = ()
        self._values: list[V | None] = []
        self._new: list[int] = []

    def follow(self, keys: Sequence[str]) -> None:
        """Fetch these from now on; values of keys that stay are kept."""
        known = dict(zip(self._keys, self._values, strict=True))
        for row in self._new:
            del known[self._keys[row]]  # never fetched yet
        self._keys = tuple(keys)
        self._values = [known.get(key) for key in self._keys]
        self._new = [row for row, key in enumerate(self._keys) if key not in known]

    def read(self) -> list[V | None]:
        """Fetch this cycle's share; the list of all values is the caller's."""
        rows = {*self._new, *range(self._turn, len(self._keys), self._every)}
        self._new, self._turn = [], (self._turn + 1) % self._every
        for row in rows:
            self._values[row] = self._fetch(self._keys[row])
        return self._values.copy()


def pressure_column(
    fetch: Callable[[str], PressureMap | None], pace: Pace
) -> SlowColumn[PressureMap]:
    """Return a column of pressure, or one that fetches nothing where it is not wanted."""
    if pace.pressure is None:
        return SlowColumn(lambda _: None)
    return SlowColumn(fetch, pace.pressure)


def read_pressure(door: Door, places: Sequence[str]) -> PressureMap | None:
    """Read PSI from one file a resource; `None` if the kernel has or allows none of them.

    A kernel booted without `psi=1` answers EOPNOTSUPP: absent, not an error.
    """
    found: dict[str, Pressure] = {}
    for resource, path in zip(files.RESOURCES, places, strict=True):
        try:
            found[resource] = parse.pressure(door.read(path, PRESSURE_BYTES))
        except (HostFileError, ParseError):
            continue
    return found or None


class PressureSource:
    """PSI of cgroups, from the one place of the host that has it."""

    def __init__(self, door: Door, layout: CgroupLayout) -> None:
        self._door = door
        self._layout = layout
        candidates = files.pressure_paths(layout, layout.root or "")
        readable = (read_pressure(door, place) is not None for place in candidates)
        self._place = next((i for i, good in enumerate(readable) if good), None)

    def read(self, cgroup: str) -> PressureMap | None:
        """Return the group's PSI; `None` if there is none on this host."""
        if self._place is None:
            return None
        return read_pressure(self._door, files.pressure_paths(self._layout, cgroup)[self._place])


class NodeMemorySource:
    """A pod's memory on each memory node, from `memory.numa_stat`."""

    def __init__(self, door: Door, layout: CgroupLayout) -> None:
        self._door = door
        self._layout = layout
        self._parse = parse.nodes_v2 if layout.version == 2 else parse.nodes_v1

    def read(self, cgroup: str) -> Mapping[int, int] | None:
        """Return bytes by node; `None` if the kernel does not tell."""
        path = files.MEMORY_NUMA.path(self._layout, cgroup)
        try:
            return self._parse(self._door.read(path, MAX_NUMA_BYTES)) if path else None
        except (HostFileError, ParseError):
            return None
