"""Finds the first process of a container by its cgroup, because process ids are reused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from agent.cgroup.layout import CgroupLayout, parse_container_dir
from agent.errors import HostFileError
from agent.snapshot.host_files import HostFiles
from agent.verification.procfs import parse_start_ticks
from agent.wire_formats.kernel_text import parse_digits

MAX_PIDS_READ = 64 * 1024  # bytes of a `cgroup.procs`
MAX_CGROUPS = 32  # searched below a container's cgroup, which may contain groups of its own
MAX_GROUP_DEPTH = 2

# files of the kernel in a cgroup: of the core, or with the name of a controller; systemd gives no
# group such a name
_KERNEL_FILE = re.compile(
    r"(?:cgroup|cpu|cpuacct|cpuset|memory|blkio|io|pids|devices|freezer|hugetlb|misc|rdma"
    r"|net_cls|net_prio|perf_event)\.|(?:tasks|notify_on_release|release_agent)$"
)


class FirstProcess(msgspec.Struct, frozen=True):
    """A process id and a start time; together they identify one process."""

    pid: int
    start_ticks: int


def container_cgroup(
    host: HostFiles, layout: CgroupLayout, pod_cgroups: tuple[str, ...], container_id: str
) -> str | None:
    """Return the cgroup of a container below one of its pod's cgroups; `None` if there is none."""
    for cgroup in pod_cgroups:
        folder = _folder(layout, cgroup)
        if folder is None:
            continue
        try:
            names = host.names(folder)
        except HostFileError:
            continue
        for name in names:
            if parse_container_dir(name) == container_id:
                return f"{cgroup}/{name}"
    return None


def first_process(host: HostFiles, layout: CgroupLayout, cgroup: str) -> FirstProcess | None:
    """Return the oldest process of a container; younger ones may come from `exec`."""
    folder = _folder(layout, cgroup)
    if folder is None:
        return None
    processes = (
        FirstProcess(pid, started)
        for pid in _pids(host, folder)
        for started in _start_times(host, pid)
    )
    return min(processes, key=lambda one: (one.start_ticks, one.pid), default=None)


def is_alive(host: HostFiles, process: FirstProcess) -> bool:
    """Return whether the process still runs and its process id was not reused."""
    return process.start_ticks in _start_times(host, process.pid)


def _folder(layout: CgroupLayout, cgroup: str) -> str | None:
    for controller in ("devices", "pids", "memory", "cpu"):
        folder = layout.directory(controller, cgroup)
        if folder is not None:
            return folder
    return None


def _pids(host: HostFiles, folder: str) -> Iterator[int]:
    """Yield the processes of a cgroup, else of its children: runtimes and systemd move them."""
    groups, level = [folder], 0
    while groups and level <= MAX_GROUP_DEPTH:
        pids = [pid for group in groups for pid in _member_pids(host, group)]
        if pids:
            yield from pids
            return
        groups = [below for group in groups for below in _subgroups(host, group)][:MAX_CGROUPS]
        level += 1


def _member_pids(host: HostFiles, folder: str) -> Iterator[int]:
    try:
        data = host.read(f"{folder}/cgroup.procs", MAX_PIDS_READ)
    except HostFileError:
        return
    yield from filter(None, (parse_digits(word, 10) for word in data.split()))


def _subgroups(host: HostFiles, folder: str) -> Iterator[str]:
    try:
        names = host.names(folder)
    except HostFileError:
        return
    candidates = (name for name in names if not _KERNEL_FILE.match(name))
    # only a child cgroup has this file
    yield from (f"{folder}/{n}" for n in candidates if host.exists(f"{folder}/{n}/cgroup.procs"))


def _start_times(host: HostFiles, pid: int) -> tuple[int, ...]:
    try:
        started = parse_start_ticks(host.read(f"/proc/{pid}/stat"))
    except HostFileError:
        return ()
    return () if started is None else (started,)
