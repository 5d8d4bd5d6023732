"""Reads many files per cycle.

Cached descriptors, one `pread` per file, rarer reads of slow files.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, count, repeat
from operator import ne
from typing import Generic, TypeVar

import msgspec

from agent.cgroup import usage_files
from agent.cgroup.layout import CgroupLayout
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles
from agent.snapshot.host_files import MAX_READ, HostFiles
from agent.snapshot.usage import PRESSURE_RESOURCES, Pressure

V = TypeVar("V")
RESERVED_DESCRIPTORS = 512  # left to the rest of the process
NO_DATA = b""
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class DescriptorCache:
    """Descriptors of a live host within a limit; a recorded host is read by path.

    The limit is the process's own one minus `RESERVED_DESCRIPTORS`: further files are opened for
    each read. The empty path stands for an absent file. Descriptors that nobody closed end with
    the cache.
    """

    def __init__(self, host: HostFiles, *, limit: int | None = None) -> None:
        self._real_path = host.path if isinstance(host, LiveHostFiles) else None
        self._host = host
        self._open_fds: set[int] = set()
        self._free_count = _descriptor_limit() if limit is None else limit

    def __del__(self) -> None:
        """Close all descriptors."""
        for fd in self._open_fds:
            os.close(fd)

    def open(self, path: str) -> int | None:
        """Open a file; `None` on a recording, for an absent file, and beyond the limit."""
        if self._real_path is None or self._free_count <= 0 or not path:
            return None
        try:
            fd = os.open(self._real_path(path), _OPEN_FLAGS)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._free_count = 0  # the process has no more descriptors: do not try again
            return None
        self._free_count -= 1
        self._open_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor that `open` returned."""
        self._open_fds.discard(fd)
        os.close(fd)
        self._free_count += 1

    def read(self, path: str, size: int) -> bytes:
        """Read by path, with three system calls on a live host."""
        if not path:
            raise HostFileError(path, errno.ENOENT)
        if self._real_path is None:
            return self._host.read(path, size)
        try:
            fd = os.open(self._real_path(path), _OPEN_FLAGS)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        try:
            return os.pread(fd, size, 0)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        finally:
            os.close(fd)

    def is_open_file(self, fd: int, path: str) -> bool:
        """Return whether a descriptor is that of the file which has this path now."""
        if self._real_path is None:
            return False
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._real_path(path)))
        except OSError:  # nothing has the path any more
            return False

    def stats(self, fds: Iterable[int]) -> Iterator[os.stat_result]:
        """Stat open descriptors."""
        return map(os.fstat, fds)


def _descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, (soft if soft != resource.RLIM_INFINITY else 1 << 20) - RESERVED_DESCRIPTORS)


class FileBatchReader(Generic[V]):
    """One file in many cgroups. `read` returns a value per path, `None` for an absent one.

    A file that is longer than `size` is read again with more room; with `cut`, whose parser needs
    only the start, only if the parser refused it. `together` parses many files at less cost, or
    refuses all of them.
    """

    def __init__(
        self,
        descriptors: DescriptorCache,
        parse: Callable[[bytes], V],
        size: int,
        *,
        cut: bool = False,
        batch_parser: Callable[[Sequence[bytes]], Sequence[V]] | None = None,
    ) -> None:
        self._descriptors = descriptors
        self._parse = parse
        self._parse_batch = batch_parser
        self._size = size
        self._needs_start_only = cut
        self._paths: tuple[str, ...] = ()
        self._fds: list[int] = []  # -1: read by path
        self._last_data: list[bytes] = []
        self._values: list[V | None] = []
        self._has_all_descriptors = False  # every path has a descriptor
        self._is_file_lost = False  # a file that was read before was removed

    def set_paths(self, paths: Sequence[str]) -> None:
        """Set the paths to read; descriptors and values of remaining paths are kept."""
        new_paths = tuple(paths)
        if new_paths == self._paths:
            return
        positions = {path: i for i, path in enumerate(self._paths)}
        previous_positions = [positions.pop(path, None) for path in new_paths]
        for i in positions.values():
            self._close_descriptor(i)
        old_fds, old_last, old_values = self._fds, self._last_data, self._values
        self._paths = new_paths
        self._fds = [-1 if i is None else old_fds[i] for i in previous_positions]
        self._last_data = [NO_DATA if i is None else old_last[i] for i in previous_positions]
        self._values = [None if i is None else old_values[i] for i in previous_positions]
        self._has_all_descriptors = False

    def read(self) -> list[V | None]:
        """Read every path once; the caller owns the list."""
        if not self._has_all_descriptors:
            self._open()
        size = self._size
        data: list[bytes]
        try:
            data = list(map(os.pread, self._fds, repeat(size), repeat(0)))
        except OSError:  # one was removed, or has no descriptor: read them one by one
            data = [self._read_at(i) for i in range(len(self._paths))]
        previous_data, self._last_data = self._last_data, data
        changed_positions = list(compress(count(), map(ne, data, previous_data)))
        if changed_positions and not self._parse_batch_at(changed_positions):
            for i in changed_positions:
                self._parse_at(i, size)
        return self._values.copy()

    def pop_file_loss(self) -> bool:
        """Return whether a file was removed since the last call."""
        is_lost, self._is_file_lost = self._is_file_lost, False
        return is_lost

    def close(self) -> None:
        """Close all descriptors."""
        self.set_paths(())

    def _open(self) -> None:
        for i, fd in enumerate(self._fds):
            if fd < 0 and (new := self._descriptors.open(self._paths[i])) is not None:
                self._fds[i] = new
        self._has_all_descriptors = -1 not in self._fds

    def _close_descriptor(self, i: int) -> None:
        if self._fds[i] >= 0:
            self._descriptors.close(self._fds[i])
            self._fds[i] = -1
            self._has_all_descriptors = False

    def _read_at(self, i: int) -> bytes:
        """Read one path by descriptor or by name; empty if it is absent or refused."""
        try:
            if self._fds[i] >= 0:
                return os.pread(self._fds[i], self._size, 0)
            return self._descriptors.read(self._paths[i], self._size)
        except (OSError, HostFileError):
            self._close_descriptor(i)
            self._is_file_lost = self._is_file_lost or bool(self._last_data[i])
            return NO_DATA

    def _parse_batch_at(self, changed: Sequence[int]) -> bool:
        """Parse all changed files in one call; return whether that succeeded."""
        texts = [self._last_data[i] for i in changed]
        if self._parse_batch is None or (
            not self._needs_start_only and len(max(texts, key=len)) >= self._size
        ):
            return False
        try:
            values = self._parse_batch(texts)
        except ParseError:
            return False
        for i, value in zip(changed, values, strict=True):
            self._values[i] = value
        return True

    def _parse_at(self, i: int, size: int) -> None:
        """Parse a changed file; read it again with more room if it may be incomplete.

        `size` is the size of the first read: an earlier file may have increased it since.
        """
        value = self._parse_or_none(self._last_data[i])
        while (
            size <= len(self._last_data[i])
            and size < MAX_READ
            and not (self._needs_start_only and value is not None)
        ):
            if size == self._size:
                self._size = min(size * 2, MAX_READ)
            size = self._size
            self._last_data[i] = self._read_at(i)
            value = self._parse_or_none(self._last_data[i])
        self._values[i] = value

    def _parse_or_none(self, data: bytes) -> V | None:
        try:
            return self._parse(data) if data else None
        except ParseError:
            return None


DEFAULT_PERIOD_CYCLES = 10  # ten seconds, as Koordinator's PSI collector
MAX_MEMORY_AGE_S = 10.0  # an older value must not be subtracted from a current one
PRESSURE_BYTES = 512
MAX_NUMA_BYTES = 1 << 16
NODE_PRESSURE = tuple(f"/proc/pressure/{resource}" for resource in PRESSURE_RESOURCES)

PressureByResource = Mapping[str, Pressure]


class ReadSchedule(msgspec.Struct, frozen=True):
    """How often slow files are read, in cycles."""

    numa_memory_period: int = DEFAULT_PERIOD_CYCLES
    pressure_period: int | None = DEFAULT_PERIOD_CYCLES  # None: never

    @classmethod
    def for_intervals(cls, interval_s: float, pressure_interval_s: float | None) -> ReadSchedule:
        """Return the schedule for cycles at this interval."""
        pressure = None
        if pressure_interval_s is not None:
            pressure = max(1, round(pressure_interval_s / interval_s))
        return cls(
            numa_memory_period=max(1, int(MAX_MEMORY_AGE_S / interval_s)), pressure_period=pressure
        )


class RotatingReader(Generic[V]):
    """One value per key, read when the key is new and in every tenth cycle after that.

    Keys take turns, so that no cycle is longer than others. Descriptors are not kept open: the
    kernel would hold a page for each.
    """

    def __init__(
        self, read_value: Callable[[str], V | None], every: int = DEFAULT_PERIOD_CYCLES
    ) -> None:
        self._read_value = read_value
        self._period = every
        self._next_row = 0
        self._keys: tuple[str, ...] = ()
        self._values: list[V | None] = []
        self._unread_rows: list[int] = []

    def set_keys(self, keys: Sequence[str]) -> None:
        """Set the keys to read; values of remaining keys are kept."""
        values = dict(zip(self._keys, self._values, strict=True))
        for row in self._unread_rows:
            del values[self._keys[row]]  # never read yet
        self._keys = tuple(keys)
        self._values = [values.get(key) for key in self._keys]
        self._unread_rows = [row for row, key in enumerate(self._keys) if key not in values]

    def read(self) -> list[V | None]:
        """Read this cycle's part; the caller owns the list of all values."""
        rows = {*self._unread_rows, *range(self._next_row, len(self._keys), self._period)}
        self._unread_rows, self._next_row = [], (self._next_row + 1) % self._period
        for row in rows:
            self._values[row] = self._read_value(self._keys[row])
        return self._values.copy()


def pressure_reader(
    read_value: Callable[[str], PressureByResource | None], schedule: ReadSchedule
) -> RotatingReader[PressureByResource]:
    """Return a reader of pressure, or one that reads nothing if pressure is disabled."""
    if schedule.pressure_period is None:
        return RotatingReader(lambda _: None)
    return RotatingReader(read_value, schedule.pressure_period)


def read_pressure(descriptors: DescriptorCache, places: Sequence[str]) -> PressureByResource | None:
    """Read PSI from one file per resource; `None` if the kernel has or allows none of them.

    A kernel booted without `psi=1` returns EOPNOTSUPP: that means absent.
    """
    pressures: dict[str, Pressure] = {}
    for name, path in zip(PRESSURE_RESOURCES, places, strict=True):
        try:
            pressures[name] = usage_files.parse_pressure(descriptors.read(path, PRESSURE_BYTES))
        except (HostFileError, ParseError):
            continue
    return pressures or None


class PressureFileReader:
    """PSI of cgroups, from the first place on the host that has it."""

    def __init__(self, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self._descriptors = descriptors
        self._layout = layout
        candidates = usage_files.pressure_paths(layout, layout.root or "")
        readable = (read_pressure(descriptors, place) is not None for place in candidates)
        self._candidate = next((i for i, is_readable in enumerate(readable) if is_readable), None)

    def read(self, cgroup: str) -> PressureByResource | None:
        """Return the group's PSI; `None` if this host has none."""
        if self._candidate is None:
            return None
        return read_pressure(
            self._descriptors, usage_files.pressure_paths(self._layout, cgroup)[self._candidate]
        )


class NumaMemoryReader:
    """A pod's memory on each NUMA node, from `memory.numa_stat`."""

    def __init__(self, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self._descriptors = descriptors
        self._layout = layout
        self._parse = (
            usage_files.parse_numa_nodes_v2
            if layout.version == 2
            else usage_files.parse_numa_nodes_v1
        )

    def read(self, cgroup: str) -> Mapping[int, int] | None:
        """Return bytes by node; `None` if the kernel does not report them."""
        path = usage_files.MEMORY_NUMA.path(self._layout, cgroup)
        try:
            return self._parse(self._descriptors.read(path, MAX_NUMA_BYTES)) if path else None
        except (HostFileError, ParseError):
            return None
