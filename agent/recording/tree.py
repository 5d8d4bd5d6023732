"""A host held in memory; what recordings and archives become."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping

from agent.errors import HostFileError
from agent.host.files import MAX_ENTRIES, MAX_READ
from agent.recording.entries import (
    MAX_KEPT,
    MAX_NODES,
    Entry,
    Kind,
    RecordingError,
    Refused,
)
from agent.recording.resolve import Resolved, Resolver

Directories = Mapping[str, Mapping[str, Entry]]
"""Entries by name, by directory; the root is "", others have no `/` at the end."""


class TreeFiles(Resolved):
    """Answers as the recorded host did. Every link is resolved inside the tree."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self.resolver = Resolver(lambda directory, name: directories[directory].get(name))

    @classmethod
    def of(cls, entries: Mapping[str, Entry]) -> TreeFiles:
        """Build a host from absolute paths; the directories above them come by themselves."""
        builder = TreeBuilder()
        for path, entry in entries.items():
            if not builder.put(path, entry):
                raise RecordingError(f"{path}: something else is in the way")
        return builder.build()

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Return the start of a file, or raise the errno that the host answered."""
        _, entry = self.resolver.find(path)
        if isinstance(entry, bytes):
            return entry[:limit]
        if isinstance(entry, Refused):
            raise HostFileError(path, entry.errno)
        raise HostFileError(path, errno.EISDIR if entry is Kind.DIRECTORY else errno.ENXIO)

    def names(self, path: str) -> tuple[str, ...]:
        """List a directory, at most `MAX_ENTRIES` names; an absent one or a file has none."""
        try:
            found, entry = self.resolver.find(path)
        except HostFileError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return ()
            raise
        if isinstance(entry, Refused):
            raise HostFileError(path, entry.errno)
        if entry is not Kind.DIRECTORY:
            return ()
        return tuple(sorted(self._directories[found])[:MAX_ENTRIES])

    def walk(self) -> Iterator[tuple[str, Mapping[str, Entry]]]:
        """Yield every directory with its entries, in byte order of the paths."""
        for path in sorted(self._directories):
            yield path, self._directories[path]


class TreeBuilder:
    """Collects entries by path. Directories and links stay what they were put as first."""

    def __init__(self) -> None:
        self.directories: dict[str, dict[str, Entry]] = {"": {}}
        self._nodes = 0
        self._bytes = 0

    def put(self, path: str, entry: Entry) -> bool:
        """Put an entry; `False` and no change if something of another kind is in the way.

        A file replaces an earlier file of the same path. `RecordingError` beyond the bounds.
        """
        above, slash, name = path.rpartition("/")
        directory = self._directory(above)
        if not slash or directory is None or name in ("", ".", ".."):
            return path == "" and entry is Kind.DIRECTORY
        before = directory.get(name)
        if before is not None and (not isinstance(before, bytes) or not isinstance(entry, bytes)):
            return before == entry
        self._count(entry, before)
        directory[name] = entry
        if entry is Kind.DIRECTORY:
            self.directories[path] = {}
        return True

    def get(self, path: str) -> Entry | None:
        """Return what was put at exactly this path."""
        above, _, name = path.rpartition("/")
        return self.directories.get(above, {}).get(name)

    def build(self, below: str = "") -> TreeFiles:
        """Return the host, or the part of it below one directory."""
        inside = f"{below}/"
        return TreeFiles(
            {
                path.removeprefix(below): entries
                for path, entries in self.directories.items()
                if path == below or path.startswith(inside)
            }
        )

    def _directory(self, path: str) -> dict[str, Entry] | None:
        found = self.directories.get(path)
        if found is None and path.startswith("/") and self.put(path, Kind.DIRECTORY):
            return self.directories[path]
        return found

    def _count(self, entry: Entry, before: Entry | None) -> None:
        self._nodes += before is None
        self._bytes += len(entry) if isinstance(entry, bytes) else 0
        if self._nodes > MAX_NODES:
            raise RecordingError(f"more than {MAX_NODES} files")
        if self._bytes > MAX_KEPT:
            raise RecordingError(f"more than {MAX_KEPT} bytes of file contents")
