"""Reads and writes single cgroup files, as bytes and as values. Descriptors stay open."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterable
from typing import Protocol

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import (
    BURST,
    CPUS,
    HIGH,
    MEMORY,
    SMALL_READ,
    UNLIMITED,
    CgroupKey,
    CgroupValue,
)
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import SYSCTL_HIERARCHY
from agent.cgroup.write_plan import CgroupWrite
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles
from agent.wire_formats.kernel_text import parse_cpu_list, parse_int

MAX_PROCS = 1 << 20  # bytes of one `cgroup.procs`
MAX_BELOW = 256  # groups below one container that are read
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

# O_TRUNC has no effect on kernel files; it makes a plain file contain only this text
_WRITE = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
_READ_AND_WRITE = os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK

DESCRIPTOR_SHARE = 4  # the agent keeps one of so many of the process's descriptors open


ExpectedBytes = tuple[str, int, bytes]  # path, how many bytes are read at most, contents


class CgroupFiles(Protocol):
    """Reads and writes of cgroup files. Every error is a `HostFileError` with the errno."""

    def read(self, path: str, size: int) -> bytes:
        """Return the start of a file."""
        ...

    def holds(self, expected: Iterable[ExpectedBytes]) -> bool:
        """Return whether each file starts with these bytes."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write a text with one system call; a short write is an error."""
        ...

    def inode(self, path: str) -> int:
        """Return a directory's inode, which is unique until the next boot."""
        ...

    def generation(self, path: str) -> int | None:
        """Return a number that changes when a file is opened again; `None`: it is not open."""
        ...

    def close(self, path: str) -> None:
        """Close a descriptor that is not needed any more."""
        ...


class KernelFiles:
    """The cgroup files of the live host. For one thread.

    A file has one descriptor at most. It is for reading only until the file is written; then a
    kernel file is opened for both, because opening it costs several times what a write does. Such a
    descriptor also reaches no other group than the one that was read. While it is open, the mount
    that it was opened through cannot become read-only.
    """

    def __init__(self, root: LiveHostFiles, *, limit: int | None = None) -> None:
        """Keep at most `limit` descriptors open; further files are opened for each read."""
        self._root = root
        self._fds: dict[str, int] = {}
        self._writable: dict[str, int] = {}  # those of them that are open for writing, too
        self._generations: dict[str, int] = {}  # of the open descriptors
        self._opened = 0  # descriptors since the start
        self._limit = _descriptor_limit() if limit is None else limit

    def read(self, path: str, size: int) -> bytes:
        """Read through an open descriptor; open the file again if its group was removed."""
        descriptor = self._fds.get(path)
        if descriptor is not None:
            try:
                return os.pread(descriptor, size, 0)
            except OSError:  # the group was removed; another may have its name
                self.close(path)
        try:
            fd = os.open(self._root.path(path), _READ)
            try:
                data = os.pread(fd, size, 0)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        if len(self._fds) < self._limit:
            self._keep(path, fd)
        else:
            os.close(fd)
        return data

    def _keep(self, path: str, fd: int) -> None:
        self._fds[path] = fd
        self._opened += 1
        self._generations[path] = self._opened

    def holds(self, expected: Iterable[ExpectedBytes]) -> bool:
        """Read all files in one loop: a call for each would cost as much as the kernel does."""
        descriptors, pread = self._fds, os.pread
        for path, size, data in expected:
            descriptor = descriptors.get(path)
            if descriptor is None:
                current = self.read(path, size)
            else:
                try:
                    current = pread(descriptor, size, 0)
                except OSError:
                    current = self.read(path, size)
            if current != data:
                return False
        return True

    def write(self, path: str, text: str) -> None:
        """Write with one call: Python's `open().write()` would hide the kernel's answer."""
        data, fd = text.encode(), self._writable.get(path)
        try:
            written_bytes = (
                self._open_and_write(path, data) if fd is None else os.pwrite(fd, data, 0)
            )
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        if written_bytes != len(data):
            raise HostFileError(path, errno.EIO)

    def _open_and_write(self, path: str, data: bytes) -> int:
        """Open and write; keep the descriptor if that of a kernel file is open for reading."""
        is_open = path in self._fds
        fd = os.open(self._root.path(path), _READ_AND_WRITE if is_open else _WRITE)
        is_kept = False
        try:
            # since Linux 6.16 a limit that is written without blocking reclaims no memory
            os.set_blocking(fd, True)
            written_bytes = os.write(fd, data)
            # a file that stores its text has a size now, and must be truncated before each write
            is_kept = is_open and not os.fstat(fd).st_size
        finally:
            if not is_kept:
                os.close(fd)
        if is_kept:
            self.close(path)
            self._keep(path, fd)
            self._writable[path] = fd
        return written_bytes

    def inode(self, path: str) -> int:
        """Stat the directory."""
        try:
            return os.stat(self._root.path(path)).st_ino
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def remove_directory(self, path: str) -> None:
        """Remove a group; its descriptors fail from then on."""
        try:
            os.rmdir(self._root.path(path))
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def generation(self, path: str) -> int | None:
        """Return the number of the descriptor; that of a removed group ends at its next read."""
        return self._generations.get(path)

    def close(self, path: str) -> None:
        """Close the file's descriptor, if there is one."""
        self._generations.pop(path, None)
        self._writable.pop(path, None)
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close_removed(self) -> None:
        """Close the descriptors of removed groups, which nothing may ask for any more."""
        by_directory: dict[str, list[str]] = {}
        for path in self._fds:
            by_directory.setdefault(os.path.dirname(path), []).append(path)
        for directory, paths in by_directory.items():
            if not os.path.isdir(self._root.path(directory)):
                for path in paths:
                    self.close(path)

    def close_all(self) -> None:
        """Close every descriptor."""
        for path in tuple(self._fds):
            self.close(path)

    def __del__(self) -> None:
        """Close all descriptors."""
        self.close_all()

    def pids(self, directory: str) -> tuple[int, ...]:
        """Return the processes of a group and of those below it (crun has them there)."""
        pids: set[int] = set()
        queue = [directory]
        for group in queue:
            data = self._read_once(f"{group}/cgroup.procs")
            pids.update(int(word) for word in data.split() if word.isdigit() and len(word) < 11)
            with contextlib.suppress(OSError), os.scandir(self._root.path(group)) as entries:
                queue += [f"{group}/{entry.name}" for entry in entries if entry.is_dir()]
            del queue[MAX_BELOW:]
        return tuple(sorted(pids))

    def _read_once(self, path: str) -> bytes:
        try:
            fd = os.open(self._root.path(path), _READ)
        except OSError:
            return b""  # the group was removed meanwhile
        try:
            return os.read(fd, MAX_PROCS)
        except OSError:
            return b""
        finally:
            os.close(fd)


def _descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 16 if soft == resource.RLIM_INFINITY else soft) // DESCRIPTOR_SHARE


ATTEMPTS = 3  # at a file that returns EAGAIN
EFFECTIVE_CPUS_FILE = "cpuset.cpus.effective"
EVENTS_FILE, POPULATED = "cgroup.events", b"populated 1"
MEMORY_FILES = {1: "memory.usage_in_bytes", 2: "memory.current"}  # by version
MAX_USED = 1 << 62
V2_HIERARCHY = "v2"  # name in the ledger

RawValue = tuple[bytes, ...]


class CgroupValues:
    """Reads and writes the values of one host's cgroups. Errors are `HostFileError`."""

    def __init__(self, files: CgroupFiles, layout: CgroupLayout) -> None:
        self.files = files
        self.layout = layout
        self._mounts: dict[str, str | None] = {}  # by controller

    def directory(self, cgroup: str, key: CgroupKey) -> str | None:
        """Return the directory of a key's file; `None` if this host has none."""
        controller = key.controller
        if controller not in self._mounts:
            self._mounts[controller] = self.layout.directory(controller, "")
        mount = self._mounts[controller]
        return None if mount is None else mount + cgroup.rstrip("/")

    @property
    def version(self) -> int:
        """Return the version of the controllers."""
        return self.layout.version

    def hierarchy(self, key: CgroupKey) -> str:
        """Return the ledger's name of the hierarchy of a key."""
        if key.host_file:
            return SYSCTL_HIERARCHY
        return V2_HIERARCHY if self.version == 2 else key.controller

    def paths(self, cgroup: str, key: CgroupKey) -> tuple[str, ...]:
        """Return the files of a value; none if this host has none."""
        directory = self.directory(cgroup, key)
        names = key.files(self.version)
        return () if directory is None else tuple(f"{directory}/{name}" for name in names)

    def read_raw(self, paths: tuple[str, ...], size: int) -> RawValue:
        """Read the bytes of a value, of each file this many at most."""
        if len(paths) == 1:
            return (self.files.read(paths[0], size),)
        return tuple([self.files.read(path, size) for path in paths])

    def read_value(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        """Return the value in force; `None` if it does not exist. Raises `ParseError`."""
        paths = self.paths(cgroup, key)
        if not paths:
            return None
        try:
            return key.parse(self.version, self.read_raw(paths, key.size))
        except HostFileError:
            return None

    def write(self, step: CgroupWrite, path: str = "") -> None:
        """Make one write, to this path of its file if given; try again a few times on EAGAIN."""
        path = path or f"{self.directory(step.desired.cgroup, step.desired.key)}/{step.file}"
        for _ in range(ATTEMPTS - 1):
            try:
                return self.files.write(path, step.text)
            except HostFileError as error:
                if error.errno != errno.EAGAIN:
                    raise
        return self.files.write(path, step.text)

    def inode(self, cgroup: str, key: CgroupKey) -> int | None:
        """Return the inode of a group's directory; `None` if it does not exist."""
        directory = self.directory(cgroup, key)
        try:
            inode = None if directory is None else self.files.inode(directory)
            # directories of /proc/sys get other inodes from time to time
            return 0 if key.host_file and inode is not None else inode
        except HostFileError:
            return None

    def effective_cpus(self, cgroup: str) -> frozenset[int] | None:
        """Return the effective CPUs of a group of version 2; `None` if they are not readable."""
        try:
            return parse_cpu_list(
                self._read_once(cgroup, EFFECTIVE_CPUS_FILE, CPUS.size).decode("ascii", "replace")
            )
        except (HostFileError, ParseError):
            return None

    def is_populated(self, cgroup: str) -> bool:
        """Return whether processes run in a group of version 2 or below it."""
        try:
            return POPULATED in self._read_once(cgroup, EVENTS_FILE, SMALL_READ)
        except HostFileError:
            return False

    def memory_above_limit(self, step: CgroupWrite) -> int | None:
        """Return the memory usage if it exceeds the limit of a write; else `None`.

        Version 1 refuses such a limit. Version 2 accepts it and kills processes if it cannot
        reclaim enough.
        """
        limit = step.value_after
        if step.desired.key is not MEMORY or self.version != 2 or not isinstance(limit, int):
            return None
        used = self._memory_usage(step.desired.cgroup)
        return used if used is not None and UNLIMITED != limit < used else None

    def memory_above_high(self, step: CgroupWrite) -> int | None:
        """Return the memory usage if a write lowers `memory.high` below it; else `None`.

        The kernel then reclaims memory before the write returns.
        """
        if step.desired.key is not HIGH or not isinstance(step.value_after, int):
            return None
        used = self._memory_usage(step.desired.cgroup)
        return used if used is not None and step.value_after < used else None

    def _memory_usage(self, cgroup: str) -> int | None:
        path = f"{self.layout.directory(MEMORY.controller, cgroup)}/{MEMORY_FILES[self.version]}"
        try:
            text = self._read_and_close(path, SMALL_READ)
            return parse_int(text.decode("ascii", "replace"), 0, MAX_USED)
        except (HostFileError, ParseError):
            return None

    def burst_above_quota(self, step: CgroupWrite) -> int | None:
        """Return the burst if it exceeds the quota of a write.

        The kernel then refuses the quota.
        """
        if not isinstance(step.value_after, Bandwidth):
            return None
        try:
            burst = self.read_value(step.desired.cgroup, BURST)
        except ParseError:
            return None
        return burst if isinstance(burst, int) and burst > step.value_after.quota_us > 0 else None

    def limiting_group(
        self, cgroup: str, key: CgroupKey, value: CgroupValue
    ) -> tuple[str, CgroupValue] | None:
        """Return a group above that allows less than this value, with its own; `None`: none does.

        Version 1 refuses such CPUs, and such a quota.
        """
        while cgroup := cgroup.rpartition("/")[0]:
            try:
                above = self.read_value(cgroup, key)
            except ParseError:
                continue
            if above is not None and key.is_looser(value, above):
                return cgroup, above
        return None

    def _read_once(self, cgroup: str, name: str, size: int) -> bytes:
        """Read a file of version 2 without keeping it open; raises `HostFileError`."""
        path = f"{self.layout.unified or ''}{cgroup}/{name}"
        if self.version != 2:
            raise HostFileError(path, errno.ENOENT)
        return self._read_and_close(path, size)

    def _read_and_close(self, path: str, size: int) -> bytes:
        try:
            return self.files.read(path, size)
        finally:
            self.files.close(path)
