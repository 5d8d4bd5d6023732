"""A folder with `sys/` and `proc/` in it as a host; nothing outside the folder is read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from agent.errors import HostFileError
from agent.host.files import MAX_ENTRIES, MAX_READ
from agent.recording.entries import DeviceNode, Entry, Kind, Link
from agent.recording.resolve import Resolved, Resolver


class DirectoryFiles(Resolved):
    """Reads below one folder, on demand. Links are resolved here and not by the kernel.

    So an absolute link, or one with too many `..`, stays inside. FIFOs, sockets and device
    nodes are never opened. The folder's layout is expected to stay while it is in use: a
    directory that somebody replaces by a link in between is not defended against.
    """

    def __init__(self, folder: Path) -> None:
        self._prefix = os.fspath(folder.resolve()).rstrip("/")
        self.resolver = Resolver(self._lookup)

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Return the start of a file."""
        found, entry = self.resolver.find(path)
        if entry is Kind.DIRECTORY:
            raise HostFileError(path, errno.EISDIR)
        if entry is not Kind.FILE:
            raise HostFileError(path, errno.ENXIO)
        return self._read(path, found, limit)

    def real(self, path: str) -> str:
        """Return where a path really is on this machine; raise `HostFileError` if nowhere."""
        return self._prefix + self.resolver.find(path)[0]

    def names(self, path: str) -> tuple[str, ...]:
        """List a directory, at most `MAX_ENTRIES` names; an absent one or a file has none."""
        try:
            found, entry = self.resolver.find(path)
            if entry is not Kind.DIRECTORY:
                return ()
            return tuple(sorted(os.listdir(f"{self._prefix}{found}/"))[:MAX_ENTRIES])
        except HostFileError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return ()
            raise
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def _lookup(self, directory: str, name: str) -> Entry | None:
        path = f"{self._prefix}{directory}/{name}"
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                return Link(os.readlink(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostFileError(f"{directory}/{name}", error.errno or 0) from error
        return _entry(found)

    def _read(self, asked: str, found: str, limit: int) -> bytes:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            fd = os.open(self._prefix + found, flags)
        except OSError as error:
            raise HostFileError(asked, error.errno or 0) from error
        try:
            data = os.read(fd, limit)
            # a live /proc may be mounted below the folder: it hands out one page at a time
            while data and len(data) < limit and (more := os.read(fd, limit - len(data))):
                data += more
        except OSError as error:
            raise HostFileError(asked, error.errno or 0) from error
        else:
            return data
        finally:
            os.close(fd)


def _entry(found: os.stat_result) -> Entry:
    if stat.S_ISDIR(found.st_mode):
        return Kind.DIRECTORY
    if stat.S_ISREG(found.st_mode):
        return Kind.FILE
    if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        return DeviceNode(os.major(found.st_rdev), os.minor(found.st_rdev))
    return Kind.OTHER
