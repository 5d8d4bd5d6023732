"""Usage of many cgroups in one pass: columns of files in, an immutable table out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.cgroup import files, parse, together
from agent.cgroup.layout import CgroupLayout
from agent.collect.reader import Door, FileColumn
from agent.collect.slow import Pace, PressureSource, pressure_column
from agent.host.files import HostFiles
from agent.model.usage import GroupUsage, Pressure

Rates = list[float | None]
Throttlings = list[parse.Throttling | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTable(Mapping[str, GroupUsage]):
    """One cycle's usage by key. A row becomes a `GroupUsage` when somebody asks for it.

    The lists are in the order of the keys and are never changed once they are here.
    """

    index: Mapping[str, int]
    cpu_cores: Rates = field(default_factory=list)
    cpu_ns: list[int | None] = field(default_factory=list)
    memory: list[parse.Memory | None] = field(default_factory=list)
    throttling: Throttlings = field(default_factory=list)
    throttling_before: Throttlings = field(default_factory=list)
    pressure: list[Mapping[str, Pressure] | None] = field(default_factory=list)

    def __getitem__(self, key: str) -> GroupUsage:
        row = self.index[key]
        memory, throttling = self.memory[row], self.throttling[row]
        return GroupUsage(
            cpu_cores=self.cpu_cores[row],
            cpu_total_ns=self.cpu_ns[row],
            memory_bytes=memory[0] if memory else None,
            memory_with_cache_bytes=memory[1] if memory else None,
            throttled_ratio=throttled_ratio(self.throttling_before[row], throttling),
            throttled_periods=throttling[1] if throttling else None,
            periods=throttling[0] if throttling else None,
            pressure=self.pressure[row],
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)


def throttled_ratio(before: parse.Throttling | None, now: parse.Throttling | None) -> float | None:
    """Return throttled periods to periods; 0 without periods, `None` if a counter fell."""
    if before is None or now is None:
        return None
    periods, throttled = now[0] - before[0], now[1] - before[1]
    if periods < 0 or throttled < 0:
        return None
    return throttled / periods if periods else 0.0


def rates(
    before: Sequence[int | None], now: Sequence[int | None], elapsed_s: float | None
) -> Rates:
    """Return cores from counters in nanoseconds; `None` where one is absent or fell."""
    if elapsed_s is None or elapsed_s <= 0:
        return [None] * len(now)
    elapsed_ns = elapsed_s * 1e9
    return [
        (b - a) / elapsed_ns if a is not None and b is not None and b >= a else None
        for a, b in zip(before, now, strict=True)
    ]


class CpuColumns:
    """CPU time and throttling of many cgroups, in the order of their paths."""

    def __init__(self, door: Door, layout: CgroupLayout) -> None:
        self._layout = layout
        self._stat = FileColumn(
            door, parse.cpu_stat_v2, files.CPU_V2.size, together=together.cpu_stat_v2
        )
        self._usage = FileColumn(door, parse.counter, files.CPU_V1.size)
        self._periods = FileColumn(door, parse.throttling_v1, files.THROTTLING_V1.size)

    def follow(self, cgroups: Sequence[str]) -> None:
        """Read these from now on."""
        if self._layout.version == 2:
            self._stat.follow(paths(files.CPU_V2, self._layout, cgroups))
        else:
            self._usage.follow(paths(files.CPU_V1, self._layout, cgroups))
            self._periods.follow(paths(files.THROTTLING_V1, self._layout, cgroups))

    def read(self) -> tuple[list[int | None], Throttlings]:
        """Return counters in nanoseconds, and throttling."""
        if self._layout.version == 1:
            return self._usage.read(), self._periods.read()
        stats = self._stat.read()
        return [s[0] if s else None for s in stats], [s[1] if s else None for s in stats]

    def lost(self) -> bool:
        """Say whether a file has gone since the last time that this was asked."""
        return self._stat.lost() | self._usage.lost() | self._periods.lost()


def paths(file: files.CgroupFile, layout: CgroupLayout, cgroups: Sequence[str]) -> list[str]:
    """Return the file's path for each cgroup; empty where its controller is not mounted."""
    return [file.path(layout, cgroup) or "" for cgroup in cgroups]


class GroupReader:
    """Reads the cgroups it is told to follow. Keys are pod uids or container ids."""

    def __init__(self, host: HostFiles, door: Door, layout: CgroupLayout, pace: Pace) -> None:
        self._layout = layout
        self._index: Mapping[str, int] = MappingProxyType({})
        self._cgroups: tuple[str, ...] = ()
        self._cpu = CpuColumns(door, layout)
        self._memory_file, parse_memory = files.memory_source(host, layout)
        self._memory = FileColumn(
            door,
            parse_memory,
            self._memory_file.size,
            cut=layout.version == 2,  # the rest changes with every page fault
            together=together.memory_stat_v2 if layout.version == 2 else None,
        )
        self._pressure = pressure_column(PressureSource(door, layout).read, pace)
        self._before: tuple[float, list[int | None], Throttlings] | None = None

    def follow(self, cgroups: Mapping[str, str]) -> None:
        """Read these from now on: cgroup by key. Counters of groups that stay are remembered."""
        kept = {cgroup: row for row, cgroup in enumerate(self._cgroups)}
        self._index = MappingProxyType({key: row for row, key in enumerate(cgroups)})
        self._cgroups = tuple(cgroups.values())
        rows = [kept.get(cgroup) for cgroup in self._cgroups]
        if self._before is not None:
            taken_s, cpu, throttling = self._before
            self._before = (
                taken_s,
                [None if row is None else cpu[row] for row in rows],
                [None if row is None else throttling[row] for row in rows],
            )
        self._cpu.follow(self._cgroups)
        self._memory.follow(paths(self._memory_file, self._layout, self._cgroups))
        self._pressure.follow(self._cgroups)

    def read(self, now_s: float) -> GroupTable:
        """Read every group once; rates are those since the previous read."""
        cpu_ns, throttling = self._cpu.read()
        before_s, cpu_before, throttling_before = self._before or (None, cpu_ns, throttling)
        elapsed_s = None if before_s is None else now_s - before_s
        fresh = elapsed_s is not None and elapsed_s > 0
        self._before = (now_s, cpu_ns, throttling)
        return GroupTable(
            index=self._index,
            cpu_ns=cpu_ns,
            cpu_cores=rates(cpu_before, cpu_ns, elapsed_s),
            memory=self._memory.read(),
            throttling=throttling,
            throttling_before=throttling_before if fresh else [None] * len(throttling),
            pressure=self._pressure.read(),
        )

    def lost(self) -> bool:
        """Say whether a file has gone since the last time that this was asked."""
        return self._cpu.lost() | self._memory.lost()

    def close(self) -> None:
        """Let go of all descriptors."""
        self.follow({})
