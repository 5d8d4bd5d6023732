"""`oom_score_adj`, which processes have instead of cgroups: reading, writing, putting back."""

from __future__ import annotations

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import Entry
from agent.cgroup.writing.kernel import KernelFiles
from agent.errors import HostFileError, ParseError
from agent.topology.text import parse_int

KEY = "oom_score_adj"
LOWEST, HIGHEST = -1000, 1000
# whose `cgroup.procs` tells a container's processes on version 1: the kubelet makes them all
CONTROLLERS = ("memory", "cpu", "cpuacct")


def directory(layout: CgroupLayout, cgroup: str) -> str | None:
    """Return where a container's processes are listed."""
    found = (layout.directory(controller, cgroup) for controller in CONTROLLERS)
    return next((place for place in found if place is not None), None)


def score(files: KernelFiles, pid: int) -> int | None:
    """Return a process's value; `None` if it has ended."""
    path = f"/proc/{pid}/{KEY}"
    try:
        return parse_int(files.read(path, 32).decode("ascii", "replace"), LOWEST, HIGHEST)
    except (HostFileError, ParseError):
        return None
    finally:
        files.close(path)


def restore_processes(
    files: KernelFiles, layout: CgroupLayout, entry: Entry, *, force: bool
) -> tuple[str, str]:
    """Give the processes of a container the first value back that was seen; say state and why."""
    place = directory(layout, entry.path)
    try:
        same = place is not None and files.inode(place) == entry.inode
    except HostFileError:
        same = False
    if place is None or not same:
        return "gone", ""
    state = "same"
    for pid in files.pids(place):
        now = score(files, pid)
        if now is None or str(now) == entry.original:
            continue
        if str(now) not in entry.ours and not force:
            return "foreign", f"process {pid} has {now}"
        try:
            files.write(f"/proc/{pid}/{KEY}", entry.original)
        except HostFileError as error:
            return "refused", str(error)
        state = "restored"
    return state, ""
