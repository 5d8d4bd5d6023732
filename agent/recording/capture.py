"""Copies the files that the agent reads from a host into a recording."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from fnmatch import fnmatchcase

from agent.errors import HostFileError
from agent.host.files import MAX_ENTRIES, read_text
from agent.recording import paths
from agent.recording.paths import CGROUP_FILE_SYSTEMS, PathPattern
from agent.recording.tree import (
    DeviceNodeEntry,
    EntryKind,
    ErrorEntry,
    LinkEntry,
    PathResolver,
    TreeBuilder,
    TreeEntry,
    TreeFiles,
)
from agent.snapshot.host_files import HostFiles

MAX_GIDS = 256  # of one port
MAX_EMPTY_GIDS = 16  # consecutive empty GIDs after which the agent reads no further
MAX_PROCESSES = 8192  # of all pods
_GID_BYTES = 64
_GROUP_BYTES = 16 * 1024  # of /proc/<pid>/cgroup
_MOUNT_TABLE = 1024 * 1024
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def capture_host(source: HostFiles, *, pods: bool) -> TreeFiles:
    """Copy what the agent reads of a host: contents, links, errnos and device numbers.

    With `pods` the cgroups of pods and containers as well. A file that vanishes in between is
    left out. Raises `RecordingError` for a host beyond the bounds of a recording.
    """
    taker = _TreeCapture(source)
    for wanted in paths.HOST_PATTERNS:
        taker.take(wanted)
    for port in taker.expand(paths.GID_TABLES):
        taker.take_gids(port)
    for mount in sorted({*paths.CGROUP_MOUNTS, *_cgroup_mounts(source)}):
        taker.take(paths.cgroup_root_pattern(mount))
        for wanted in paths.cgroup_pod_patterns(mount) if pods else ():
            taker.take(wanted)
    taker.take_owners()
    return taker.builder.build()


def _cgroup_mounts(source: HostFiles) -> set[str]:
    """Return where hierarchies are mounted, as the mount tables say."""
    lines: list[str] = []
    for table in ("/proc/1/mounts", "/proc/mounts"):
        lines.extend((read_text(source, table, _MOUNT_TABLE) or "").split("\n"))
    fields = [line.split(" ") for line in lines]
    points = {item[1] for item in fields if len(item) > 3 and item[2] in CGROUP_FILE_SYSTEMS}
    plain = {point.rstrip("/") for point in points if point.startswith("/")}
    return {point for point in plain if ".." not in point.split("/")}


class _TreeCapture:
    """Puts what it looks at into a tree, under the resolved path, links on the way included."""

    def __init__(self, source: HostFiles) -> None:
        self.builder = TreeBuilder()
        self._source = source
        self._resolver = PathResolver(self._look)
        self._entry_cache: dict[tuple[str, str], TreeEntry | None] = {}

    def expand(self, pattern: str) -> Iterator[str]:
        """Yield the directories that match, as spelled; links are not resolved in them."""
        paths = [""]
        for part in pattern.strip("/").split("/"):
            if any(mark in part for mark in "*?["):
                paths = [
                    f"{path}/{name}"
                    for path in paths
                    for name in self._names(path)
                    if fnmatchcase(name, part)
                ]
            else:
                paths = [f"{path}/{part}" for path in paths]
        yield from paths

    def take(self, wanted: PathPattern) -> None:
        """Put every directory that matches, and the wanted entries in it."""
        for base in self.expand(wanted.base):
            there = self._names(base)
            if there or self._contents(base, 0) is EntryKind.DIRECTORY:
                self._put(base, 0)
            # on a busy node the processes alone fill the list of /proc: ask for the rest by name
            cut = wanted.entries if len(there) >= MAX_ENTRIES else ()
            for name in (*there, *cut):
                if any(fnmatchcase(name, pattern) for pattern in wanted.entries):
                    self._put(
                        f"{base}/{name}", wanted.max_bytes, through=wanted.reads_through_links
                    )

    def take_gids(self, port: str) -> None:
        """Put the GIDs that the agent would read; an empty slot is as good as an absent one."""
        empty = 0
        for index in range(MAX_GIDS):
            gid = self._read(f"{port}/gids/{index}")
            empty = 0 if gid.strip(b"0:\r\n\t \0") else empty + 1
            if empty == MAX_EMPTY_GIDS:
                return
            if not empty:
                for place in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
                    self._put(f"{port}/{place}/{index}", _GID_BYTES)

    def take_owners(self) -> None:
        """Put the cgroup of every process that a taken group lists: whose a device is."""
        lists = [
            entries["cgroup.procs"]
            for entries in self.builder.directories.values()
            if "cgroup.procs" in entries
        ]
        pids = {pid for data in lists if isinstance(data, bytes) for pid in data.split()}
        for pid in sorted(pids)[:MAX_PROCESSES]:
            if pid.isdigit():
                self._put(f"/proc/{pid.decode()}/cgroup", _GROUP_BYTES)

    def _names(self, path: str) -> tuple[str, ...]:
        try:
            return self._source.names(path or "/")
        except HostFileError:
            return ()

    def _read(self, path: str) -> bytes:
        try:
            return self._source.read(path, _GID_BYTES)
        except HostFileError:
            return b""

    def _put(self, path: str, limit: int, *, through: bool = False) -> None:
        try:
            found, entry = (path, EntryKind.FILE) if through else self._resolver.find(path)
        except HostFileError:
            return
        known = self._contents(found, limit) if entry is EntryKind.FILE else entry
        if known is not None:
            self.builder.put(found, known)

    def _contents(self, path: str, limit: int) -> TreeEntry | None:
        number = self._source.device_number(path)
        if number is not None:
            return DeviceNodeEntry(*number)
        try:
            return self._source.read(path, limit)
        except HostFileError as error:
            if error.errno == errno.EISDIR:
                return EntryKind.DIRECTORY
            return None if error.errno in _ABSENT else ErrorEntry(error.errno)

    def _look(self, directory: str, name: str) -> TreeEntry | None:
        key = (directory, name)
        if key not in self._entry_cache:
            self._entry_cache[key] = self._look_once(f"{directory}/{name}")
        return self._entry_cache[key]

    def _look_once(self, path: str) -> TreeEntry | None:
        try:
            target = self._source.link(path)
            if target is not None:
                link = LinkEntry(target)
                self.builder.put(path, link)
                return link
            if self._source.names(path):
                return EntryKind.DIRECTORY
        except HostFileError as error:
            return None if error.errno in _ABSENT else ErrorEntry(error.errno)
        return EntryKind.FILE if self._source.exists(path) else None
