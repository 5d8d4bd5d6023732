"""Usage of all pods and containers, read from the cgroup tree in one pass.

The set of cgroups is updated from the pod list without walking the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
from agent.errors import HostFileError, ParseError
from agent.host.files import MAX_ENTRIES, read_text
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
from agent.wire_formats.kernel_text import MAX_CPUS, parse_cpu_list

POSSIBLE_CPUS = "/sys/devices/system/cpu/possible"
READ_NS = 500_000_000  # one cycle of reads takes less

_link_count = attrgetter("st_nlink")


class _PodDirectory(msgspec.Struct):
    """A directory whose children matter; its link count or names change with its children."""

    fd: int | None
    link_count_or_names: object = None
    names: tuple[str, ...] = ()
    is_cut: bool = False  # it has more children than one listing may have
    view: PodView | None = None  # made of `names`


class PodCgroupTree:
    """The pods below the kubelet's root. An unchanged `refresh` costs one `fstat` per directory.

    If one child is removed and another added, the link count stays the same. If the removed one was
    a pod with containers, its own link count changes, and the directory above it is listed as well.
    Else the reader of its files notices and sets `must_rescan`, so that the next refresh lists
    everything. A directory may be made again under the same name: its descriptor is opened again
    whenever it is listed, and each refresh compares one more descriptor with its path.
    """

    def __init__(self, host: HostFiles, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self._host = host
        self._descriptors = descriptors
        self._root = layout.root or ""
        point = layout.mount("memory") or layout.mount("cpuacct") or layout.mount("cpu")
        self._mount_point = point or ""
        self._directories: dict[str, _PodDirectory] = {}  # root, QoS and pod directories, by cgroup
        self._fds: list[int] = []  # of all directories, if each has one and counts its links
        self._link_counts: list[int] = []
        self._stale: set[str] = set()  # directories from which a pod was removed
        self._unchecked: list[str] = []  # directories whose descriptors are compared next
        self.pods: tuple[PodView, ...] = ()  # by uid
        self.is_complete = True  # else a directory has too many children, and pods are missing
        self.must_rescan = False

    def refresh(self) -> bool:
        """Update pods and containers; return whether any was added or removed."""
        self.must_rescan |= self._is_next_descriptor_removed()
        if not self.must_rescan and self._is_unchanged():
            return False
        forced, self.must_rescan = self.must_rescan, False
        has_changes, pods = self._walk(forced)
        if has_changes:
            views = map(self._pod_view, pods)
            self.pods = tuple(sorted(views, key=lambda pod: (pod.uid, pod.cgroup)))
        watches = self._directories.values()
        self.is_complete = not any(watch.is_cut for watch in watches)
        is_counted = all(
            watch.fd is not None and isinstance(watch.link_count_or_names, int) for watch in watches
        )
        self._fds = [watch.fd for watch in watches if watch.fd is not None] if is_counted else []
        self._link_counts = [
            watch.link_count_or_names
            for watch in watches
            if isinstance(watch.link_count_or_names, int)
        ]
        return has_changes

    def close(self) -> None:
        """Close all descriptors."""
        self._remove_gone(set())

    def _is_unchanged(self) -> bool:
        link_counts = list(map(_link_count, self._descriptors.stats(self._fds)))
        return bool(link_counts) and link_counts == self._link_counts

    def _is_next_descriptor_removed(self) -> bool:
        """Return whether the next descriptor is of a directory that was removed.

        The kernel reports neither by the descriptor: its link count is that of an empty directory.
        """
        if not self._unchecked:
            self._unchecked = list(self._directories)
        cgroup = self._unchecked.pop() if self._unchecked else ""
        watch = self._directories.get(cgroup)
        return watch is not None and self._is_removed(watch, self._mount_point + cgroup)

    def _is_removed(self, watch: _PodDirectory, path: str) -> bool:
        return watch.fd is not None and not self._descriptors.is_open_file(watch.fd, path)

    def _walk(self, forced: bool) -> tuple[bool, list[str]]:
        """List the directories that changed; return whether a name changed, and the pods."""
        has_changes, pods = False, []
        alive = queue = [self._root]
        while queue:
            cgroup, queue = queue[0], queue[1:]
            has_changes |= self._refresh_directory(cgroup, forced)
            has_changes |= self._refresh_pods(self._pod_cgroups(cgroup), forced)
            if cgroup in self._stale:  # another pod may have taken the place of the removed one
                has_changes |= self._refresh_directory(cgroup, forced=True)
                new = set(self._pod_cgroups(cgroup)) - self._directories.keys()
                has_changes |= self._refresh_pods(new, forced=True)
            pods += self._pod_cgroups(cgroup)
            if cgroup == self._root:
                names = filter(parse_qos_dir, self._directories[cgroup].names)
                queue = [*queue, *(f"{cgroup}/{name}" for name in names)]
                alive = [*alive, *queue]
        self._stale.clear()
        has_changes |= self._remove_gone({*alive, *pods})
        return has_changes, pods

    def _pod_cgroups(self, cgroup: str) -> list[str]:
        """Return the pods of the last listing of a directory."""
        names = self._directories[cgroup].names
        return [f"{cgroup}/{name}" for name in names if parse_pod_dir(name) is not None]

    def _refresh_pods(self, pods: Iterable[str], forced: bool) -> bool:
        """List the pods that changed; return whether any did."""
        changes = [self._refresh_directory(pod, forced) for pod in pods]
        return any(changes)

    def _refresh_directory(self, cgroup: str, forced: bool) -> bool:
        """List a directory if it changed; return whether its relevant names changed."""
        path = self._mount_point + cgroup
        watch = self._directories.get(cgroup)
        is_new = watch is None
        if watch is None:
            watch = self._directories[cgroup] = _PodDirectory(self._descriptors.open(path))
        link_count_or_names = self._read_link_count_or_names(
            watch, path
        )  # before listing: what comes after it changes it again
        if link_count_or_names == watch.link_count_or_names and not forced and not is_new:
            return False
        if watch.fd is not None and not is_new and self._is_removed(watch, path):
            self._descriptors.close(watch.fd)
            watch.fd = self._descriptors.open(path)
            link_count_or_names = self._read_link_count_or_names(watch, path)
        if isinstance(link_count_or_names, tuple):
            names = link_count_or_names
        else:
            names = self._names(watch, path)
        if watch.names and not names:
            self._stale.add(cgroup.rpartition("/")[0])
        has_changes = is_new or watch.names != names
        watch.names, watch.link_count_or_names = names, link_count_or_names
        if has_changes:
            watch.view = None
        return has_changes

    def _read_link_count_or_names(self, watch: _PodDirectory, path: str) -> object:
        if watch.fd is not None:
            (stat,) = self._descriptors.stats([watch.fd])
            if stat.st_nlink >= 2:  # btrfs and overlays always report 1
                return stat.st_nlink
        return self._names(watch, path)

    def _names(self, watch: _PodDirectory, path: str) -> tuple[str, ...]:
        """Return the children that are pods, classes or containers.

        None if the directory is gone.
        """
        try:
            names = self._host.names(path)
        except HostFileError:
            return ()
        watch.is_cut = len(names) >= MAX_ENTRIES
        return tuple(filter(_is_relevant, names))

    def _pod_view(self, cgroup: str) -> PodView:
        watch = self._directories[cgroup]
        if watch.view is None:
            watch.view = _pod_view(cgroup, watch.names)
        return watch.view

    def _remove_gone(self, alive: set[str]) -> bool:
        removed = [cgroup for cgroup in self._directories if cgroup not in alive]
        for cgroup in removed:
            fd = self._directories.pop(cgroup).fd
            if fd is not None:
                self._descriptors.close(fd)
        return bool(removed)


@lru_cache(maxsize=4096)  # every cgroup has files of the same names
def _is_relevant(name: str) -> bool:
    """Return whether a directory of that name is a pod's, a container's or a class's."""
    kinds = (parse_pod_dir, parse_container_dir, parse_qos_dir)
    return any(kind(name) is not None for kind in kinds)


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
    """One cycle's usage by key. A row becomes a `CgroupUsage` on access.

    The lists are in the order of the keys and never change.
    """

    index: Mapping[str, int]
    cpu_cores: CpuRates = field(default_factory=list)
    cpu_ns: list[int | None] = field(default_factory=list)
    memory: list[usage_files.MemoryBytes | None] = field(default_factory=list)
    throttling: ThrottlingColumn = field(default_factory=list)
    previous_throttling: ThrottlingColumn = field(default_factory=list)
    pressure: list[Mapping[str, Pressure] | None] = field(default_factory=list)

    def __getitem__(self, key: str) -> CgroupUsage:
        row = self.index[key]
        memory, throttling = self.memory[row], self.throttling[row]
        return CgroupUsage(
            cpu_cores=self.cpu_cores[row],
            cpu_total_ns=self.cpu_ns[row],
            memory_bytes=memory[0] if memory else None,
            memory_with_cache_bytes=memory[1] if memory else None,
            throttled_ratio=throttled_ratio(self.previous_throttling[row], throttling),
            throttled_periods=throttling[1] if throttling else None,
            periods=throttling[0] if throttling else None,
            pressure=self.pressure[row],
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)


def throttled_ratio(
    previous: usage_files.ThrottledPeriods | None, now: usage_files.ThrottledPeriods | None
) -> float | None:
    """Return throttled periods to periods; 0 without periods, `None` if a counter decreased."""
    if previous is None or now is None:
        return None
    periods, throttled = now[0] - previous[0], now[1] - previous[1]
    if periods < 0 or throttled < 0:
        return None
    return throttled / periods if periods else 0.0


def possible_cpus(host: HostFiles) -> int:
    """Return the number of CPUs that the host may have; `MAX_CPUS` if it does not tell."""
    try:
        return len(parse_cpu_list(read_text(host, POSSIBLE_CPUS) or "")) or MAX_CPUS
    except ParseError:
        return MAX_CPUS


def cpu_rates(
    previous: Sequence[int | None],
    now: Sequence[int | None],
    elapsed_s: float | None,
    cpus: int = MAX_CPUS,
) -> CpuRates:
    """Return cores from counters in nanoseconds.

    `None` if one is absent or decreased, or grew by more than so many CPUs can work.
    """
    if elapsed_s is None or elapsed_s <= 0:
        return [None] * len(now)
    elapsed_ns = elapsed_s * 1e9
    # twice as much, because groups are not read at the very time that counts for all of them
    most = 2 * cpus * (elapsed_ns + READ_NS)
    return [
        (b - a) / elapsed_ns if a is not None and b is not None and 0 <= b - a <= most else None
        for a, b in zip(previous, now, strict=True)
    ]


class CgroupCpuReader:
    """CPU time and throttling of many cgroups, in the order of their paths."""

    def __init__(self, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self._layout = layout
        self._stat = FileBatchReader(
            descriptors,
            usage_files.parse_cpu_stat_v2,
            usage_files.CPU_V2.size,
            batch_parser=usage_files.parse_cpu_stats_v2,
        )
        self._usage = FileBatchReader(
            descriptors, usage_files.parse_counter, usage_files.CPU_V1.size
        )
        self._periods = FileBatchReader(
            descriptors, usage_files.parse_throttling_v1, usage_files.THROTTLING_V1.size
        )

    def set_cgroups(self, cgroups: Sequence[str]) -> None:
        """Set the cgroups to read."""
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

    def pop_file_loss(self) -> bool:
        """Return whether a file was removed since the last call."""
        return (
            self._stat.pop_file_loss() | self._usage.pop_file_loss() | self._periods.pop_file_loss()
        )


def cgroup_file_paths(
    file: usage_files.CgroupFile, layout: CgroupLayout, cgroups: Sequence[str]
) -> list[str]:
    """Return the file's path for each cgroup; empty if its controller is not mounted."""
    point = layout.mount(file.controller)
    if point is None:
        return [""] * len(cgroups)
    return [f"{point}{cgroup}/{file.name}" for cgroup in cgroups]


class CgroupUsageReader:
    """Reads the usage of a set of cgroups. Keys are pod uids or container ids."""

    def __init__(
        self,
        host: HostFiles,
        descriptors: DescriptorCache,
        layout: CgroupLayout,
        schedule: ReadSchedule,
    ) -> None:
        self._layout = layout
        self._index: Mapping[str, int] = MappingProxyType({})
        self._cgroups: tuple[str, ...] = ()
        self._cpus = possible_cpus(host)
        self._cpu = CgroupCpuReader(descriptors, layout)
        self._memory_file, parse_memory = usage_files.memory_source(host, layout)
        self._memory = FileBatchReader(
            descriptors,
            parse_memory,
            self._memory_file.size,
            cut=layout.version == 2,  # other fields change with every page fault
            batch_parser=usage_files.parse_memory_stats_v2 if layout.version == 2 else None,
        )
        self._pressure = pressure_reader(PressureFileReader(descriptors, layout).read, schedule)
        self._last_counters: tuple[float, list[int | None], ThrottlingColumn] | None = None

    def set_cgroups(self, cgroups: Mapping[str, str]) -> None:
        """Set the cgroups to read, by key. Counters of remaining groups are kept."""
        previous_rows = {cgroup: row for row, cgroup in enumerate(self._cgroups)}
        self._index = MappingProxyType({key: row for row, key in enumerate(cgroups)})
        self._cgroups = tuple(cgroups.values())
        rows = [previous_rows.get(cgroup) for cgroup in self._cgroups]
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
        """Read every group once; rates are since the previous read."""
        cpu_ns, throttling = self._cpu.read()
        previous_s, previous_cpu_ns, previous_throttling = self._last_counters or (
            None,
            cpu_ns,
            throttling,
        )
        elapsed_s = None if previous_s is None else now_s - previous_s
        has_elapsed = elapsed_s is not None and elapsed_s > 0
        self._last_counters = (now_s, cpu_ns, throttling)
        return CgroupUsageTable(
            index=self._index,
            cpu_ns=cpu_ns,
            cpu_cores=cpu_rates(previous_cpu_ns, cpu_ns, elapsed_s, self._cpus),
            memory=self._memory.read(),
            throttling=throttling,
            previous_throttling=previous_throttling if has_elapsed else [None] * len(throttling),
            pressure=self._pressure.read(),
        )

    def pop_file_loss(self) -> bool:
        """Return whether a file was removed since the last call."""
        return self._cpu.pop_file_loss() | self._memory.pop_file_loss()

    def close(self) -> None:
        """Close all descriptors."""
        self.set_cgroups({})
