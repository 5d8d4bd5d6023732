"""Replaces files atomically: after a crash a file has its old content or the new one."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def temporary_path(path: str) -> str:
    """Return the path of the hidden temporary file of `replace_file`, in the same folder."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.tmp")


def replace_file(path: str, data: bytes, mode: int = 0o640) -> None:
    """Replace the content of a file; after a loss of power it has the old or the new content.

    The folder must exist. Raises `OSError`: then the file is unchanged, and no temporary file
    remains.
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
    """Create a file with exactly this mode and sync it. A file or link at the path is removed.

    Links are not followed. Raises `OSError`.
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
    """Remove a file or link if it exists."""
    # checked first: a read-only file system refuses to remove even an absent file
    if os.path.lexists(path):
        os.unlink(path)


class NotRegularFileError(OSError):
    """The path is a FIFO, a device or a directory instead of a regular file."""


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
