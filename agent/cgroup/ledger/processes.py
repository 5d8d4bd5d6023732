"""What processes have instead of cgroups, their `oom_score_adj` and cookies: putting it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.cgroup.cookies import CookieRefused, Cookies, KernelCookies
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import CORE, Entry
from agent.cgroup.writing.kernel import KernelFiles
from agent.errors import HostFileError, ParseError
from agent.topology.text import parse_int

KEY, COOKIE = "oom_score_adj", "core_cookie"
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
    files: KernelFiles,
    layout: CgroupLayout,
    entry: Entry,
    *,
    force: bool,
    cookies: Callable[[], Cookies] = KernelCookies,
) -> tuple[str, str]:
    """Give the processes of a container back what they had; say state and why.

    That is the first score that was seen, and the default cookie.
    """
    place = directory(layout, entry.path)
    try:
        same = place is not None and files.inode(place) == entry.inode
    except HostFileError:
        same = False
    if place is None or not same:
        return "gone", ""
    if entry.hierarchy == CORE:
        return _without_cookies(files.pids(place), cookies)
    return _scores(files, files.pids(place), entry, force=force)


def _scores(
    files: KernelFiles, pids: Iterable[int], entry: Entry, *, force: bool
) -> tuple[str, str]:
    state = "same"
    for pid in pids:
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


def _without_cookies(pids: Iterable[int], cookies: Callable[[], Cookies]) -> tuple[str, str]:
    try:
        return ("restored" if cookies().share(None, pids) else "same"), ""
    except CookieRefused as error:
        return "refused", str(error)
