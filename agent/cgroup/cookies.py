"""Core-scheduling cookies of processes, by `prctl`: the only edge to that call.

Taking a cookie over changes the thread that asks, so that each change is made in a thread of its
own, which ends with it. Needs the right to trace the process.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from agent.errors import AgentError

DEFAULT = 0  # the cookie of a process that has none

_PR_SCHED_CORE = 62
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)
_THREAD, _THREAD_GROUP = 0, 1
_WAIT_S = 5.0  # the calls do not block; a machine that is stuck must not hold the agent

T = TypeVar("T")


class CookieRefused(AgentError):
    """The kernel did not do it: without support `unsupported`, for a process that ended `ended`."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"core scheduling: {what}: {os.strerror(number)}")
        self.errno = number
        self.unsupported = number in (errno.ENODEV, errno.EINVAL, errno.ENOSYS)
        self.ended = number == errno.ESRCH


class Cookies(Protocol):
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


class KernelCookies:
    """The machine's own."""

    def __init__(self) -> None:
        """Load nothing but the C library, which is there."""
        import ctypes  # noqa: PLC0415 - only where core scheduling is on

        self._ctypes = ctypes
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

    def get(self, pid: int) -> int:
        """Ask for the cookie; see `Cookies`."""
        found = self._ctypes.c_uint64(DEFAULT)
        self._call("get", _GET, pid, _THREAD, self._ctypes.addressof(found))
        return int(found.value)

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
                except CookieRefused as error:
                    if not error.ended:
                        raise
                    continue
                done.append(pid)
            return tuple(done)

        return _apart(work)

    def _call(self, what: str, operation: int, pid: int, scope: int, pointer: int = 0) -> None:
        self._ctypes.set_errno(0)
        if self._prctl(_PR_SCHED_CORE, operation, pid, scope, pointer) != 0:
            raise CookieRefused(f"{what} of process {pid}", self._ctypes.get_errno())


def _apart(work: Callable[[], T]) -> T:
    """Run in a fresh thread, whose cookie is then nobody's."""
    done: list[T] = []
    failed: list[CookieRefused] = []

    def run() -> None:
        try:
            done.append(work())
        except CookieRefused as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="core-cookie", daemon=True)
    thread.start()
    thread.join(_WAIT_S)
    if failed:
        raise failed[0]
    if not done:
        raise CookieRefused("share", errno.ETIMEDOUT)
    return done[0]
