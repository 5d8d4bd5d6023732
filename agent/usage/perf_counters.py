"""Counters of one cgroup on one CPU, by the system call perf_event_open(2).

Python has no function for this call, so `ctypes` calls the C library's `syscall`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Sequence

import msgspec

# perf_event_open, by `platform.machine()`
_SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "loongarch64": 241}
_FLAG_CGROUP, _FLAG_CLOEXEC = 1 << 2, 1 << 3
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")  # perf_event_attr as of its first version: 64 bytes
_READ_FORMAT = 1 << 0 | 1 << 1 | 1 << 3  # time enabled, time running, the whole group
_DISABLED = 1 << 0
_IOCTL_ENABLE, _WHOLE_GROUP = 0x2400, 1
_READING_HEAD = 3  # 64-bit numbers before the counts: how many counts, time enabled, time running


class PerfEvent(msgspec.Struct, frozen=True):
    """What a counter counts: type and number as in linux/perf_event.h."""

    type: int
    config: int


CYCLES, INSTRUCTIONS = PerfEvent(0, 0), PerfEvent(0, 1)

TASK_CLOCK = PerfEvent(1, 1)  # every kernel counts it, with and without a hardware PMU


class GroupReading(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one group, and the times by which they are scaled, in nanoseconds."""

    enabled_ns: int
    running_ns: int  # less than `enabled_ns` where other users had the hardware's counters
    counts: tuple[int, ...]

    def scaled(self) -> tuple[int, ...] | None:
        """Return counts for the whole time; `None` if the group was never on the hardware.

        A cgroup that did not run on the CPU has no time and no counts: that is a real 0.
        """
        if self.enabled_ns == self.running_ns == 0:
            return self.counts
        if not 0 < self.running_ns <= self.enabled_ns:
            return None
        return tuple(count * self.enabled_ns // self.running_ns for count in self.counts)


def parse_group_reading(data: bytes, events: int) -> GroupReading | None:
    """Return what a read of a group's first descriptor holds; `None` if it is incomplete."""
    words = _READING_HEAD + events
    if len(data) != 8 * words:
        return None
    size, enabled_ns, running_ns, *counts = struct.unpack(f"={words}Q", data)
    if size != events:
        return None
    return GroupReading(enabled_ns=enabled_ns, running_ns=running_ns, counts=tuple(counts))


class CounterGroup:
    """Events that the kernel puts on the hardware together. They count once `enable` is called."""

    def __init__(self, cgroup_fd: int, cpu: int, events: Sequence[PerfEvent]) -> None:
        """Open one descriptor for each event; raise `OSError` and open none if one is refused."""
        self._fds: list[int] = []
        try:
            for event in events:
                leader = self._fds[0] if self._fds else -1
                self._fds.append(_open_event(event, cgroup_fd, cpu, leader))
        except OSError:
            self.close()
            raise

    def enable(self) -> None:
        """Start all counters of the group."""
        fcntl.ioctl(self._fds[0], _IOCTL_ENABLE, _WHOLE_GROUP)

    def read(self) -> GroupReading | None:
        """Return the counts since `enable`; `None` if the kernel has none (the CPU went away)."""
        size = 8 * (_READING_HEAD + len(self._fds))
        return parse_group_reading(os.read(self._fds[0], size), len(self._fds))

    def close(self) -> None:
        """Close all descriptors, the first one last."""
        while self._fds:
            os.close(self._fds.pop())


def is_cgroup_countable(cgroup_fd: int, cpu: int) -> bool:
    """Return whether the kernel counts this cgroup at all, by an event that needs no hardware."""
    try:
        CounterGroup(cgroup_fd, cpu, (TASK_CLOCK,)).close()
    except OSError:
        return False
    return True


def _open_event(event: PerfEvent, cgroup_fd: int, cpu: int, leader: int) -> int:
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    flags = _DISABLED if leader < 0 else 0
    attributes = _ATTRIBUTES.pack(
        event.type, _ATTRIBUTES.size, event.config, 0, 0, _READ_FORMAT, flags, 0, 0, 0
    )
    fd = _libc.syscall(number, attributes, cgroup_fd, cpu, leader, _FLAG_CGROUP | _FLAG_CLOEXEC)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


_libc = ctypes.CDLL(None, use_errno=True)

_libc.syscall.argtypes = (
    *(ctypes.c_long, ctypes.c_char_p),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ulong),
)

_libc.syscall.restype = ctypes.c_long
