"""Reads many files per cycle: cached descriptors, one `pread` a file, a schedule for slow files."""

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
from agent.snapshot.usage import Pressure

V = TypeVar("V")
RESERVED_DESCRIPTORS = 512  # descriptors left to the rest of the process
NO_DATA = b""
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class DescriptorCache:
    """Descriptors of a live host within a bound; a recorded host is read by path.

    The bound is the process's own limit less `RESERVE`: files beyond it cost an open a read. The
    empty path is a file that is not there.
    """

    def __init__(self, host: HostFiles, *, limit: int | None = None) -> None:
        self._real_path = host.path if isinstance(host, LiveHostFiles) else None
        self._host = host
        self._free_count = _descriptor_limit() if limit is None else limit

    def open(self, path: str) -> int | None:
        """Open and keep; `None` on a recording, for an absent file, and beyond the bound."""
        if self._real_path is None or self._free_count <= 0 or not path:
            return None
        try:
            fd = os.open(self._real_path(path), _OPEN_FLAGS)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._free_count = 0  # others took what was ours to take: stop asking
            return None
        self._free_count -= 1
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor that `open` returned."""
        os.close(fd)
        self._free_count += 1

    def read(self, path: str, size: int) -> bytes:
        """Read by path, with three system calls where the host is live."""
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

    def stats(self, fds: Iterable[int]) -> Iterator[os.stat_result]:
        """Stat kept descriptors."""
        return map(os.fstat, fds)


def _descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, (soft if soft != resource.RLIM_INFINITY else 1 << 20) - RESERVED_DESCRIPTORS)


class FileBatchReader(Generic[V]):
    """One file of many cgroups. `read` returns a value a path, `None` where there is none.

    A file that is longer than `size` is read again with more room; with `cut`, whose parser wants
    no more than the start, only if that refused it.
    `together` does what `parse` does for many files at less cost, or refuses them all.
    """

    def __init__(
        self,
        descriptors: DescriptorCache,
        parse: Callable[[bytes], V],
        size: int,
        *,
        cut: bool = False,
        together: Callable[[Sequence[bytes]], Sequence[V]] | None = None,
    ) -> None:
        self._descriptors = descriptors
        self._parse = parse
        self._parse_batch = together
        self._size = size
        self._needs_start_only = cut
        self._paths: tuple[str, ...] = ()
        self._fds: list[int] = []  # -1: read by path
        self._last_data: list[bytes] = []
        self._values: list[V | None] = []
        self._all_open = False  # every path has a descriptor
        self._has_lost_file = False  # a file that was read before is gone

    def set_paths(self, paths: Sequence[str]) -> None:
        """Read these from now on; descriptors and values of paths that stay are kept."""
        new = tuple(paths)
        if new == self._paths:
            return
        positions = {path: i for i, path in enumerate(self._paths)}
        olds = [positions.pop(path, None) for path in new]
        for i in positions.values():
            self._drop(i)
        old_fds, old_last, old_values = self._fds, self._last_data, self._values
        self._paths = new
        self._fds = [-1 if i is None else old_fds[i] for i in olds]
        self._last_data = [NO_DATA if i is None else old_last[i] for i in olds]
        self._values = [None if i is None else old_values[i] for i in olds]
        self._all_open = False

    def read(self) -> list[V | None]:
        """Read every path once; the list is the caller's."""
        if not self._all_open:
            self._open()
        size = self._size
        data: list[bytes]
        try:
            data = list(map(os.pread, self._fds, repeat(size), repeat(0)))
        except OSError:  # one is gone, or has no descriptor: take them one by one
            data = [self._read_one(i) for i in range(len(self._paths))]
        last, self._last_data = self._last_data, data
        changed = list(compress(count(), map(ne, data, last)))
        if changed and not self._parse_changed_batch(changed):
            for i in changed:
                self._parse_changed(i, size)
        return self._values.copy()

    def has_lost_file(self) -> bool:
        """Say whether a file has gone since the last time that this was asked."""
        lost, self._has_lost_file = self._has_lost_file, False
        return lost

    def close(self) -> None:
        """Let go of all descriptors."""
        self.set_paths(())

    def _open(self) -> None:
        for i, fd in enumerate(self._fds):
            if fd < 0 and (new := self._descriptors.open(self._paths[i])) is not None:
                self._fds[i] = new
        self._all_open = -1 not in self._fds

    def _drop(self, i: int) -> None:
        if self._fds[i] >= 0:
            self._descriptors.close(self._fds[i])
            self._fds[i] = -1
            self._all_open = False

    def _read_one(self, i: int) -> bytes:
        """Read one path by descriptor or by name; nothing where it is gone or refuses."""
        try:
            if self._fds[i] >= 0:
                return os.pread(self._fds[i], self._size, 0)
            return self._descriptors.read(self._paths[i], self._size)
        except (OSError, HostFileError):
            self._drop(i)
            self._has_lost_file = self._has_lost_file or bool(self._last_data[i])
            return NO_DATA

    def _parse_changed_batch(self, changed: Sequence[int]) -> bool:
        """Parse what changed at once; say whether that could be done."""
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

    def _parse_changed(self, i: int, size: int) -> None:
        """Parse what changed; read it again with more room while that may tell more.

        `size` is the room it was read with: a file before it may have made more since.
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
            self._last_data[i] = self._read_one(i)
            value = self._parse_or_none(self._last_data[i])
        self._values[i] = value

    def _parse_or_none(self, data: bytes) -> V | None:
        try:
            return self._parse(data) if data else None
        except ParseError:
            return None


DEFAULT_PERIOD_CYCLES = 10  # cycles; ten seconds, as Koordinator's PSI collector
MAX_MEMORY_AGE_S = 10.0  # an older value may not be subtracted from one of now
PRESSURE_BYTES = 512
MAX_NUMA_BYTES = 1 << 16
NODE_PRESSURE = tuple(f"/proc/pressure/{resource}" for resource in usage_files.RESOURCES)

PressureByResource = Mapping[str, Pressure]


class ReadSchedule(msgspec.Struct, frozen=True):
    """In which of how many cycles a slow file's turn is."""

    numa_memory_period: int = DEFAULT_PERIOD_CYCLES
    pressure_period: int | None = DEFAULT_PERIOD_CYCLES  # None: never

    @classmethod
    def for_intervals(cls, interval_s: float, pressure_interval_s: float | None) -> ReadSchedule:
        """Return the pace for cycles that are `interval_s` apart."""
        pressure = None
        if pressure_interval_s is not None:
            pressure = max(1, round(pressure_interval_s / interval_s))
        return cls(
            numa_memory_period=max(1, int(MAX_MEMORY_AGE_S / interval_s)), pressure_period=pressure
        )


class RotatingReader(Generic[V]):
    """A value a key, fetched when the key is new and in every tenth cycle after that.

    Keys take turns, so that no cycle is longer than the others. Descriptors are not kept: the
    kernel would hold a page for each.
    """

    def __init__(
        self, fetch: Callable[[str], V | None], every: int = DEFAULT_PERIOD_CYCLES
    ) -> None:
        self._fetch = fetch
        self._period = every
        self._turn = 0
        self._keys: tuple[str, ...] = ()
        self._values: list[V | None] = []
        self._unread_rows: list[int] = []

    def set_keys(self, keys: Sequence[str]) -> None:
        """Fetch these from now on; values of keys that stay are kept."""
        values = dict(zip(self._keys, self._values, strict=True))
        for row in self._unread_rows:
            del values[self._keys[row]]  # never fetched yet
        self._keys = tuple(keys)
        self._values = [values.get(key) for key in self._keys]
        self._unread_rows = [row for row, key in enumerate(self._keys) if key not in values]

    def read(self) -> list[V | None]:
        """Fetch this cycle's share; the list of all values is the caller's."""
        rows = {*self._unread_rows, *range(self._turn, len(self._keys), self._period)}
        self._unread_rows, self._turn = [], (self._turn + 1) % self._period
        for row in rows:
            self._values[row] = self._fetch(self._keys[row])
        return self._values.copy()


def pressure_reader(
    fetch: Callable[[str], PressureByResource | None], pace: ReadSchedule
) -> RotatingReader[PressureByResource]:
    """Return a column of pressure, or one that fetches nothing where it is not wanted."""
    if pace.pressure_period is None:
        return RotatingReader(lambda _: None)
    return RotatingReader(fetch, pace.pressure_period)


def read_pressure(descriptors: DescriptorCache, places: Sequence[str]) -> PressureByResource | None:
    """Read PSI from one file a resource; `None` if the kernel has or allows none of them.

    A kernel booted without `psi=1` answers EOPNOTSUPP: absent, not an error.
    """
    pressures: dict[str, Pressure] = {}
    for name, path in zip(usage_files.RESOURCES, places, strict=True):
        try:
            pressures[name] = usage_files.parse_pressure(descriptors.read(path, PRESSURE_BYTES))
        except (HostFileError, ParseError):
            continue
    return pressures or None


class PressureFileReader:
    """PSI of cgroups, from the one place of the host that has it."""

    def __init__(self, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self._descriptors = descriptors
        self._layout = layout
        candidates = usage_files.pressure_paths(layout, layout.root or "")
        readable = (read_pressure(descriptors, place) is not None for place in candidates)
        self._candidate = next((i for i, good in enumerate(readable) if good), None)

    def read(self, cgroup: str) -> PressureByResource | None:
        """Return the group's PSI; `None` if there is none on this host."""
        if self._candidate is None:
            return None
        return read_pressure(
            self._descriptors, usage_files.pressure_paths(self._layout, cgroup)[self._candidate]
        )


class NumaMemoryReader:
    """A pod's memory on each memory node, from `memory.numa_stat`."""

    def __init__(self, descriptors: DescriptorCache, layout: CgroupLayout) -> None:
        self._descriptors = descriptors
        self._layout = layout
        self._parse = (
            usage_files.parse_numa_nodes_v2
            if layout.version == 2
            else usage_files.parse_numa_nodes_v1
        )

    def read(self, cgroup: str) -> Mapping[int, int] | None:
        """Return bytes by node; `None` if the kernel does not tell."""
        path = usage_files.MEMORY_NUMA.path(self._layout, cgroup)
        try:
            return self._parse(self._descriptors.read(path, MAX_NUMA_BYTES)) if path else None
        except (HostFileError, ParseError):
            return None
