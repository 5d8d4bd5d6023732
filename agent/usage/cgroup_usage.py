"""Usage of all pods and containers, read from the cgroup tree in one pass.

The set of cgroups is updated from the pod list without walking the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType

import msgspec

from agent.cgroup import usage_files
from agent.cgroup.layout import (
    CgroupLayout,
    parse_container_dir,
    parse_pod_dir,
    parse_qos_dir,
    qos_of,
)
from agent.errors import HostFileError
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pod import ContainerView, PodView
from agent.snapshot.usage import CgroupUsage, Pressure
from agent.usage.file_reader import (
    DescriptorCache,
    FileBatchReader,
    PressureFileReader,
    ReadSchedule,
    pressure_reader,
)

_link_count = attrgetter("st_nlink")


class _PodDirectory(msgspec.Struct):
    """One directory whose children matter; its sign changes when a child comes or goes."""

    fd: int | None
    link_count_or_names: object = None
    names: tuple[str, ...] = ()


class PodCgroupTree:
    """The pods below the kubelet's root. `refresh` costs one `fstat` a directory when idle.

    A child that goes while another comes leaves the link count as it was: who reads the gone
    child's files notices, and sets `distrust`, which makes the next refresh list everything.
    """

    def __init__(self, host: HostFiles, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self._host = host
        self._descriptors = descriptors
        self._root = layout.root or ""
        point = layout.mount("memory") or layout.mount("cpuacct") or layout.mount("cpu")
        self._mount_point = point or ""
        self._directories: dict[str, _PodDirectory] = {}  # root, QoS and pod directories, by cgroup
        self._fds: list[int] = []  # of all watches, when each has one and counts its links
        self._link_counts: list[int] = []
        self.pods: tuple[PodView, ...] = ()  # by uid
        self.must_rescan = False

    def refresh(self) -> bool:
        """Look for pods and containers that came or went; say whether there were any."""
        if not self.must_rescan and self._is_unchanged():
            return False
        forced, self.must_rescan = self.must_rescan, False
        changed = self._walk(forced)
        watches = self._directories.values()
        is_counted = all(
            watch.fd is not None and isinstance(watch.link_count_or_names, int) for watch in watches
        )
        self._fds = [watch.fd for watch in watches if watch.fd is not None] if is_counted else []
        self._link_counts = [
            watch.link_count_or_names
            for watch in watches
            if isinstance(watch.link_count_or_names, int)
        ]
        return changed

    def close(self) -> None:
        """Let go of all descriptors."""
        self._remove_others(set())

    def _is_unchanged(self) -> bool:
        signs = list(map(_link_count, self._descriptors.stats(self._fds)))
        return bool(signs) and signs == self._link_counts

    def _walk(self, forced: bool) -> bool:
        """List the directories whose sign changed; rebuild the pods if a name did."""
        changed, pods = False, []
        alive = queue = [self._root]
        while queue:
            cgroup, queue = queue[0], queue[1:]
            changed |= self._refresh_directory(cgroup, forced)
            for name in self._directories[cgroup].names:
                child = f"{cgroup}/{name}"
                if parse_pod_dir(name) is not None:
                    pods.append(child)
                    changed |= self._refresh_directory(child, forced)
                elif parse_qos_dir(name) is not None and cgroup == self._root:
                    queue = [*queue, child]
                    alive = [*alive, child]
        changed |= self._remove_others({*alive, *pods})
        if changed:
            views = (_pod_view(cgroup, self._directories[cgroup].names) for cgroup in pods)
            self.pods = tuple(sorted(views, key=lambda pod: (pod.uid, pod.cgroup)))
        return changed

    def _refresh_directory(self, cgroup: str, forced: bool) -> bool:
        """List a directory if its sign changed; say whether the names that matter did."""
        path = self._mount_point + cgroup
        watch = self._directories.get(cgroup)
        new = watch is None
        if watch is None:
            watch = self._directories[cgroup] = _PodDirectory(self._descriptors.open(path))
        sign = self._read_link_count_or_names(
            watch, path
        )  # before listing: what comes after it changes it again
        if sign == watch.link_count_or_names and not forced and not new:
            return False
        names = sign if isinstance(sign, tuple) else self._names(path)
        before, watch.names, watch.link_count_or_names = watch.names, names, sign
        return new or before != names

    def _read_link_count_or_names(self, watch: _PodDirectory, path: str) -> object:
        if watch.fd is not None:
            (stat,) = self._descriptors.stats([watch.fd])
            if stat.st_nlink >= 2:  # btrfs and overlays do not count: always one
                return stat.st_nlink
        return self._names(path)

    def _names(self, path: str) -> tuple[str, ...]:
        """Return the children that are pods, classes or containers; none when it is gone."""
        try:
            names = self._host.names(path)
        except HostFileError:
            return ()
        kinds = (parse_pod_dir, parse_container_dir, parse_qos_dir)
        return tuple(name for name in names if any(kind(name) is not None for kind in kinds))

    def _remove_others(self, alive: set[str]) -> bool:
        removed = [cgroup for cgroup in self._directories if cgroup not in alive]
        for cgroup in removed:
            fd = self._directories.pop(cgroup).fd
            if fd is not None:
                self._descriptors.close(fd)
        return bool(removed)


def _pod_view(cgroup: str, names: tuple[str, ...]) -> PodView:
    ids = ((parse_container_dir(name), name) for name in names)
    containers = (
        ContainerView(id=container_id, cgroup=f"{cgroup}/{name}")
        for container_id, name in ids
        if container_id
    )
    return PodView(
        uid=parse_pod_dir(cgroup.rpartition("/")[2]) or "",
        qos=qos_of(cgroup),
        cgroup=cgroup,
        containers=tuple(sorted(containers, key=lambda container: container.id)),
    )


CpuRates = list[float | None]

ThrottlingColumn = list[usage_files.ThrottledPeriods | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CgroupUsageTable(Mapping[str, CgroupUsage]):
    """One cycle's usage by key. A row becomes a `GroupUsage` when somebody asks for it.

    The lists are in the order of the keys and are never changed once they are here.
    """

    index: Mapping[str, int]
    cpu_cores: CpuRates = field(default_factory=list)
    cpu_ns: list[int | None] = field(default_factory=list)
    memory: list[usage_files.MemoryBytes | None] = field(default_factory=list)
    throttling: ThrottlingColumn = field(default_factory=list)
    throttling_before: ThrottlingColumn = field(default_factory=list)
    pressure: list[Mapping[str, Pressure] | None] = field(default_factory=list)

    def __getitem__(self, key: str) -> CgroupUsage:
        row = self.index[key]
        memory, throttling = self.memory[row], self.throttling[row]
        return CgroupUsage(
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


def throttled_ratio(
    before: usage_files.ThrottledPeriods | None, now: usage_files.ThrottledPeriods | None
) -> float | None:
    """Return throttled periods to periods; 0 without periods, `None` if a counter fell."""
    if before is None or now is None:
        return None
    periods, throttled = now[0] - before[0], now[1] - before[1]
    if periods < 0 or throttled < 0:
        return None
    return throttled / periods if periods else 0.0


def cpu_rates(
    before: Sequence[int | None], now: Sequence[int | None], elapsed_s: float | None
) -> CpuRates:
    """Return cores from counters in nanoseconds; `None` where one is absent or fell."""
    if elapsed_s is None or elapsed_s <= 0:
        return [None] * len(now)
    elapsed_ns = elapsed_s * 1e9
    return [
        (b - a) / elapsed_ns if a is not None and b is not None and b >= a else None
        for a, b in zip(before, now, strict=True)
    ]


class CgroupCpuReader:
    """CPU time and throttling of many cgroups, in the order of their paths."""

    def __init__(self, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self._layout = layout
        self._stat = FileBatchReader(
            descriptors,
            usage_files.parse_cpu_stat_v2,
            usage_files.CPU_V2.size,
            together=usage_files.parse_cpu_stats_v2,
        )
        self._usage = FileBatchReader(
            descriptors, usage_files.parse_counter, usage_files.CPU_V1.size
        )
        self._periods = FileBatchReader(
            descriptors, usage_files.parse_throttling_v1, usage_files.THROTTLING_V1.size
        )

    def set_cgroups(self, cgroups: Sequence[str]) -> None:
        """Read these from now on."""
        if self._layout.version == 2:
            self._stat.set_paths(cgroup_file_paths(usage_files.CPU_V2, self._layout, cgroups))
        else:
            self._usage.set_paths(cgroup_file_paths(usage_files.CPU_V1, self._layout, cgroups))
            self._periods.set_paths(
                cgroup_file_paths(usage_files.THROTTLING_V1, self._layout, cgroups)
            )

    def read(self) -> tuple[list[int | None], ThrottlingColumn]:
        """Return counters in nanoseconds, and throttling."""
        if self._layout.version == 1:
            return self._usage.read(), self._periods.read()
        stats = self._stat.read()
        return [s[0] if s else None for s in stats], [s[1] if s else None for s in stats]

    def has_lost_file(self) -> bool:
        """Say whether a file has gone since the last time that this was asked."""
        return (
            self._stat.has_lost_file() | self._usage.has_lost_file() | self._periods.has_lost_file()
        )


def cgroup_file_paths(
    file: usage_files.CgroupFile, layout: CgroupLayout, cgroups: Sequence[str]
) -> list[str]:
    """Return the file's path for each cgroup; empty where its controller is not mounted."""
    return [file.path(layout, cgroup) or "" for cgroup in cgroups]


class CgroupUsageReader:
    """Reads the cgroups it is told to follow. Keys are pod uids or container ids."""

    def __init__(
        self,
        host: HostFiles,
        descriptors: DescriptorCache,
        layout: CgroupLayout,
        pace: ReadSchedule,
    ) -> None:
        self._layout = layout
        self._index: Mapping[str, int] = MappingProxyType({})
        self._cgroups: tuple[str, ...] = ()
        self._cpu = CgroupCpuReader(descriptors, layout)
        self._memory_file, parse_memory = usage_files.memory_source(host, layout)
        self._memory = FileBatchReader(
            descriptors,
            parse_memory,
            self._memory_file.size,
            cut=layout.version == 2,  # the rest changes with every page fault
            together=usage_files.parse_memory_stats_v2 if layout.version == 2 else None,
        )
        self._pressure = pressure_reader(PressureFileReader(descriptors, layout).read, pace)
        self._last_counters: tuple[float, list[int | None], ThrottlingColumn] | None = None

    def set_cgroups(self, cgroups: Mapping[str, str]) -> None:
        """Read these from now on: cgroup by key. Counters of groups that stay are remembered."""
        kept = {cgroup: row for row, cgroup in enumerate(self._cgroups)}
        self._index = MappingProxyType({key: row for row, key in enumerate(cgroups)})
        self._cgroups = tuple(cgroups.values())
        rows = [kept.get(cgroup) for cgroup in self._cgroups]
        if self._last_counters is not None:
            taken_s, cpu, throttling = self._last_counters
            self._last_counters = (
                taken_s,
                [None if row is None else cpu[row] for row in rows],
                [None if row is None else throttling[row] for row in rows],
            )
        self._cpu.set_cgroups(self._cgroups)
        self._memory.set_paths(cgroup_file_paths(self._memory_file, self._layout, self._cgroups))
        self._pressure.set_keys(self._cgroups)

    def read(self, now_s: float) -> CgroupUsageTable:
        """Read every group once; rates are those since the previous read."""
        cpu_ns, throttling = self._cpu.read()
        before_s, cpu_before, throttling_before = self._last_counters or (None, cpu_ns, throttling)
        elapsed_s = None if before_s is None else now_s - before_s
        fresh = elapsed_s is not None and elapsed_s > 0
        self._last_counters = (now_s, cpu_ns, throttling)
        return CgroupUsageTable(
            index=self._index,
            cpu_ns=cpu_ns,
            cpu_cores=cpu_rates(cpu_before, cpu_ns, elapsed_s),
            memory=self._memory.read(),
            throttling=throttling,
            throttling_before=throttling_before if fresh else [None] * len(throttling),
            pressure=self._pressure.read(),
        )

    def has_lost_file(self) -> bool:
        """Say whether a file has gone since the last time that this was asked."""
        return self._cpu.has_lost_file() | self._memory.has_lost_file()

    def close(self) -> None:
        """Let go of all descriptors."""
        self.set_cgroups({})
