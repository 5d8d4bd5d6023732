"""One process has the one connection: two that change one field would keep pods from starting."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from agent.errors import AgentError


class GuardError(AgentError):
    """The lock's file is not to be had; names the path and the errno."""


class Guard:
    """A lock of the kernel's, which ends with its process, however that ends."""

    def __init__(self, path: str) -> None:
        """`path` is a file in a folder that is there; empty: nothing is locked."""
        self._path = path
        self._fd: int | None = None

    def taken(self) -> bool:
        """Take the lock, and say whether it is ours; it does not wait. Raises `GuardError`."""
        if not self._path or self._fd is not None:
            return True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return True  # the node's lock, in the same folder, keeps a second agent out
            raise GuardError(f"{self._path}: {error.strerror}; see node.run_dir") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return False
            raise GuardError(f"{self._path}: {error.strerror}; see node.run_dir") from error
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with contextlib.suppress(OSError):
                os.close(fd)
