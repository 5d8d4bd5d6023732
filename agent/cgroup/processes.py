"""Attributes of processes outside cgroups: core-scheduling cookies and `oom_score_adj`.

The kernel copies a cookie to the calling thread, so each change runs in a new thread. Changing a
cookie needs the right to trace the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import CORE_HIERARCHY, LedgerEntry
from agent.cgroup.values import KernelFiles
from agent.errors import AgentError, HostFileError, ParseError
from agent.wire_formats.kernel_text import parse_int

DEFAULT_COOKIE = 0  # the cookie of a process that has none

_PR_SCHED_CORE = 62

_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)

_THREAD, _THREAD_GROUP = 0, 1

_WAIT_S = 5.0  # the calls do not block; a machine that is stuck must not hold the agent

T = TypeVar("T")


class CookieError(AgentError):
    """The kernel did not do it: without support `unsupported`, for a process that ended `ended`."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"core scheduling: {what}: {os.strerror(number)}")
        self.errno = number
        self.is_unsupported = number in (errno.ENODEV, errno.EINVAL, errno.ENOSYS)
        self.has_process_ended = number == errno.ESRCH


class CoreCookies(Protocol):
    """What a kernel does. Every error is a `CookieRefused`."""

    def get(self, pid: int) -> int:
        """Return a process's cookie."""
        ...

    def create(self, pid: int) -> None:
        """Give a process a new cookie, with all its threads."""
        ...

    def share(self, source: int | None, targets: Iterable[int]) -> tuple[int, ...]:
        """Give processes the cookie of another, or the default; return those that have it now."""
        ...


class KernelCoreCookies:
    """The machine's own."""

    def __init__(self) -> None:
        """Load nothing but the C library, which is there."""
        self._ctypes = ctypes
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

    def get(self, pid: int) -> int:
        """Ask for the cookie; see `Cookies`."""
        cookie = self._ctypes.c_uint64(DEFAULT_COOKIE)
        self._call("get", _GET, pid, _THREAD, self._ctypes.addressof(cookie))
        return int(cookie.value)

    def create(self, pid: int) -> None:
        """Make a cookie; see `Cookies`."""
        self._call("create", _CREATE, pid, _THREAD_GROUP)

    def share(self, source: int | None, targets: Iterable[int]) -> tuple[int, ...]:
        """Share a cookie in a thread of its own; see `Cookies`."""

        def work() -> tuple[int, ...]:
            if source is not None:
                self._call("share from", _SHARE_FROM, source, _THREAD)
            done = []
            for pid in targets:
                try:
                    self._call("share to", _SHARE_TO, pid, _THREAD_GROUP)
                except CookieError as error:
                    if not error.has_process_ended:
                        raise
                    continue
                done.append(pid)
            return tuple(done)

        return _run_in_thread(work)

    def _call(self, what: str, operation: int, pid: int, scope: int, pointer: int = 0) -> None:
        self._ctypes.set_errno(0)
        if self._prctl(_PR_SCHED_CORE, operation, pid, scope, pointer) != 0:
            raise CookieError(f"{what} of process {pid}", self._ctypes.get_errno())


def _run_in_thread(work: Callable[[], T]) -> T:
    """Run in a fresh thread, whose cookie is then nobody's."""
    done: list[T] = []
    failed: list[CookieError] = []

    def run() -> None:
        try:
            done.append(work())
        except CookieError as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="core-cookie", daemon=True)
    thread.start()
    thread.join(_WAIT_S)
    if failed:
        raise failed[0]
    if not done:
        raise CookieError("share", errno.ETIMEDOUT)
    return done[0]


OOM_SCORE_ADJ, CORE_COOKIE = "oom_score_adj", "core_cookie"

MIN_OOM_SCORE, MAX_OOM_SCORE = -1000, 1000

# whose `cgroup.procs` tells a container's processes on version 1: the kubelet makes them all
PROCESS_CONTROLLERS = ("memory", "cpu", "cpuacct")


def process_directory(layout: CgroupLayout, cgroup: str) -> str | None:
    """Return where a container's processes are listed."""
    directories = (layout.directory(controller, cgroup) for controller in PROCESS_CONTROLLERS)
    return next((place for place in directories if place is not None), None)


def read_oom_score(files: KernelFiles, pid: int) -> int | None:
    """Return a process's value; `None` if it has ended."""
    path = f"/proc/{pid}/{OOM_SCORE_ADJ}"
    try:
        return parse_int(
            files.read(path, 32).decode("ascii", "replace"), MIN_OOM_SCORE, MAX_OOM_SCORE
        )
    except (HostFileError, ParseError):
        return None
    finally:
        files.close(path)


def restore_processes(
    files: KernelFiles,
    layout: CgroupLayout,
    entry: LedgerEntry,
    *,
    force: bool,
    cookies: Callable[[], CoreCookies] = KernelCoreCookies,
) -> tuple[str, str]:
    """Give the processes of a container back what they had; say state and why.

    That is the first score that was seen, and the default cookie.
    """
    place = process_directory(layout, entry.path)
    try:
        same = place is not None and files.inode(place) == entry.inode
    except HostFileError:
        same = False
    if place is None or not same:
        return "gone", ""
    if entry.hierarchy == CORE_HIERARCHY:
        return _reset_cookies(files.pids(place), cookies)
    return _restore_scores(files, files.pids(place), entry, force=force)


def _restore_scores(
    files: KernelFiles, pids: Iterable[int], entry: LedgerEntry, *, force: bool
) -> tuple[str, str]:
    state = "same"
    for pid in pids:
        now = read_oom_score(files, pid)
        if now is None or str(now) == entry.original:
            continue
        if str(now) not in entry.ours and not force:
            return "foreign", f"process {pid} has {now}"
        try:
            files.write(f"/proc/{pid}/{OOM_SCORE_ADJ}", entry.original)
        except HostFileError as error:
            return "refused", str(error)
        state = "restored"
    return state, ""


def _reset_cookies(pids: Iterable[int], cookies: Callable[[], CoreCookies]) -> tuple[str, str]:
    try:
        return ("restored" if cookies().share(None, pids) else "same"), ""
    except CookieError as error:
        return "refused", str(error)
