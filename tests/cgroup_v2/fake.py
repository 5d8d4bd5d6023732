"""Version 2 control groups in memory, which answer as Linux 6.1 does.

`tests/unit/cgroup/test_fake_v2.py` compares the fake with the recorded answers of the kernel.
"""

from __future__ import annotations

import errno
import itertools
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from agent.cgroup.values import ExpectedBytes
from agent.errors import HostFileError, ParseError
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list
from tests.cgroup_v2.disks import FakeDisks, GroupDisks
from tests.cgroup_v2.session import CACHE_BYTES, CPUS

MOUNT = "/sys/fs/cgroup"
PAGE = 4096
MAX_CPU_NUMBER = 8191  # CONFIG_NR_CPUS of the distribution's kernel, less one
NO_LIMIT = 1 << 62
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
QUOTA_US = range(1000, 1 << 44)
PERIOD_US = range(1000, 1_000_001)
WEIGHT = range(1, 10_001)

_numbers = itertools.count(2)


@dataclass
class Group:
    """What one group holds."""

    cpus: frozenset[int] = frozenset()
    quota_us: int | None = None
    period_us: int = 100_000
    burst_us: int = 0
    weight: int = 100
    idle: int = 0
    max_bytes: int = NO_LIMIT
    high_bytes: int = NO_LIMIT
    low_bytes: int = 0
    min_bytes: int = 0
    oom_group: int = 0
    disks: GroupDisks = field(default_factory=GroupDisks)
    processes: int = 0
    anonymous_bytes: int = 0
    cache_bytes: int = 0
    inode: int = field(default_factory=lambda: next(_numbers))


class FakeKernel:
    """All groups by their path below the mount. Errors are `OSError` with the kernel's errno."""

    def __init__(self, root: str) -> None:
        """Make the group `root` and those above it."""
        self.disks = FakeDisks()
        self.groups: dict[str, Group] = {"": Group()}
        above = ""
        for part in root.strip("/").split("/"):
            above = f"{above}/{part}"
            self.groups[above] = Group()

    def make(self, cgroup: str) -> None:
        """Make a group."""
        if cgroup in self.groups:
            raise OSError(errno.EEXIST, cgroup)
        self.groups[cgroup] = Group()

    def remove(self, cgroup: str) -> None:
        """Remove a group without groups and processes in it."""
        below = any(name.startswith(f"{cgroup}/") for name in self.groups)
        if below or self.group(cgroup).processes:
            raise OSError(errno.EBUSY, cgroup)
        del self.groups[cgroup]

    def group(self, cgroup: str) -> Group:
        """Return what a group holds."""
        if cgroup not in self.groups:
            raise OSError(errno.ENOENT, cgroup)
        return self.groups[cgroup]

    def used(self, cgroup: str) -> int:
        """Return the bytes that a group uses, with all groups below it."""
        return sum(
            one.anonymous_bytes + one.cache_bytes
            for name, one in self.groups.items()
            if _within(name, cgroup)
        )

    def read(self, path: str) -> str:
        """Return what a file holds."""
        cgroup, _, file = path.rpartition("/")
        group = self.group(cgroup)
        if file.startswith("io."):
            return self.disks.read(file, group.disks, is_root=not cgroup)
        quota = "max" if group.quota_us is None else group.quota_us
        shown: dict[str, object] = {
            "cpuset.cpus.effective": format_cpu_list(self._effective(cgroup)),
            "cgroup.events": f"populated {int(self._populated(cgroup))}\nfrozen 0",
            "cpuset.cpus": format_cpu_list(group.cpus),
            "cpu.max": f"{quota} {group.period_us}",
            "cpu.max.burst": group.burst_us,
            "cpu.weight": 0 if group.idle else group.weight,
            "cpu.idle": group.idle,
            "memory.max": _limit(group.max_bytes),
            "memory.high": _limit(group.high_bytes),
            "memory.low": _limit(group.low_bytes),
            "memory.min": _limit(group.min_bytes),
            "memory.oom.group": group.oom_group,
            "memory.current": self.used(cgroup),
        }
        if file not in shown:
            raise OSError(errno.ENOENT, path)
        return f"{shown[file]}\n"

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        cgroup, _, file = path.rpartition("/")
        group = self.group(cgroup)
        if not text:
            return  # the kernel is never asked
        if file.startswith("io."):
            self.read(path)  # raises where there is no such file
            number = self.disks.write(file, group.disks, text)
            if number:
                raise OSError(number, path)
            return
        writers: dict[str, Callable[[], int]] = {
            "cpuset.cpus": lambda: self._set_cpus(cgroup, group, text),
            "cpu.max": lambda: _set_quota(group, text),
            "cpu.max.burst": lambda: _set_burst(group, text),
            "cpu.weight": lambda: _set_weight(group, text),
            "cpu.idle": lambda: _set_idle(group, text),
            "memory.max": lambda: self._set_max(cgroup, group, text),
            "memory.high": lambda: self._set_high(cgroup, group, text),
            "memory.low": lambda: _set_protection(group, "low_bytes", text),
            "memory.min": lambda: _set_protection(group, "min_bytes", text),
            "memory.oom.group": lambda: _set_oom_group(group, text),
        }
        number = writers[file]() if file in writers else errno.EINVAL
        if number:
            raise OSError(number, path)

    def _set_cpus(self, cgroup: str, group: Group, text: str) -> int:
        try:
            cpus = parse_cpu_list(text, 1 << 16)
        except ParseError:
            # a number beyond every kernel's is one that this parser does not take either
            return errno.ERANGE if re.fullmatch(r"[0-9]+-[0-9]{5,}", text) else errno.EINVAL
        if cpus and max(cpus) > MAX_CPU_NUMBER:
            return errno.ERANGE
        if not cpus and group.cpus and self._populated(cgroup):
            return errno.ENOSPC
        group.cpus = cpus
        return 0

    def _set_max(self, cgroup: str, group: Group, text: str) -> int:
        limit = _memory(text)
        if limit is None:
            return errno.EINVAL
        group.max_bytes = limit
        self._reclaim(cgroup, limit)
        for name, one in self.groups.items():
            if self.used(cgroup) > limit and _within(name, cgroup):  # what the kernel then kills
                one.processes = one.anonymous_bytes = 0
        return 0

    def _set_high(self, cgroup: str, group: Group, text: str) -> int:
        limit = _memory(text)
        if limit is None:
            return errno.EINVAL
        group.high_bytes = limit
        self._reclaim(cgroup, limit)
        return 0

    def _reclaim(self, cgroup: str, limit: int) -> None:
        for name, one in self.groups.items():
            over = self.used(cgroup) - limit
            if over > 0 and _within(name, cgroup):
                one.cache_bytes -= min(one.cache_bytes, over)

    def _populated(self, cgroup: str) -> bool:
        return any(one.processes for name, one in self.groups.items() if _within(name, cgroup))

    def _effective(self, cgroup: str) -> frozenset[int]:
        if not cgroup:
            return frozenset(range(CPUS))
        above = self._effective(cgroup.rpartition("/")[0])
        return (self.groups[cgroup].cpus & above) or above


class FakeGroups:
    """The session's side of a fake kernel; see `tests.cgroup_v2.session.Groups`."""

    def __init__(self, kernel: FakeKernel, root: str) -> None:
        self._kernel = kernel
        self._root = root

    def make(self, group: str) -> str:
        """Make a group."""
        return _answer(lambda: self._kernel.make(self._path(group)))

    def remove(self, group: str) -> str:
        """Remove a group."""
        return _answer(lambda: self._kernel.remove(self._path(group)))

    def write(self, path: str, text: str) -> str:
        """Write a file."""
        return _answer(lambda: self._kernel.write(self._path(path), text))

    def read(self, path: str) -> str:
        """Read a file."""
        try:
            return self._kernel.read(self._path(path))
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def enter(self, group: str) -> str:
        """Start a process."""
        self._kernel.group(self._path(group)).processes += 1
        return "ok"

    def hold(self, group: str, size_bytes: int) -> str:
        """Hold memory, and what a process needs besides."""
        self._kernel.group(self._path(group)).anonymous_bytes += size_bytes + (2 << 20)
        return self.enter(group)

    def read_file(self, group: str) -> str:
        """Fill the page cache."""
        self._kernel.group(self._path(group)).cache_bytes += CACHE_BYTES
        return self.enter(group)

    def leave(self, group: str) -> str:
        """End the processes; the page cache stays."""
        one = self._kernel.group(self._path(group))
        one.processes = one.anonymous_bytes = 0
        return "ok"

    def alive(self, group: str) -> str:
        """Return whether processes run."""
        return "alive" if self._kernel.group(self._path(group)).processes else "none"

    def uses_at_most(self, group: str, size_bytes: int) -> str:
        """Compare the use."""
        return "yes" if self._kernel.used(self._path(group)) <= size_bytes else "no"

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"


class FakeFiles:
    """The agent's side of a fake kernel: its `CgroupFiles`."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.writes: list[tuple[str, str]] = []  # each that the kernel took: path and text

    def read(self, path: str, size: int) -> bytes:
        """Read the start of a file."""
        try:
            return self.kernel.read(path.removeprefix(MOUNT)).encode()[:size]
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        name = path.removeprefix(MOUNT)
        try:
            self.kernel.write(name, text)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        self.writes.append((name, text))

    def inode(self, path: str) -> int:
        """Return a directory's number."""
        try:
            return self.kernel.group(path.removeprefix(MOUNT)).inode
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def holds(self, expected: Iterable[ExpectedBytes]) -> bool:
        """Return whether each file starts with these bytes."""
        return all(self.read(path, size) == data for path, size, data in expected)

    def generation(self, path: str) -> None:
        """Return `None`: no descriptor stays open."""

    def close(self, path: str) -> None:
        """Keep nothing open."""


def _answer(work: Callable[[], None]) -> str:
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def _within(name: str, cgroup: str) -> bool:
    return name == cgroup or name.startswith(f"{cgroup}/")


def _limit(size: int) -> object:
    return "max" if size == NO_LIMIT else size


def _memory(text: str) -> int | None:
    """Return bytes in whole pages, as the kernel stores them."""
    if text.strip() == "max":
        return NO_LIMIT
    match = re.fullmatch(r"([0-9]+)([KMG]?)", text.strip())
    return None if match is None else int(match[1]) * UNITS[match[2]] // PAGE * PAGE


def _set_protection(group: Group, name: str, text: str) -> int:
    size_bytes = _memory(text)
    if size_bytes is None:
        return errno.EINVAL
    setattr(group, name, size_bytes)
    return 0


def _set_oom_group(group: Group, text: str) -> int:
    if text.strip() not in ("0", "1"):
        return errno.EINVAL
    group.oom_group = int(text)
    return 0


def _number(text: str) -> int | None:
    with suppress(ValueError):
        return int(text)
    return None


def _set_quota(group: Group, text: str) -> int:
    fields = text.split()
    quota_us = None if fields[0] == "max" else _number(fields[0])
    period_us = _number(fields[1]) if len(fields) == 2 else group.period_us
    if period_us not in PERIOD_US or (fields[0] != "max" and quota_us not in QUOTA_US):
        return errno.EINVAL
    if quota_us is not None and group.burst_us > quota_us:
        return errno.EINVAL
    group.quota_us, group.period_us = quota_us, period_us or 0
    return 0


def _set_burst(group: Group, text: str) -> int:
    burst_us = _number(text)
    if burst_us is None or burst_us < 0:
        return errno.EINVAL
    if group.quota_us is not None and burst_us > group.quota_us:
        return errno.EINVAL
    group.burst_us = burst_us
    return 0


def _set_weight(group: Group, text: str) -> int:
    weight = _number(text)
    if weight not in WEIGHT:
        return errno.ERANGE
    if group.idle:
        return errno.EINVAL
    group.weight = weight or 0
    return 0


def _set_idle(group: Group, text: str) -> int:
    idle = _number(text)
    if idle not in (0, 1):
        return errno.EINVAL
    if group.idle and not idle:
        group.weight = 100
    group.idle = idle or 0
    return 0
