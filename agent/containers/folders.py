"""Folders that mounts need, made before the container is: in places where users may write, too."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from itertools import islice

from agent.errors import AgentError
from agent.snapshot.edits import FolderEdit

PARENT_MODE = 0o755
MAX_ENTRIES = 256  # below a folder that is emptied: what is in there is one container's
MAX_DEPTH = 8


class FolderError(AgentError):
    """The folder is not there, is none, or cannot be emptied; names it and says why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why[:120]}")


def make_folders(folders: Iterable[FolderEdit]) -> None:
    """Make each folder as described, its parents before it; raise `FolderNotMade`.

    A link in its place is refused, not followed: a user could have put it there, and the agent is
    root. A folder that is there keeps its owner, and its mode where somebody else made it.
    """
    for folder in folders:
        try:
            _make_folder(folder)
        except OSError as error:
            raise FolderError(folder.host_path, error.strerror or str(error)) from error


def _make_folder(folder: FolderEdit) -> None:
    parent = os.path.dirname(folder.host_path.rstrip("/"))
    os.makedirs(parent, mode=PARENT_MODE, exist_ok=True)
    made = _create_folder(folder.host_path)
    # everything below is done through one descriptor: the path may be exchanged at any time
    fd = os.open(folder.host_path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        ours = made or os.fstat(fd).st_uid == os.geteuid() or not _is_writable_by_users(parent)
        if ours:
            if folder.emptied and not made:
                _empty_folder(fd, folder.host_path)
            os.fchmod(fd, folder.mode)  # what mkdir gives depends on the umask
            if folder.owner is not None:
                os.fchown(fd, folder.owner, -1)
        elif folder.emptied or stat.S_IMODE(os.fstat(fd).st_mode) & folder.mode != folder.mode:
            owner = os.fstat(fd).st_uid
            raise FolderError(folder.host_path, f"user {owner} made it, and not as it must be")
    finally:
        os.close(fd)


def _is_writable_by_users(path: str) -> bool:
    """Say whether users can put things into a folder."""
    return bool(stat.S_IMODE(os.stat(path).st_mode) & (stat.S_IWGRP | stat.S_IWOTH))


def _create_folder(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    return True


def _empty_folder(fd: int, path: str) -> None:
    """Remove what is in a folder; links in it are removed and not followed.

    A container filled it: one that left more than ours ever do, or deeper, is not waited for.
    """
    left = _remove_below(fd, path, MAX_ENTRIES, MAX_DEPTH)
    if left < 0:
        why = f"holds more than {MAX_ENTRIES} entries, which no container of ours left"
        raise FolderError(path, why)


def _remove_below(fd: int, path: str, left: int, depth: int) -> int:
    """Return how many more entries may be removed; negative, and nothing more is, if too many."""
    if depth == 0:
        raise FolderError(path, f"holds folders {MAX_DEPTH} deep, which no container of ours left")
    with os.scandir(fd) as entries:
        names = [entry.name for entry in islice(entries, left + 1)]
    if len(names) > left:
        return -1
    left -= len(names)
    for name in names:
        if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=fd)
            continue
        below = os.open(
            name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd
        )
        try:
            left = _remove_below(below, path, left, depth - 1)
        finally:
            os.close(below)
        if left < 0:
            return left
        os.rmdir(name, dir_fd=fd)
    return left
