"""The device nodes of a running container, without following a link of its or waiting for it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from agent.proof.evidence import MountFound, NodeFound

MAX_ENTRIES = 4096  # looked at in one container's /dev
MAX_DEPTH = 4
# others are served by processes, which the container may own: a question to them can last for ever
OWN = frozenset(("tmpfs", "devtmpfs", "devpts", "overlay", "ext4", "xfs", "btrfs", "mqueue"))
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def nodes_in(root: str, mounts: Iterable[MountFound]) -> tuple[NodeFound, ...] | None:
    """Return the nodes below /dev of the container whose root folder is `root`.

    `mounts` are the container's: what lies on a file system of a kind unknown here is passed over.
    `None` if its /dev cannot be looked into, or has no end.
    """
    top = {mount.path: mount.file_system for mount in mounts}  # the latest of each path
    avoided = frozenset(path for path, kind in top.items() if kind not in OWN)
    if "/dev" in avoided or "/" in avoided:
        return None
    walk = _Walk(root, avoided)
    return tuple(walk.found) if walk.into("/dev", MAX_DEPTH) else None


class _Walk:
    """One walk, with what is left of its budget."""

    def __init__(self, root: str, avoided: frozenset[str]) -> None:
        self._root, self._avoided = root, avoided
        self._left = MAX_ENTRIES
        self.found: list[NodeFound] = []

    def into(self, folder: str, depth: int) -> bool:
        """Take the nodes of a folder and of those below it; `False` if it was not to be done."""
        try:
            fd = os.open(self._root + folder, _OPEN)
        except OSError:
            return False
        try:
            below = self._entries(fd, folder)
        except OSError:
            return False
        finally:
            os.close(fd)
        if self._left <= 0:
            return False
        for path in below if depth > 1 else ():
            self.into(path, depth - 1)  # one that is gone by now holds nothing
        return self._left > 0

    def _entries(self, fd: int, folder: str) -> list[str]:
        below = []
        for name in os.listdir(fd):
            path = f"{folder}/{name}"
            self._left -= 1
            if self._left <= 0:
                break
            if path in self._avoided:
                continue
            try:
                seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(seen.st_mode):
                below.append(path)
            elif stat.S_ISCHR(seen.st_mode) or stat.S_ISBLK(seen.st_mode):
                kind = "c" if stat.S_ISCHR(seen.st_mode) else "b"
                numbers = os.major(seen.st_rdev), os.minor(seen.st_rdev)
                self.found.append(NodeFound(path, kind, *numbers))
        return below
