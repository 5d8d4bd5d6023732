"""Replaces files atomically: after a crash a file has its old content or the new one."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def temporary_path(path: str) -> str:
    """Return where `replace_file` writes first: beside the file, hidden."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.tmp")


def replace_file(path: str, data: bytes, mode: int = 0o640) -> None:
    """Replace the file by exactly `data`, also after a loss of power; its folder must exist.

    Raises `OSError`, and then the file is as it was and nothing is left beside it.
    """
    temporary = temporary_path(path)
    try:
        write_new(temporary, data, mode)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        raise
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)  # the name, which is the folder's
    finally:
        os.close(fd)


def write_new(path: str, data: bytes, mode: int) -> None:
    """Write a file with exactly this mode and have it on the disk; what stood there is removed.

    A link that stands there is not followed. Raises `OSError`.
    """
    remove(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)  # whatever the umask
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[os.write(fd, unwritten) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove a file or link, if it is there."""
    # checked first: a read-only file system refuses to remove even an absent file
    if os.path.lexists(path):
        os.unlink(path)


class NotRegularFileError(OSError):
    """A FIFO, a device or a directory stands where a regular file belongs."""


def open_file(path: str, flags: int = 0) -> BinaryIO:
    """Open a regular file for reading; `flags` are more open flags.

    Raises `OSError`, for anything but a regular file a `NotRegularFileError`: opening a FIFO would
    wait for a writer that may never come.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotRegularFileError(errno.EINVAL, "not a regular file", path)
        return os.fdopen(fd, "rb")
    except OSError:
        os.close(fd)
        raise


def read_file(path: str, limit: int, flags: int = 0) -> bytes:
    """Return at most the first `limit` bytes of a regular file; see `open_file`."""
    with open_file(path, flags) as file:
        return file.read(limit)
