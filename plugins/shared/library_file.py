"""Finds a vendor's library file, checks that it may be loaded, and detects its replacement."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

import msgspec

from agent.errors import VendorFault

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class LibraryUnavailable(VendorFault):
    """The library cannot be used now; `reason` says why, and the next discovery tries again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LibraryFile(msgspec.Struct, frozen=True):
    """A file as it was when it was loaded; a driver upgrade replaces it."""

    path: str
    identity: tuple[int, ...] | None  # device, inode, size, ns of change; None: by the loader

    @classmethod
    def stat(cls, path: str) -> LibraryFile:
        """Return the file at the path as it is now."""
        if "/" not in path:
            return cls(path, None)  # the loader's own search, which does not look in this folder
        try:
            status = os.stat(path)
        except OSError:
            return cls(path, None)
        return cls(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))

    def is_replaced(self) -> bool:
        """Return whether another file is at the path; a missing one may be about to come."""
        identity = LibraryFile.stat(self.path).identity
        return self.identity is not None and identity is not None and identity != self.identity


def find_library(
    soname: str, folders: Sequence[str], *, library_path: str, driver_root: str, search: str
) -> str:
    """Return the library's real path, or its bare name for the loader's own search.

    `library_path`, if it is set, is the only candidate; else the folders of the linker's `search`
    path come first, then the usual `folders` below `driver_root`. Raises `LibraryUnavailable` if
    the file that was set is not there, or if others than root and this process's user could have
    put a file there.
    """
    root = driver_root.rstrip("/")
    usual = (*filter(None, search.split(":")), *(root + folder for folder in folders))
    candidates = (
        [library_path] if library_path else [os.path.join(directory, soname) for directory in usual]
    )
    for path in candidates:
        if os.path.isfile(path):
            real = os.path.realpath(path)
            refuse_untrusted(real)
            return real
    if library_path:
        message = f"{library_path} is not there: install the driver, or correct the path"
        raise LibraryUnavailable("LibraryMissing", message)
    return soname


def refuse_untrusted(path: str) -> None:
    """Raise `LibraryUnavailable` unless only root or this process's user can change the file."""
    for checked_path in (path, os.path.dirname(path)):
        try:
            status = os.stat(checked_path)
        except OSError as error:
            raise LibraryUnavailable(
                "LibraryMissing", f"{checked_path}: {error.strerror}"
            ) from error
        if status.st_mode & _OTHERS_WRITE or status.st_uid not in (0, os.geteuid()):
            message = (
                f"{checked_path} can be changed by others than root: chmod go-w and chown root"
            )
            raise LibraryUnavailable("LibraryUntrusted", message)
