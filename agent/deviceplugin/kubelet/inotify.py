"""The kernel's news of one folder. That there is some is all that is heard: one has to look."""

from __future__ import annotations

import ctypes
import os

from agent.errors import AgentError

# linux/inotify.h
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, ONLY_FOLDER = 0x400, 0x800, 0x0100_0000
MASK = MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | ONLY_FOLDER


class NoNews(AgentError):
    """The folder cannot be watched; it has to be looked at from time to time."""


class FolderNews:
    """An open watch of the folder that a path leads to now; it stays with that very folder."""

    def __init__(self, path: str) -> None:
        """Open the watch; raise `NoNews`."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _failed(path, "see fs.inotify.max_user_instances")
        if libc.inotify_add_watch(self._fd, os.fsencode(path), MASK) < 0:
            error = _failed(path, "see fs.inotify.max_user_watches")
            os.close(self._fd)
            raise error

    def fileno(self) -> int:
        """Return what becomes readable when something happened."""
        return self._fd

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _failed(path: str, advice: str) -> NoNews:
    return NoNews(f"{path}: cannot be watched: {os.strerror(ctypes.get_errno())}; {advice}")
