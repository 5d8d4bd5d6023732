"""The hot path of reading: cached descriptors, one `pread` a file, parsing only what changed."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, count, repeat
from operator import ne
from typing import Generic, TypeVar

from agent.errors import HostFileError, ParseError
from agent.host.files import MAX_READ, HostFiles, LiveRoot

V = TypeVar("V")

RESERVE = 512  # descriptors left to the rest of the process
NO_DATA = b""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class Door:
    """Descriptors of a live host within a bound; a recorded host is read by path.

    The bound is the process's own limit less `RESERVE`: files beyond it cost an open a read. The
    empty path is a file that is not there.
    """

    def __init__(self, host: HostFiles, *, limit: int | None = None) -> None:
        self._real = host.path if isinstance(host, LiveRoot) else None
        self._host = host
        self._left = _descriptors() if limit is None else limit

    def open(self, path: str) -> int | None:
        """Open and keep; `None` on a recording, for an absent file, and beyond the bound."""
        if self._real is None or self._left <= 0 or not path:
            return None
        try:
            fd = os.open(self._real(path), _FLAGS)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._left = 0  # others took what was ours to take: stop asking
            return None
        self._left -= 1
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor that `open` returned."""
        os.close(fd)
        self._left += 1

    def read(self, path: str, size: int) -> bytes:
        """Read by path, with three system calls where the host is live."""
        if not path:
            raise HostFileError(path, errno.ENOENT)
        if self._real is None:
            return self._host.read(path, size)
        try:
            fd = os.open(self._real(path), _FLAGS)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        try:
            return os.pread(fd, size, 0)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error
        finally:
            os.close(fd)

    def stats(self, fds: Iterable[int]) -> Iterator[os.stat_result]:
        """Stat kept descriptors."""
        return map(os.fstat, fds)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, (soft if soft != resource.RLIM_INFINITY else 1 << 20) - RESERVE)


class FileColumn(Generic[V]):
    """One file of many cgroups. `read` returns a value a path, `None` where there is none.

    A file that is longer than `size` is read again with more room; with `cut`, whose parser wants
    no more than the start, only if that refused it.
    `together` does what `parse` does for many files at less cost, or refuses them all.
    """

    def __init__(
        self,
        door: Door,
        parse: Callable[[bytes], V],
        size: int,
        *,
        cut: bool = False,
        together: Callable[[Sequence[bytes]], Sequence[V]] | None = None,
    ) -> None:
        self._door = door
        self._parse = parse
        self._together = together
        self._size = size
        self._cut = cut
        self._paths: tuple[str, ...] = ()
        self._fds: list[int] = []  # -1: read by path
        self._last: list[bytes] = []
        self._values: list[V | None] = []
        self._whole = False  # every path has a descriptor
        self._lost = False  # a file that was read before is gone

    def follow(self, paths: Sequence[str]) -> None:
        """Read these from now on; descriptors and values of paths that stay are kept."""
        new = tuple(paths)
        if new == self._paths:
            return
        kept = {path: i for i, path in enumerate(self._paths)}
        olds = [kept.pop(path, None) for path in new]
        for i in kept.values():
            self._drop(i)
        old_fds, old_last, old_values = self._fds, self._last, self._values
        self._paths = new
        self._fds = [-1 if i is None else old_fds[i] for i in olds]
        self._last = [NO_DATA if i is None else old_last[i] for i in olds]
        self._values = [None if i is None else old_values[i] for i in olds]
        self._whole = False

    def read(self) -> list[V | None]:
        """Read every path once; the list is the caller's."""
        if not self._whole:
            self._open()
        size = self._size
        data: list[bytes]
        try:
            data = list(map(os.pread, self._fds, repeat(size), repeat(0)))
        except OSError:  # one is gone, or has no descriptor: take them one by one
            data = [self._one(i) for i in range(len(self._paths))]
        last, self._last = self._last, data
        changed = list(compress(count(), map(ne, data, last)))
        if changed and not self._take_together(changed):
            for i in changed:
                self._take(i, size)
        return self._values.copy()

    def lost(self) -> bool:
        """Say whether a file has gone since the last time that this was asked."""
        lost, self._lost = self._lost, False
        return lost

    def close(self) -> None:
        """Let go of all descriptors."""
        self.follow(())

    def _open(self) -> None:
        for i, fd in enumerate(self._fds):
            if fd < 0 and (new := self._door.open(self._paths[i])) is not None:
                self._fds[i] = new
        self._whole = -1 not in self._fds

    def _drop(self, i: int) -> None:
        if self._fds[i] >= 0:
            self._door.close(self._fds[i])
            self._fds[i] = -1
            self._whole = False

    def _one(self, i: int) -> bytes:
        """Read one path by descriptor or by name; nothing where it is gone or refuses."""
        try:
            if self._fds[i] >= 0:
                return os.pread(self._fds[i], self._size, 0)
            return self._door.read(self._paths[i], self._size)
        except (OSError, HostFileError):
            self._drop(i)
            self._lost = self._lost or bool(self._last[i])
            return NO_DATA

    def _take_together(self, changed: Sequence[int]) -> bool:
        """Parse what changed at once; say whether that could be done."""
        texts = [self._last[i] for i in changed]
        if self._together is None or (not self._cut and len(max(texts, key=len)) >= self._size):
            return False
        try:
            values = self._together(texts)
        except ParseError:
            return False
        for i, value in zip(changed, values, strict=True):
            self._values[i] = value
        return True

    def _take(self, i: int, size: int) -> None:
        """Parse what changed; read it again with more room while that may tell more.

        `size` is the room it was read with: a file before it may have made more since.
        """
        value = self._parsed(self._last[i])
        while (
            size <= len(self._last[i]) and size < MAX_READ and not (self._cut and value is not None)
        ):
            if size == self._size:
                self._size = min(size * 2, MAX_READ)
            size = self._size
            self._last[i] = self._one(i)
            value = self._parsed(self._last[i])
        self._values[i] = value

    def _parsed(self, data: bytes) -> V | None:
        try:
            return self._parse(data) if data else None
        except ParseError:
            return None
