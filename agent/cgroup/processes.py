"""Attributes of processes outside cgroups: core scheduling cookies and `oom_score_adj`.

The kernel copies a cookie to the calling thread, so each change runs in a new thread. Changing a
cookie needs the right to trace the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol, TypeVar

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import CORE_HIERARCHY, LedgerEntry
from agent.cgroup.values import KernelFiles
from agent.errors import AgentError, HostFileError, ParseError
from agent.wire_formats.kernel_text import parse_int

DEFAULT_COOKIE = 0  # the cookie of a process without one
_PR_SCHED_CORE = 62
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)
_THREAD, _THREAD_GROUP = 0, 1
_WAIT_S = 5.0  # the calls do not block; a stuck machine must not block the agent
T = TypeVar("T")


class CookieError(AgentError):
    """The kernel refused a call.

    `is_unsupported` and `has_process_ended` tell two reasons apart.
    """

    def __init__(self, action: str, number: int) -> None:
        super().__init__(f"core scheduling: {action}: {os.strerror(number)}")
        self.errno = number
        self.is_unsupported = number in (errno.ENODEV, errno.EINVAL, errno.ENOSYS)
        self.has_process_ended = number == errno.ESRCH


class CoreCookies(Protocol):
    """Core scheduling of a kernel. Every error is a `CookieError`."""

    def get(self, pid: int) -> int:
        """Return a process's cookie."""
        ...

    def create(self, pid: int) -> None:
        """Create a cookie for a process with all its threads."""
        ...

    def share(self, source: int | None, targets: Iterable[int]) -> tuple[int, ...]:
        """Copy the cookie of a process, or the default, to others.

        Return the processes that have it.
        """
        ...


class KernelCoreCookies:
    """Core scheduling of this machine."""

    def __init__(self) -> None:
        """Load the C library."""
        self._ctypes = ctypes
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

    def get(self, pid: int) -> int:
        """Return the cookie; see `CoreCookies`."""
        cookie = self._ctypes.c_uint64(DEFAULT_COOKIE)
        self._call("get", _GET, pid, _THREAD, self._ctypes.addressof(cookie))
        return int(cookie.value)

    def create(self, pid: int) -> None:
        """Create a cookie; see `CoreCookies`."""
        self._call("create", _CREATE, pid, _THREAD_GROUP)

    def share(self, source: int | None, targets: Iterable[int]) -> tuple[int, ...]:
        """Copy a cookie in a thread of its own; see `CoreCookies`."""

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

    def _call(self, action: str, operation: int, pid: int, scope: int, pointer: int = 0) -> None:
        self._ctypes.set_errno(0)
        if self._prctl(_PR_SCHED_CORE, operation, pid, scope, pointer) != 0:
            raise CookieError(f"{action} of process {pid}", self._ctypes.get_errno())


@lru_cache(maxsize=1)
def supports_core_scheduling() -> bool:
    """Return whether this machine's kernel has cookies; it has none without hyper-threads."""
    try:
        KernelCoreCookies().get(0)
    except CookieError:
        return False
    return True


def _run_in_thread(work: Callable[[], T]) -> T:
    """Run in a new thread, which ends with the cookie that it got."""
    results: list[T] = []
    errors: list[CookieError] = []

    def run() -> None:
        try:
            results.append(work())
        except CookieError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="core-cookie", daemon=True)
    thread.start()
    thread.join(_WAIT_S)
    if errors:
        raise errors[0]
    if not results:
        raise CookieError("share", errno.ETIMEDOUT)
    return results[0]


OOM_SCORE_ADJ, CORE_COOKIE = "oom_score_adj", "core_cookie"

MIN_OOM_SCORE, MAX_OOM_SCORE = -1000, 1000

# controllers whose `cgroup.procs` lists a container's processes on version 1
PROCESS_CONTROLLERS = ("memory", "cpu", "cpuacct")


def process_directory(layout: CgroupLayout, cgroup: str) -> str | None:
    """Return the directory whose `cgroup.procs` lists a container's processes."""
    directories = (layout.directory(controller, cgroup) for controller in PROCESS_CONTROLLERS)
    return next((directory for directory in directories if directory is not None), None)


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
    """Restore the processes of a container; return state and detail.

    They get the first OOM score that was read, and the default cookie.
    """
    directory = process_directory(layout, entry.path)
    try:
        is_same_group = directory is not None and files.inode(directory) == entry.inode
    except HostFileError:
        is_same_group = False
    if directory is None or not is_same_group:
        return "gone", ""
    if entry.hierarchy == CORE_HIERARCHY:
        return _reset_cookies(files.pids(directory), cookies)
    return _restore_scores(files, files.pids(directory), entry, force=force)


def _restore_scores(
    files: KernelFiles, pids: Iterable[int], entry: LedgerEntry, *, force: bool
) -> tuple[str, str]:
    state = "same"
    for pid in pids:
        score = read_oom_score(files, pid)
        if score is None or str(score) == entry.original:
            continue
        if str(score) not in entry.own_values and not force:
            return "foreign", f"process {pid} has {score}"
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
