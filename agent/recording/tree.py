"""A recorded host in memory: entries, limits, and path resolution within the host."""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Iterator, Mapping

import msgspec

from agent.errors import HostFileError, NotAHost
from agent.host.files import MAX_ENTRIES, check_path
from agent.snapshot.host_files import MAX_READ

MAX_TREE_ENTRIES = 200_000  # files, links and directories of one recorded host

MAX_CONTENT_BYTES = 128 * 1024 * 1024  # bytes of file contents of one recorded host


class RecordingError(NotAHost):
    """A recording or archive is damaged or exceeds a limit; has the place and the reason."""


class EntryKind(enum.Enum):
    """An entry without contents in memory."""

    DIRECTORY = "directory"
    FILE = "file"  # on disk; its bytes are read on demand
    OTHER = "other"  # on disk: a FIFO or a socket, never opened


class LinkEntry(msgspec.Struct, frozen=True):
    """A symbolic link with its original text."""

    text: str


class ErrorEntry(msgspec.Struct, frozen=True):
    """A file or directory whose read returned an errno."""

    errno: int


class DeviceNodeEntry(msgspec.Struct, frozen=True):
    """A character or block device; only its numbers are recorded."""

    major: int
    minor: int


TreeEntry = bytes | LinkEntry | ErrorEntry | DeviceNodeEntry | EntryKind

MAX_LINKS = 40  # as in the kernel: one more is ELOOP
MAX_TARGET_CHARACTERS = 4095  # characters of a followed link, as PATH_MAX
_MAX_CACHED_DIRECTORIES = 65_536  # directories in the cache before it is cleared

EntryLookup = Callable[[str, str], TreeEntry | None]

"""(resolved directory, name) -> the entry there; the root directory is the empty string."""


class PathResolver:
    """Resolves a path one component at a time, as the kernel does in a chroot.

    `..` at the root stays at the root, and absolute links start there. Resolved directories are
    cached; an absent directory is looked up again each time.
    """

    def __init__(self, lookup: EntryLookup) -> None:
        self._lookup = lookup
        self._resolved_directories: dict[str, str] = {"": ""}

    def find(self, path: str, *, follow: bool = True) -> tuple[str, TreeEntry]:
        """Return the resolved path and its entry; raises `HostFileError` if there is none.

        With `follow` the entry is not a link; without, a link as the last component is returned.
        """
        check_path(path)
        parent, _, name = path.rpartition("/")
        resolved = self._resolved_directories.get(parent)
        if resolved is None:
            resolved, kind = self._walk(path, "", parent, follow=True)
            if kind is not EntryKind.DIRECTORY:
                raise HostFileError(path, errno.ENOTDIR)
            if len(self._resolved_directories) >= _MAX_CACHED_DIRECTORIES:
                self._resolved_directories = {"": ""}
            self._resolved_directories[parent] = resolved
        return self._walk(path, resolved, name, follow=follow)

    def _walk(
        self, requested: str, at: str, remaining_path: str, *, follow: bool
    ) -> tuple[str, TreeEntry]:
        components = remaining_path.split("/")[::-1]
        links = 0
        while components:
            part = components.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = at.rpartition("/")[0]
                continue
            entry = self._lookup(at, part)
            if entry is None:
                raise HostFileError(requested, errno.ENOENT)
            if isinstance(entry, LinkEntry) and (components or follow):
                links += 1
                if links > MAX_LINKS:
                    raise HostFileError(requested, errno.ELOOP)
                if len(entry.text) > MAX_TARGET_CHARACTERS:
                    raise HostFileError(requested, errno.ENAMETOOLONG)
                at = "" if entry.text.startswith("/") else at
                components.extend(entry.text.split("/")[::-1])
            elif entry is EntryKind.DIRECTORY:
                at = f"{at}/{part}"
            elif components:
                raise HostFileError(requested, errno.ENOTDIR)
            else:
                return f"{at}/{part}", entry
        return at, EntryKind.DIRECTORY


class LinkResolvingFiles:
    """Methods of every host whose links the agent resolves itself."""

    resolver: PathResolver

    def link(self, path: str) -> str | None:
        """Return a link's text."""
        try:
            _, entry = self.resolver.find(path, follow=False)
        except HostFileError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise
        return entry.text if isinstance(entry, LinkEntry) else None

    def exists(self, path: str) -> bool:
        """Return whether the path leads to an entry, readable or not."""
        try:
            self.resolver.find(path)
        except HostFileError:
            return False
        return True

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Return the numbers of a device node."""
        try:
            _, entry = self.resolver.find(path)
        except HostFileError:
            return None
        return (entry.major, entry.minor) if isinstance(entry, DeviceNodeEntry) else None


Directories = Mapping[str, Mapping[str, TreeEntry]]

"""Entries by name, by directory; the root is "", others have no `/` at the end."""


class TreeFiles(LinkResolvingFiles):
    """Answers as the recorded host did. Every link is resolved inside the tree."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self.resolver = PathResolver(lambda directory, name: directories[directory].get(name))

    @classmethod
    def from_entries(cls, entries: Mapping[str, TreeEntry]) -> TreeFiles:
        """Build a host from absolute paths; their parent directories are added."""
        builder = TreeBuilder()
        for path, entry in entries.items():
            if not builder.put(path, entry):
                raise RecordingError(f"{path}: something else is in the way")
        return builder.build()

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Return the start of a file, or raise the recorded errno."""
        _, entry = self.resolver.find(path)
        if isinstance(entry, bytes):
            return entry[:limit]
        if isinstance(entry, ErrorEntry):
            raise HostFileError(path, entry.errno)
        raise HostFileError(path, errno.EISDIR if entry is EntryKind.DIRECTORY else errno.ENXIO)

    def names(self, path: str) -> tuple[str, ...]:
        """List a directory, at most `MAX_ENTRIES` names; an absent one or a file has none."""
        try:
            real_path, entry = self.resolver.find(path)
        except HostFileError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return ()
            raise
        if isinstance(entry, ErrorEntry):
            raise HostFileError(path, entry.errno)
        if entry is not EntryKind.DIRECTORY:
            return ()
        return tuple(sorted(self._directories[real_path])[:MAX_ENTRIES])

    def walk(self) -> Iterator[tuple[str, Mapping[str, TreeEntry]]]:
        """Yield every directory with its entries, in byte order of the paths."""
        for path in sorted(self._directories):
            yield path, self._directories[path]


class TreeBuilder:
    """Collects entries by path. Directories and links keep their first value."""

    def __init__(self) -> None:
        self.directories: dict[str, dict[str, TreeEntry]] = {"": {}}
        self._nodes = 0
        self._bytes = 0

    def put(self, path: str, entry: TreeEntry) -> bool:
        """Add an entry; return `False` without a change if an entry of another kind conflicts.

        A file replaces an earlier file of the same path. Raises `RecordingError` beyond the limits.
        """
        parent, slash, name = path.rpartition("/")
        directory = self._directory(parent)
        if not slash or directory is None or name in ("", ".", ".."):
            return path == "" and entry is EntryKind.DIRECTORY
        previous = directory.get(name)
        if previous is not None and (
            not isinstance(previous, bytes) or not isinstance(entry, bytes)
        ):
            return previous == entry
        self._count(entry, previous)
        directory[name] = entry
        if entry is EntryKind.DIRECTORY:
            self.directories[path] = {}
        return True

    def get(self, path: str) -> TreeEntry | None:
        """Return the entry of exactly this path."""
        parent, _, name = path.rpartition("/")
        return self.directories.get(parent, {}).get(name)

    def build(self, below: str = "") -> TreeFiles:
        """Return the host, or the part of it below one directory."""
        prefix = f"{below}/"
        return TreeFiles(
            {
                path.removeprefix(below): entries
                for path, entries in self.directories.items()
                if path == below or path.startswith(prefix)
            }
        )

    def _directory(self, path: str) -> dict[str, TreeEntry] | None:
        directory = self.directories.get(path)
        if directory is None and path.startswith("/") and self.put(path, EntryKind.DIRECTORY):
            return self.directories[path]
        return directory

    def _count(self, entry: TreeEntry, previous: TreeEntry | None) -> None:
        self._nodes += previous is None
        self._bytes += len(entry) if isinstance(entry, bytes) else 0
        if self._nodes > MAX_TREE_ENTRIES:
            raise RecordingError(f"more than {MAX_TREE_ENTRIES} files")
        if self._bytes > MAX_CONTENT_BYTES:
            raise RecordingError(f"more than {MAX_CONTENT_BYTES} bytes of file contents")
