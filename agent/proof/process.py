"""Which process of a container came first, found by its cgroup: numbers alone are used again."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from agent.cgroup.layout import CgroupLayout, parse_container_dir
from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.proof.procfs import parse_started

MAX_PIDS_READ = 64 * 1024  # bytes of a `cgroup.procs`
MAX_GROUPS = 32  # looked into below a container, which may make its own
DEPTH = 2


class First(msgspec.Struct, frozen=True):
    """A process by number and start, which together are one process and no other."""

    pid: int
    started: int


def group_of(
    host: HostFiles, layout: CgroupLayout, pod_cgroups: tuple[str, ...], container_id: str
) -> str | None:
    """Return the cgroup of a container below one of these of its pod; `None`: there is none."""
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


def first_of(host: HostFiles, layout: CgroupLayout, cgroup: str) -> First | None:
    """Return the oldest process of a container: others were started into it, as by `exec`."""
    folder = _folder(layout, cgroup)
    if folder is None:
        return None
    found = (First(pid, started) for pid in _pids(host, folder) for started in _ages(host, pid))
    return min(found, key=lambda one: (one.started, one.pid), default=None)


def lives(host: HostFiles, process: First) -> bool:
    """Say whether it is still the same process."""
    return process.started in _ages(host, process.pid)


def _folder(layout: CgroupLayout, cgroup: str) -> str | None:
    for controller in ("devices", "pids", "memory", "cpu"):
        folder = layout.directory(controller, cgroup)
        if folder is not None:
            return folder
    return None


def _pids(host: HostFiles, folder: str) -> Iterator[int]:
    """Yield the processes of a group, or of those below it: runtimes and systemd move them."""
    groups, level = [folder], 0
    while groups and level <= DEPTH:
        pids = [pid for group in groups for pid in _members(host, group)]
        if pids:
            yield from pids
            return
        groups = [below for group in groups for below in _below(host, group)][:MAX_GROUPS]
        level += 1


def _members(host: HostFiles, folder: str) -> Iterator[int]:
    try:
        data = host.read(f"{folder}/cgroup.procs", MAX_PIDS_READ)
    except HostFileError:
        return
    words = (word for word in data.split() if word.isdigit() and len(word) < 11)
    yield from (int(word) for word in words if word != b"0")


def _below(host: HostFiles, folder: str) -> Iterator[str]:
    try:
        names = host.names(folder)
    except HostFileError:
        return
    # files of a cgroup have a dot after their controller's name, which groups that matter have not
    yield from (f"{folder}/{n}" for n in names if host.exists(f"{folder}/{n}/cgroup.procs"))


def _ages(host: HostFiles, pid: int) -> tuple[int, ...]:
    try:
        started = parse_started(host.read(f"/proc/{pid}/stat"))
    except HostFileError:
        return ()
    return () if started is None else (started,)
