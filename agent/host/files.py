"""Reads files of the host; unreadable attributes are `None`; counts errors by errno."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from agent.errors import HostFileError, ParseError
from agent.snapshot.host_files import MAX_READ, HostFiles
from agent.wire_formats.kernel_text import MAX_CPUS

MAX_ENTRIES = 65_536  # names taken from one directory: more than a busy node has processes

_STRIP = "\0 \t\r\n"  # recorded trees pad with NULs


def check_path(path: str) -> None:
    """Raise `ValueError` unless the path is absolute and plain: otherwise the caller has a bug."""
    if not path.startswith("/") or "/../" in f"{path}/":
        raise ValueError(f"not a plain absolute path: {path!r}")


def read_text(host: HostFiles, path: str, limit: int = MAX_READ) -> str | None:
    """Return a file's text, stripped of blanks and NULs; `None` if unreadable or blank."""
    try:
        data = host.read(path, limit)
    except HostFileError:
        return None
    return data.decode("utf-8", "replace").strip(_STRIP) or None


def read_link_name(host: HostFiles, path: str) -> str | None:
    """Return the last component of a link's text, for example of `driver` and `iommu_group`."""
    target = host.link(path)
    return target.rstrip("/").rpartition("/")[2] or None if target else None


def read_start(real_path: str, path: str, limit: int, flags: int = 0) -> bytes:
    """Return at most the first `limit` bytes of a file; `flags` are more open flags.

    Raises `HostFileError` with `path`, the name of the file on the host.
    """
    try:
        # O_NONBLOCK: opening a FIFO in a hostile tree must not block
        fd = os.open(real_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        raise HostFileError(path, error.errno or 0) from error
    try:
        data = os.read(fd, limit)
        # seq_file returns one page at a time; regular attributes end after one read
        while data and len(data) < limit and (more := os.read(fd, limit - len(data))):
            data += more
    except OSError as error:
        raise HostFileError(path, error.errno or 0) from error
    else:
        return data
    finally:
        os.close(fd)


class LiveHostFiles:
    """The live machine: `/`, or the mount point of the node's root in a container."""

    def __init__(self, prefix: str = "/") -> None:
        self._prefix = prefix.rstrip("/")

    def path(self, path: str) -> str:
        """Return the path in this process's view."""
        check_path(path)
        return self._prefix + path

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Read the start of a file; a directory, a refusal or an I/O error raises."""
        return read_start(self.path(path), path, limit)

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
        """Return whether the path, with links followed, exists."""
        return os.path.exists(self.path(path))

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Return the numbers of a device node."""
        try:
            status = os.stat(self.path(path))
        except OSError:
            return None
        return (os.major(status.st_rdev), os.minor(status.st_rdev)) if status.st_rdev else None


class CachedHostFiles:
    """A host whose files are read once and then cached, for several readers in one round.

    The cache never expires. Errors are not cached.
    """

    def __init__(self, files: HostFiles) -> None:
        self._read: dict[tuple[str, int], bytes] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self.link = files.link
        self.exists = files.exists
        self.device_number = files.device_number
        self._files = files

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Return the result of the first read with that limit."""
        key = (path, limit)
        content = self._read.get(key)
        if content is None:
            content = self._read[key] = self._files.read(path, limit)
        return content

    def names(self, path: str) -> tuple[str, ...]:
        """Return the result of the first listing."""
        names = self._names.get(path)
        if names is None:
            names = self._names[path] = self._files.names(path)
        return names


T = TypeVar("T")

_NUMBER = re.compile(r"0|[1-9][0-9]{0,4}")


def read_value(host: HostFiles, path: str, parse: Callable[[str], T]) -> T | None:
    """Return a file's value; `None` if it is absent, blank, unreadable or not parsable."""
    content = read_text(host, path)
    if content is None:
        return None
    try:
        return parse(content)
    except ParseError:
        return None


def read_first_value(host: HostFiles, paths: Iterable[str], parse: Callable[[str], T]) -> T | None:
    """Return the value of the first file that has one; the others are not read."""
    return next(
        (value for path in paths if (value := read_value(host, path, parse)) is not None), None
    )


def read_match(host: HostFiles, path: str, pattern: re.Pattern[str]) -> str | None:
    """Return group 1 of a pattern that matches the whole file; `None` otherwise."""
    match = pattern.fullmatch(read_text(host, path) or "")
    return match[1] if match else None


def list_entries(host: HostFiles, path: str) -> tuple[str, ...]:
    """List a directory; one that cannot be listed is empty."""
    try:
        return host.names(path)
    except HostFileError:
        return ()


def numbered_entries(names: Iterable[str], prefix: str) -> tuple[list[int], int]:
    """Split names of the form `<prefix><N>` into (sorted numbers, number of malformed names).

    `cpu01`, `cpu-1` and `cpu999999` are malformed; `cpuidle` and `cpu_atom` are other entries.
    """
    numbers: list[int] = []
    malformed = 0
    for name in names:
        suffix = name.removeprefix(prefix)
        if not name.startswith(prefix) or re.fullmatch(r"[a-z_]*", suffix):
            continue
        if _NUMBER.fullmatch(suffix) and int(suffix) < MAX_CPUS:
            numbers.append(int(suffix))
        else:
            malformed += 1
    return sorted(numbers), malformed


_T = TypeVar("_T")

_ABSENT = (errno.ENOENT, errno.ENOTDIR)  # an absent file is not an error


class CountingHostFiles:
    """The same host, with counts of its errors since the start."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._errors: Counter[str] = Counter()

    @property
    def error_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (errno's name, count), by name."""
        return tuple(sorted(self._errors.items()))

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Read as the host does."""
        return self._count_errors(lambda: self._files.read(path, limit))

    def names(self, path: str) -> tuple[str, ...]:
        """List as the host does."""
        return self._count_errors(lambda: self._files.names(path))

    def link(self, path: str) -> str | None:
        """Read a link as the host does."""
        return self._count_errors(lambda: self._files.link(path))

    def exists(self, path: str) -> bool:
        """Check existence as the host does."""
        return self._files.exists(path)

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Read device numbers as the host does."""
        return self._files.device_number(path)

    def _count_errors(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except HostFileError as error:
            if error.errno not in _ABSENT:
                self._errors[errno.errorcode.get(error.errno, str(error.errno))] += 1
            raise
