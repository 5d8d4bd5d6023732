"""The files themselves: descriptors kept for reading, one `write` a value, nothing decided."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import Protocol

from agent.errors import HostFileError
from agent.host.files import LiveRoot

MAX_PROCS = 1 << 20  # bytes of one `cgroup.procs`
MAX_BELOW = 256  # groups below one container that are looked into
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
# O_TRUNC, which a kernel file ignores: as shells write, and so that a plain file holds just this
_WRITE = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
SHARE = 4  # of the process's descriptors, one part of so many is ours to keep open


class CgroupFiles(Protocol):
    """What writing asks of a kernel. Every error is a `HostFileError` with the errno."""

    def read(self, path: str, size: int) -> bytes:
        """Return the start of a file."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write a text with one system call; a short write is an error."""
        ...

    def inode(self, path: str) -> int:
        """Return a directory's number, which no other has until the next boot."""
        ...

    def close(self, path: str) -> None:
        """Let go of a descriptor that is not needed any more."""
        ...


class KernelFiles:
    """The cgroup files of the live host. Not for two threads."""

    def __init__(self, root: LiveRoot, *, limit: int | None = None) -> None:
        """Keep at most `limit` descriptors; files beyond it are opened for each read."""
        self._root = root
        self._fds: dict[str, int] = {}
        self._limit = _descriptors() if limit is None else limit

    def read(self, path: str, size: int) -> bytes:
        """Read through a kept descriptor; one of a group that is gone is dropped for a new one."""
        kept = self._fds.get(path)
        if kept is not None:
            try:
                return os.pread(kept, size, 0)
            except OSError:  # the group went; another may have come in its place
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
            self._fds[path] = fd
        else:
            os.close(fd)
        return data

    def write(self, path: str, text: str) -> None:
        """Open, write and close: `open().write()` of Python would drop what the kernel answers."""
        data = text.encode()
        try:
            fd = os.open(self._root.path(path), _WRITE)
            try:
                done = os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        if done != len(data):
            raise HostFileError(path, errno.EIO)

    def inode(self, path: str) -> int:
        """Stat the directory."""
        try:
            return os.stat(self._root.path(path)).st_ino
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def close(self, path: str) -> None:
        """Close the file's descriptor, if there is one."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close_all(self) -> None:
        """Close every descriptor."""
        for path in tuple(self._fds):
            self.close(path)

    def __del__(self) -> None:
        """Close what nobody can use any more."""
        self.close_all()

    def pids(self, directory: str) -> tuple[int, ...]:
        """Return the processes of a group and of those below it (crun has them there)."""
        found: set[int] = set()
        queue = [directory]
        for place in queue:
            data = self._once(f"{place}/cgroup.procs")
            found.update(int(word) for word in data.split() if word.isdigit() and len(word) < 11)
            with contextlib.suppress(OSError), os.scandir(self._root.path(place)) as entries:
                queue += [f"{place}/{one.name}" for one in entries if one.is_dir()]
            del queue[MAX_BELOW:]
        return tuple(sorted(found))

    def _once(self, path: str) -> bytes:
        try:
            fd = os.open(self._root.path(path), _READ)
        except OSError:
            return b""  # it went while we looked
        try:
            return os.read(fd, MAX_PROCS)
        except OSError:
            return b""
        finally:
            os.close(fd)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 16 if soft == resource.RLIM_INFINITY else soft) // SHARE
