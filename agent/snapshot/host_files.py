"""The Protocol for files of a host: this machine, a folder or an archive."""

from __future__ import annotations

from typing import Protocol

MAX_READ = 64 * 1024  # bytes; no sysfs or procfs file that the agent reads is larger


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
        """Return whether the path leads to a file or directory."""
        ...

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Return (major, minor) of a character or block device; `None` for any other file."""
        ...
