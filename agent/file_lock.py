"""Files that one process at a time may lock.

The lock is the kernel's (flock): it ends with its process, however that ends. The file must not be
on a file system that several machines share.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from agent.errors import AgentError

NO_FILE = -1  # instead of a descriptor: the file system has no room for the file


class LockError(AgentError):
    """The lock cannot be taken or waited for: its folder or file is not usable."""


def open_lock_file(path: str, mode: int) -> int:
    """Return the descriptor of a lock file, which is created if absent; `NO_FILE` on a full disk.

    Raises `OSError`, and `LockError` for anything but a regular file.
    """
    # O_NONBLOCK: do not wait for the writer of a FIFO; O_NOFOLLOW: do not follow a link
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, mode)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NO_FILE
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LockError(f"{path}: is not a plain file; remove it")
    return fd


def try_flock(fd: int) -> bool:
    """Lock an open file or folder without waiting; return whether this process has the lock.

    `NO_FILE` needs no lock. Raises `OSError`.
    """
    try:
        if fd != NO_FILE:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_file(path: str, mode: int) -> int | None:
    """Return the descriptor of a file that is locked now; `None` if another process locked it.

    Creates and raises as `open_lock_file` does.
    """
    fd = open_lock_file(path, mode)
    is_locked = False
    try:
        is_locked = try_flock(fd)
    finally:
        if not is_locked:
            os.close(fd)
    return fd if is_locked else None
