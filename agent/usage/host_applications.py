"""Finds the cgroups of host applications and measures their usage."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.cgroup import usage_files
from agent.cgroup.layout import CgroupLayout, detect_layout, parse_pod_dir
from agent.cgroup.usage_files import CgroupFile
from agent.snapshot.host_files import HostFiles
from agent.snapshot.slo import HostApplication
from agent.snapshot.usage import CgroupUsage
from agent.usage.cgroup_usage import CgroupUsageReader, cgroup_file_paths
from agent.usage.file_reader import DescriptorCache, FileBatchReader, ReadSchedule

# below the root, where Koordinator starts such programs
_CGROUP_BY_QOS = {
    "LSE": "/host-latency-sensitive",
    "LSR": "/host-latency-sensitive",
    "LS": "/host-latency-sensitive",
    "BE": "/host-best-effort",
}

_QOS_NAMES = {"KubepodsBurstable": "burstable", "KubepodsBesteffort": "besteffort"}


def base_cgroup(layout: CgroupLayout, name: str) -> str | None:
    """Return the cgroup of a base name; `None` while the kubelet has created none."""
    if name == "CgroupRoot":
        return ""
    if layout.root is None or name == "Kubepods":
        return layout.root
    part = _QOS_NAMES[name]
    if layout.driver == "systemd":  # slices repeat the names of all slices above them
        part = f"{layout.root.rpartition('/')[2].removesuffix('.slice')}-{part}.slice"
    return f"{layout.root}/{part}"


def application_cgroup(layout: CgroupLayout, application: HostApplication) -> str | None:
    """Return the application's cgroup, "/host-best-effort/spark"; `None` without its base.

    Names and paths were validated when they were decoded: none leads up.
    """
    place = application.cgroup_path
    if place is None:
        return f"{_CGROUP_BY_QOS.get(application.qos, '')}/{application.name}"
    below = base_cgroup(layout, place.base)
    return None if below is None else "/".join((below, *place.parts))


def find_separate(cgroups: Mapping[str, str], layout: CgroupLayout) -> frozenset[str]:
    """Return the names of applications that can be subtracted in addition to the pods.

    Groups that contain pods or are within one are left out, and so are groups within another
    application's group: no usage counts twice.
    """
    separate: dict[str, str] = {}
    for name, path in sorted(cgroups.items(), key=lambda item: (item[1].count("/"), item)):
        is_inside = any(_is_within(path, other) for other in separate.values())
        if not is_inside and not overlaps_pods(path, layout):
            separate[name] = path
    return frozenset(separate)


def overlaps_pods(path: str, layout: CgroupLayout) -> bool:
    """Return whether a cgroup has pods in it, or is a pod's."""
    if layout.root is None:
        return False
    holders = [base_cgroup(layout, name) for name in ("Kubepods", *_QOS_NAMES)]
    if any(holder is not None and _is_within(holder, path) for holder in holders):
        return True
    components = path[len(layout.root) :].split("/") if _is_within(path, layout.root) else []
    return any(parse_pod_dir(part) is not None for part in components)


def _is_within(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


DIRECTORY_CHECK_S = 10.0  # for directories of applications that did not run

NO_PRESSURE = ReadSchedule(pressure_period=None)

# including kernel memory, as Koordinator counts applications
TOTAL_MEMORY_V1 = CgroupFile("memory", "memory.usage_in_bytes", usage_files.SMALL)

TOTAL_MEMORY_V2 = CgroupFile("memory", "memory.current", usage_files.SMALL)


class HostApplicationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle's usage of running applications, and the part that counts for no pod."""

    by_name: Mapping[str, CgroupUsage]
    cpu_cores: float = 0.0  # sums of known values; an unknown value counts as 0
    memory_bytes: int = 0  # without page cache, as the node's memory


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
        file = TOTAL_MEMORY_V2 if self.layout.version == 2 else TOTAL_MEMORY_V1
        self.total_memory.set_paths(cgroup_file_paths(file, self.layout, tuple(cgroups.values())))

    def pop_file_loss(self) -> bool:
        return self.groups.pop_file_loss() | self.total_memory.pop_file_loss()


class HostApplicationReader:
    """Reads host applications while their directories exist.

    The reader finds a started application within ten seconds, a stopped one in the next cycle.
    """

    def __init__(self, host: HostFiles, descriptors: DescriptorCache) -> None:
        self._host = host
        self._descriptors = descriptors
        self._applications: tuple[HostApplication, ...] = ()
        self._separate: frozenset[str] = frozenset()
        self.cgroups: tuple[tuple[str, str], ...] = ()  # of running applications, by name
        self._checked_s = 0.0
        self._files: _ApplicationFiles | None = None

    def read(
        self, now_s: float, layout: CgroupLayout | None, applications: tuple[HostApplication, ...]
    ) -> HostApplicationUsage:
        """Measure these applications; without a `layout` detect the host's if needed."""
        if not applications and self._files is None:
            return NO_APPLICATION_USAGE
        if self._is_check_due(now_s, applications, layout):
            self._checked_s, self._applications = now_s, applications
            self._find_directories(layout or detect_layout(self._host) if applications else None)
        return NO_APPLICATION_USAGE if self._files is None else self._measure(self._files, now_s)

    def close(self) -> None:
        """Close all descriptors."""
        if self._files is not None:
            self._files.set_cgroups({})
            self._files = None

    def _is_check_due(
        self, now_s: float, applications: tuple[HostApplication, ...], layout: CgroupLayout | None
    ) -> bool:
        if applications != self._applications or now_s - self._checked_s >= DIRECTORY_CHECK_S:
            return True
        if self._files is None:
            return False
        return self._files.pop_file_loss() or (layout is not None and layout != self._files.layout)

    def _find_directories(self, layout: CgroupLayout | None) -> None:
        """Set the cgroups of applications whose directories exist."""
        if layout is None:
            self.cgroups = ()
            self.close()
            return
        if self._files is None or self._files.layout != layout:
            self.close()
            self._files = _ApplicationFiles(self._host, self._descriptors, layout)
        # by cgroup: the first of two applications with one group is measured
        names: dict[str, str] = {}
        for application in self._applications:
            path = application_cgroup(layout, application)
            if path is not None and self._is_running(layout, path):
                names.setdefault(path, application.name)
        running = {name: path for path, name in names.items()}
        self.cgroups = tuple(sorted(running.items()))
        self._separate = find_separate(running, layout)
        self._files.set_cgroups(running)

    def _is_running(self, layout: CgroupLayout, path: str) -> bool:
        directories = {layout.directory(name, path) for name in ("cpuacct", "memory")}
        return any(place is not None and self._host.exists(place) for place in directories)

    def _measure(self, files: _ApplicationFiles, now_s: float) -> HostApplicationUsage:
        table, total_memory = files.groups.read(now_s), files.total_memory.read()
        by_name = {}
        for name, row in table.index.items():
            if table.cpu_ns[row] is None and table.memory[row] is None:
                continue  # it stopped after the last check
            by_name[name] = msgspec.structs.replace(
                table[name], memory_with_cache_bytes=total_memory[row]
            )
        separate = [use for name, use in by_name.items() if name in self._separate]
        return HostApplicationUsage(
            by_name=by_name,
            cpu_cores=sum(use.cpu_cores or 0.0 for use in separate),
            memory_bytes=sum(use.memory_bytes or 0 for use in separate),
        )
