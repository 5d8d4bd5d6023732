"""The one door to the machine's files; what stands behind it may be a node or a recording."""

from __future__ import annotations

import errno
import os
from typing import Protocol

from agent.errors import HostFileError

MAX_READ = 64 * 1024  # bytes; no sysfs or procfs file that the agent reads is larger
MAX_ENTRIES = 8192  # names taken from one directory
_STRIP = "\0 \t\r\n"  # recorded trees pad with NULs


class HostFiles(Protocol):
    """Reads absolute paths of one host: this machine, a directory, an archive, a recording.

    Links are followed inside the host only. Every error is a `HostFileError` with the errno.
    """

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Return at most `limit` first bytes of a file."""
        ...

    def names(self, path: str) -> tuple[str, ...]:
        """Return a directory's entries, sorted; an absent directory has none."""
        ...

    def link(self, path: str) -> str | None:
        """Return the text of a symbolic link, unresolved; `None` if the path is not one."""
        ...

    def exists(self, path: str) -> bool:
        """Say whether the path leads to a file or directory."""
        ...

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Return (major, minor) of a character or block device; `None` if there is none."""
        ...


def check_path(path: str) -> None:
    """Raise `ValueError` unless the path is absolute and plain: a bug of the caller, not input."""
    if not path.startswith("/") or "/../" in f"{path}/":
        raise ValueError(f"not a plain absolute path: {path!r}")


def text(host: HostFiles, path: str, limit: int = MAX_READ) -> str | None:
    """Return a file's text, stripped of blanks and NULs; `None` if unreadable or blank."""
    try:
        data = host.read(path, limit)
    except HostFileError:
        return None
    return data.decode("utf-8", "replace").strip(_STRIP) or None


def link_name(host: HostFiles, path: str) -> str | None:
    """Return the last part of a link's text, as of `driver` and `iommu_group`."""
    target = host.link(path)
    return target.rstrip("/").rpartition("/")[2] or None if target else None


class LiveRoot:
    """The machine itself: `/`, or where a container has the node's root mounted."""

    def __init__(self, prefix: str = "/") -> None:
        self._prefix = prefix.rstrip("/")

    def path(self, path: str) -> str:
        """Map a host path to this process's view."""
        check_path(path)
        return self._prefix + path

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Read the start of a file; a directory, a refusal or an I/O error raises."""
        try:
            # O_NONBLOCK: a recorded or hostile tree may hold a FIFO, which must not stop us
            fd = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        try:
            data = os.read(fd, limit)
            # seq_file hands out one page at a time; regular attributes end after one read
            while data and len(data) < limit and (more := os.read(fd, limit - len(data))):
                data += more
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        else:
            return data
        finally:
            os.close(fd)

    def names(self, path: str) -> tuple[str, ...]:
        """List a directory in byte order, at most `MAX_ENTRIES`."""
        try:
            return tuple(sorted(os.listdir(self.path(path)))[:MAX_ENTRIES])
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def link(self, path: str) -> str | None:
        """Read a link's text."""
        try:
            return os.readlink(self.path(path))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                return None
            raise HostFileError(path, error.errno or 0) from error

    def exists(self, path: str) -> bool:
        """Follow links and say whether something is there."""
        return os.path.exists(self.path(path))

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Stat a device node."""
        try:
            found = os.stat(self.path(path))
        except OSError:
            return None
        return (os.major(found.st_rdev), os.minor(found.st_rdev)) if found.st_rdev else None


class OneLook:
    """A host that several look at in turn, as it was at the first look: each file is read once.

    For one round only: nothing that it remembers is ever forgotten. Errors are not remembered.
    """

    def __init__(self, files: HostFiles) -> None:
        self._read: dict[tuple[str, int], bytes] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self.link = files.link
        self.exists = files.exists
        self.device_number = files.device_number
        self._files = files

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Return what the first reading to that limit returned."""
        key = (path, limit)
        known = self._read.get(key)
        if known is None:
            known = self._read[key] = self._files.read(path, limit)
        return known

    def names(self, path: str) -> tuple[str, ...]:
        """Return the entries at the first listing."""
        known = self._names.get(path)
        if known is None:
            known = self._names[path] = self._files.names(path)
        return known
