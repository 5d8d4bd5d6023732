"""What work costs: instructions from the processor's counter, CPU seconds from the kernel."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
import struct
from collections.abc import Callable

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_IOC_ENABLE, _IOC_DISABLE, _IOC_RESET = 0x2400, 0x2401, 0x2403
_TYPE_HARDWARE, _COUNT_INSTRUCTIONS = 0, 1
_ATTR_BYTES = 112
_DISABLED, _INHERIT = 1 << 0, 1 << 1


class NoCounter(Exception):
    """The machine lets nobody count instructions; CPU time is used and the row says so."""


def _open_counter() -> int:
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        raise NoCounter(f"no perf_event_open number for {platform.machine()}")
    attr = struct.pack(
        "IIQQQQQ", _TYPE_HARDWARE, _ATTR_BYTES, _COUNT_INSTRUCTIONS, 0, 0, 0, _DISABLED | _INHERIT
    ).ljust(_ATTR_BYTES, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(number, attr, 0, -1, -1, 0)
    if fd < 0:
        raise NoCounter(f"perf_event_open: {os.strerror(ctypes.get_errno())}")
    return fd


def instructions(work: Callable[[], object]) -> float:
    """Return user and kernel instructions of `work`, ended child processes included."""
    fd = _open_counter()
    try:
        fcntl.ioctl(fd, _IOC_RESET, 0)
        fcntl.ioctl(fd, _IOC_ENABLE, 0)
        work()
        fcntl.ioctl(fd, _IOC_DISABLE, 0)
        return float(struct.unpack("Q", os.read(fd, 8))[0])
    finally:
        os.close(fd)


def _used_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def cpu_ms(work: Callable[[], object]) -> float:
    """Return CPU milliseconds of `work`, ended child processes included."""
    before_s = _used_s()
    work()
    return (_used_s() - before_s) * 1e3


def cost(work: Callable[[], object]) -> float:
    """Return instructions where they can be counted, else CPU milliseconds."""
    try:
        return instructions(work)
    except NoCounter:
        return cpu_ms(work)


def cost_metric() -> str:
    """Name what `cost` counts on this machine."""
    try:
        os.close(_open_counter())
    except NoCounter:
        return "cpu_ms"
    return "instructions"
