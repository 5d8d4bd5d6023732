"""Where libdcmi is, and whether it may be loaded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

import msgspec

from agent.errors import VendorFault

SONAME = "libdcmi.so"
DRIVER = "/usr/local/Ascend/driver/lib64"
PLACES = ("/usr/local/dcmi", DRIVER, f"{DRIVER}/driver", f"{DRIVER}/common")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class LibraryAbsent(VendorFault):
    """DCMI cannot be used now; `reason` says why, and the next discovery tries again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LibraryFile(msgspec.Struct, frozen=True):
    """A file as it was when it was loaded; a driver upgrade puts another in its place."""

    path: str
    identity: tuple[int, int, int] | None  # device, inode, size; None: found by the loader

    @classmethod
    def of(cls, path: str) -> LibraryFile:
        """Note what stands at the path now."""
        try:
            found = os.stat(path)
        except OSError:
            return cls(path, None)
        return cls(path, (found.st_dev, found.st_ino, found.st_size))

    def replaced(self) -> bool:
        """Say whether another file stands there; one that is missing may be on its way."""
        now = LibraryFile.of(self.path).identity
        return self.identity is not None and now is not None and now != self.identity


def candidates(settings: Mapping[str, object], search: str) -> Iterator[str]:
    """Yield the paths to look at, in order: the linker's `search` path, then the usual places.

    The setting `library_path`, if there is one, is the only candidate. The others are below the
    setting `driver_root`.
    """
    given = settings.get("library_path")
    if isinstance(given, str) and given:
        yield given
        return
    root = str(settings.get("driver_root") or "/").rstrip("/")
    for folder in (*filter(None, search.split(":")), *(root + place for place in PLACES)):
        yield os.path.join(folder, SONAME)


def find_library(settings: Mapping[str, object], search: str) -> str:
    """Return the library's real path, or its bare name for the loader's own search.

    Raises `LibraryAbsent` if the file that was set is not there, or if anybody but root and this
    process's user could have put the file there.
    """
    for path in candidates(settings, search):
        if os.path.isfile(path):
            real = os.path.realpath(path)
            refuse_untrusted(real)
            return real
    if settings.get("library_path"):
        told = f"{settings['library_path']} is not there: install the driver, or correct the path"
        raise LibraryAbsent("LibraryMissing", told)
    return SONAME


def refuse_untrusted(path: str) -> None:
    """Raise `LibraryAbsent` unless only root or this process's user can change what is loaded."""
    for checked in (path, os.path.dirname(path)):
        try:
            found = os.stat(checked)
        except OSError as error:
            raise LibraryAbsent("LibraryMissing", f"{checked}: {error.strerror}") from error
        if found.st_mode & _OTHERS_WRITE or found.st_uid not in (0, os.geteuid()):
            told = f"{checked} can be written by others than root: chmod go-w and chown root"
            raise LibraryAbsent("LibraryUntrusted", told)
