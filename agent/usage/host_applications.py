"""Finds the cgroups of host applications and measures their usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.cgroup import usage_files
from agent.cgroup.layout import CgroupLayout, detect_layout, parse_pod_dir
from agent.cgroup.usage_files import CgroupFile
from agent.snapshot.host_files import HostFiles
from agent.snapshot.slo import HostApplication
from agent.snapshot.usage import CgroupUsage
from agent.usage.cgroup_usage import CgroupUsageReader, cgroup_file_paths
from agent.usage.file_reader import DescriptorCache, FileBatchReader, ReadSchedule

# below the root, as Koordinator's own way of starting such programs makes them
_CGROUP_BY_QOS = {
    "LSE": "/host-latency-sensitive",
    "LSR": "/host-latency-sensitive",
    "LS": "/host-latency-sensitive",
    "BE": "/host-best-effort",
}

_QOS_NAMES = {"KubepodsBurstable": "burstable", "KubepodsBesteffort": "besteffort"}


def base_cgroup(layout: CgroupLayout, name: str) -> str | None:
    """Return the cgroup of `Kubepods` and its kin; `None` while the kubelet has made none."""
    if name == "CgroupRoot":
        return ""
    if layout.root is None or name == "Kubepods":
        return layout.root
    part = _QOS_NAMES[name]
    if layout.driver == "systemd":  # whose groups repeat the names of all above them
        part = f"{layout.root.rpartition('/')[2].removesuffix('.slice')}-{part}.slice"
    return f"{layout.root}/{part}"


def application_cgroup(layout: CgroupLayout, application: HostApplication) -> str | None:
    """Return the application's cgroup, "/host-best-effort/spark"; `None` if its base is not there.

    Names and paths have been checked where they came in: none leads up.
    """
    place = application.cgroup_path
    if place is None:
        return f"{_CGROUP_BY_QOS.get(application.qos, '')}/{application.name}"
    below = base_cgroup(layout, place.base)
    return None if below is None else "/".join((below, *place.parts))


def find_separate(cgroups: Mapping[str, str], layout: CgroupLayout) -> frozenset[str]:
    """Return the names of those that may be subtracted beside the pods: no use counts twice.

    Left out are groups that hold pods or are within one, and those within another application's.
    """
    separate: dict[str, str] = {}
    for name, path in sorted(cgroups.items(), key=lambda item: (item[1].count("/"), item)):
        inside = any(_is_within(path, other) for other in separate.values())
        if not inside and not _overlaps_pods(path, layout):
            separate[name] = path
    return frozenset(separate)


def _overlaps_pods(path: str, layout: CgroupLayout) -> bool:
    if layout.root is None:
        return False
    holders = [base_cgroup(layout, name) for name in ("Kubepods", *_QOS_NAMES)]
    if any(holder is not None and _is_within(holder, path) for holder in holders):
        return True
    parts = path[len(layout.root) :].split("/") if _is_within(path, layout.root) else []
    return any(parse_pod_dir(part) is not None for part in parts)


def _is_within(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


ApplicationSource = Callable[[], tuple[HostApplication, ...]]

DIRECTORY_CHECK_S = 10.0  # for directories of applications that did not run

NO_PRESSURE = ReadSchedule(pressure_period=None)

# all of the group's memory: the kernel's own for it too, as Koordinator counts applications
TOTAL_MEMORY_V1 = CgroupFile("memory", "memory.usage_in_bytes", usage_files.SMALL)

TOTAL_MEMORY_V2 = CgroupFile("memory", "memory.current", usage_files.SMALL)


def no_applications() -> tuple[HostApplication, ...]:
    """Know no applications."""
    return ()


class HostApplicationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle's usage of those that run, and what of it is nobody else's."""

    by_name: Mapping[str, CgroupUsage]
    cpu_cores: float = 0.0  # sums of what is known; an application without a value counts as none
    memory_bytes: int = 0  # without page cache, as the memory it is subtracted from


NO_APPLICATION_USAGE = HostApplicationUsage(by_name={})


class _ApplicationFiles:
    """The files of one layout's groups."""

    def __init__(self, host: HostFiles, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self.layout = layout
        self.groups = CgroupUsageReader(host, descriptors, layout, NO_PRESSURE)
        self.total_memory = FileBatchReader(
            descriptors, usage_files.parse_counter, usage_files.SMALL
        )

    def set_cgroups(self, cgroups: Mapping[str, str]) -> None:
        self.groups.set_cgroups(cgroups)
        whole = TOTAL_MEMORY_V2 if self.layout.version == 2 else TOTAL_MEMORY_V1
        self.total_memory.set_paths(cgroup_file_paths(whole, self.layout, tuple(cgroups.values())))

    def has_lost_file(self) -> bool:
        return self.groups.has_lost_file() | self.total_memory.has_lost_file()


class HostApplicationReader:
    """Reads the applications that `known` tells of, as long as their directories are there.

    One that starts is seen within ten seconds, one that stops in the next cycle.
    """

    def __init__(
        self,
        host: HostFiles,
        descriptors: DescriptorCache,
        applications: ApplicationSource = no_applications,
    ) -> None:
        self._host = host
        self._descriptors = descriptors
        self._source = applications
        self._applications: tuple[HostApplication, ...] = ()
        self._separate: frozenset[str] = frozenset()
        self._checked_s = 0.0
        self._files: _ApplicationFiles | None = None

    def read(self, now_s: float, layout: CgroupLayout | None) -> HostApplicationUsage:
        """Measure once; without a `layout` the host's is looked for, if there is need of one."""
        wanted = self._source()
        if not wanted and self._files is None:
            return NO_APPLICATION_USAGE
        if self._is_check_due(now_s, wanted, layout):
            self._checked_s, self._applications = now_s, wanted
            self._find_directories(layout or detect_layout(self._host) if wanted else None)
        return NO_APPLICATION_USAGE if self._files is None else self._measure(self._files, now_s)

    def close(self) -> None:
        """Let go of all descriptors."""
        if self._files is not None:
            self._files.set_cgroups({})
            self._files = None

    def _is_check_due(
        self, now_s: float, wanted: tuple[HostApplication, ...], layout: CgroupLayout | None
    ) -> bool:
        if wanted != self._applications or now_s - self._checked_s >= DIRECTORY_CHECK_S:
            return True
        if self._files is None:
            return False
        return self._files.has_lost_file() or (layout is not None and layout != self._files.layout)

    def _find_directories(self, layout: CgroupLayout | None) -> None:
        """Follow the applications whose directories are there."""
        if layout is None:
            self.close()
            return
        if self._files is None or self._files.layout != layout:
            self.close()
            self._files = _ApplicationFiles(self._host, self._descriptors, layout)
        names: dict[str, str] = {}  # by cgroup: of two names of one, the first is measured
        for one in self._applications:
            path = application_cgroup(layout, one)
            if path is not None and self._is_running(layout, path):
                names.setdefault(path, one.name)
        running = {name: path for path, name in names.items()}
        self._separate = find_separate(running, layout)
        self._files.set_cgroups(running)

    def _is_running(self, layout: CgroupLayout, path: str) -> bool:
        directories = {layout.directory(name, path) for name in ("cpuacct", "memory")}
        return any(place is not None and self._host.exists(place) for place in directories)

    def _measure(self, columns: _ApplicationFiles, now_s: float) -> HostApplicationUsage:
        table, whole = columns.groups.read(now_s), columns.total_memory.read()
        by_name = {}
        for name, row in table.index.items():
            if table.cpu_ns[row] is None and table.memory[row] is None:
                continue  # it stopped after the last look
            by_name[name] = msgspec.structs.replace(table[name], memory_with_cache_bytes=whole[row])
        alone = [use for name, use in by_name.items() if name in self._separate]
        return HostApplicationUsage(
            by_name=by_name,
            cpu_cores=sum(use.cpu_cores or 0.0 for use in alone),
            memory_bytes=sum(use.memory_bytes or 0 for use in alone),
        )
