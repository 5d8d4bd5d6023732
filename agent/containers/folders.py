"""Creates the folders that mounts need before the container, also where users can write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from itertools import islice

from agent.errors import AgentError
from agent.snapshot.edits import FolderEdit

PARENT_MODE = 0o755
MAX_ENTRIES = 256  # below a folder that is emptied: the files of one container
MAX_DEPTH = 8


class FolderError(AgentError):
    """The folder is missing, is not a folder, or cannot be emptied; has the path and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason[:120]}")


def make_folders(folders: Iterable[FolderEdit]) -> None:
    """Create each folder as described, with its parents; raise `FolderError`.

    A symbolic link in its place is refused and not followed: a user could have created it, and the
    agent runs as root. An existing folder keeps its owner, and its mode if another user created it.
    """
    for folder in folders:
        try:
            _make_folder(folder)
        except OSError as error:
            raise FolderError(folder.host_path, error.strerror or str(error)) from error


def _make_folder(folder: FolderEdit) -> None:
    parent = os.path.dirname(folder.host_path.rstrip("/"))
    os.makedirs(parent, mode=PARENT_MODE, exist_ok=True)
    is_new = _create_folder(folder.host_path)
    # everything below uses one descriptor: the path may be replaced at any time
    fd = os.open(folder.host_path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        is_manageable = (
            is_new or os.fstat(fd).st_uid == os.geteuid() or not _is_writable_by_users(parent)
        )
        if is_manageable:
            if folder.emptied and not is_new:
                _empty_folder(fd, folder.host_path)
            os.fchmod(fd, folder.mode)  # mkdir applies the umask
            if folder.owner is not None:
                os.fchown(fd, folder.owner, -1)
        elif folder.emptied or stat.S_IMODE(os.fstat(fd).st_mode) & folder.mode != folder.mode:
            owner = os.fstat(fd).st_uid
            raise FolderError(folder.host_path, f"user {owner} made it, and not as it must be")
    finally:
        os.close(fd)


def _is_writable_by_users(path: str) -> bool:
    """Return whether users can create entries in a folder."""
    return bool(stat.S_IMODE(os.stat(path).st_mode) & (stat.S_IWGRP | stat.S_IWOTH))


def _create_folder(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    return True


def _empty_folder(fd: int, path: str) -> None:
    """Remove the contents of a folder; links in it are removed and not followed.

    A container filled it: with more entries, or deeper, than the agent's containers do, it is
    refused.
    """
    budget = _remove_below(fd, path, MAX_ENTRIES, MAX_DEPTH)
    if budget < 0:
        reason = f"holds more than {MAX_ENTRIES} entries, which no container of ours left"
        raise FolderError(path, reason)


def _remove_below(fd: int, path: str, budget: int, depth: int) -> int:
    """Remove the contents and return how many more entries may be removed; negative: too many."""
    if depth == 0:
        raise FolderError(path, f"holds folders {MAX_DEPTH} deep, which no container of ours left")
    with os.scandir(fd) as entries:
        names = [entry.name for entry in islice(entries, budget + 1)]
    if len(names) > budget:
        return -1
    budget -= len(names)
    for name in names:
        if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=fd)
            continue
        child_fd = os.open(
            name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd
        )
        try:
            budget = _remove_below(child_fd, path, budget, depth - 1)
        finally:
            os.close(child_fd)
        if budget < 0:
            return budget
        os.rmdir(name, dir_fd=fd)
    return budget
