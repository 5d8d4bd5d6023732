"""Reads a folder with `sys/` and `proc/` as a host, and nothing outside the folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from agent.errors import HostFileError
from agent.host.files import MAX_ENTRIES, read_start
from agent.recording.tree import (
    DeviceNodeEntry,
    EntryKind,
    LinkEntry,
    LinkResolvingFiles,
    PathResolver,
    TreeEntry,
)
from agent.snapshot.host_files import MAX_READ


class DirectoryFiles(LinkResolvingFiles):
    """Reads below one folder, on demand. This class resolves links, not the kernel.

    So an absolute link, or one with too many `..`, stays inside. FIFOs, sockets and device nodes
    are never opened. The folder must not change while it is in use: a directory that is replaced by
    a link meanwhile is followed.
    """

    def __init__(self, folder: Path) -> None:
        self._prefix = os.fspath(folder.resolve()).rstrip("/")
        self.resolver = PathResolver(self._lookup)

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Return the start of a file."""
        real_path, entry = self.resolver.find(path)
        if entry is EntryKind.DIRECTORY:
            raise HostFileError(path, errno.EISDIR)
        if entry is not EntryKind.FILE:
            raise HostFileError(path, errno.ENXIO)
        return self._read(path, real_path, limit)

    def real(self, path: str) -> str:
        """Return the real path on this machine; raises `HostFileError` if there is none."""
        return self._prefix + self.resolver.find(path)[0]

    def names(self, path: str) -> tuple[str, ...]:
        """List a directory, at most `MAX_ENTRIES` names; an absent one or a file has none."""
        try:
            real_path, entry = self.resolver.find(path)
            if entry is not EntryKind.DIRECTORY:
                return ()
            return tuple(sorted(os.listdir(f"{self._prefix}{real_path}/"))[:MAX_ENTRIES])
        except HostFileError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return ()
            raise
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def _lookup(self, directory: str, name: str) -> TreeEntry | None:
        path = f"{self._prefix}{directory}/{name}"
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                return LinkEntry(os.readlink(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostFileError(f"{directory}/{name}", error.errno or 0) from error
        return _entry_of_status(status)

    def _read(self, requested: str, real_path: str, limit: int) -> bytes:
        return read_start(self._prefix + real_path, requested, limit, os.O_NOFOLLOW)


def _entry_of_status(status: os.stat_result) -> TreeEntry:
    if stat.S_ISDIR(status.st_mode):
        return EntryKind.DIRECTORY
    if stat.S_ISREG(status.st_mode):
        return EntryKind.FILE
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return DeviceNodeEntry(os.major(status.st_rdev), os.minor(status.st_rdev))
    return EntryKind.OTHER
