"""Counts what a host refuses, by errno: such a fact is absent, and this tells why."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from agent.errors import HostFileError
from agent.host.files import MAX_READ, HostFiles

T = TypeVar("T")
_ABSENT = (errno.ENOENT, errno.ENOTDIR)  # what is not there is no refusal


class CountingFiles:
    """The same host, with a count of its refusals since the start."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._refused: Counter[str] = Counter()

    @property
    def refused(self) -> tuple[tuple[str, int], ...]:
        """Return (errno's name, times), by name."""
        return tuple(sorted(self._refused.items()))

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Read as the host does."""
        return self._counted(lambda: self._files.read(path, limit))

    def names(self, path: str) -> tuple[str, ...]:
        """List as the host does."""
        return self._counted(lambda: self._files.names(path))

    def link(self, path: str) -> str | None:
        """Read a link as the host does."""
        return self._counted(lambda: self._files.link(path))

    def exists(self, path: str) -> bool:
        """Look as the host does."""
        return self._files.exists(path)

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Look at a device node as the host does."""
        return self._files.device_number(path)

    def _counted(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except HostFileError as error:
            if error.errno not in _ABSENT:
                self._refused[errno.errorcode.get(error.errno, str(error.errno))] += 1
            raise
