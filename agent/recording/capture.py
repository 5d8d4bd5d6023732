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
    """Copy the files that the agent reads on a host: contents, links, errnos and device numbers.

    With `pods` also the cgroups of pods and containers. A file that is removed meanwhile is left
    out. Raises `RecordingError` for a host that exceeds the limits of a recording.
    """
    capture = _TreeCapture(source)
    for pattern in paths.HOST_PATTERNS:
        capture.copy(pattern)
    for port in capture.expand(paths.GID_TABLES):
        capture.copy_gids(port)
    for mount in sorted({*paths.CGROUP_MOUNTS, *_cgroup_mounts(source)}):
        capture.copy(paths.cgroup_root_pattern(mount))
        for pattern in paths.cgroup_pod_patterns(mount) if pods else ():
            capture.copy(pattern)
    capture.copy_owners()
    return capture.builder.build()


def _cgroup_mounts(source: HostFiles) -> set[str]:
    """Return the mount points of cgroup hierarchies in the mount tables."""
    lines: list[str] = []
    for table in ("/proc/1/mounts", "/proc/mounts"):
        lines.extend((read_text(source, table, _MOUNT_TABLE) or "").split("\n"))
    fields = [line.split(" ") for line in lines]
    points = {item[1] for item in fields if len(item) > 3 and item[2] in CGROUP_FILE_SYSTEMS}
    plain = {point.rstrip("/") for point in points if point.startswith("/")}
    return {point for point in plain if ".." not in point.split("/")}


class _TreeCapture:
    """Copies files into a tree, under their resolved paths, with the links on the way."""

    def __init__(self, source: HostFiles) -> None:
        self.builder = TreeBuilder()
        self._source = source
        self._resolver = PathResolver(self._cached_entry)
        self._entry_cache: dict[tuple[str, str], TreeEntry | None] = {}

    def expand(self, pattern: str) -> Iterator[str]:
        """Yield the directories that match the pattern; links in their paths are not resolved."""
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

    def copy(self, pattern: PathPattern) -> None:
        """Copy every directory that matches, and the entries of the pattern in it."""
        for base in self.expand(pattern.base):
            names = self._names(base)
            if names or self._contents(base, 0) is EntryKind.DIRECTORY:
                self._copy_file(base, 0)
            # on a busy node the processes alone fill the list of /proc: add the entries by name
            extra_names = pattern.entries if len(names) >= MAX_ENTRIES else ()
            for name in (*names, *extra_names):
                if any(fnmatchcase(name, name_pattern) for name_pattern in pattern.entries):
                    self._copy_file(
                        f"{base}/{name}", pattern.max_bytes, through=pattern.reads_through_links
                    )

    def copy_gids(self, port: str) -> None:
        """Copy the GIDs that the agent reads; an empty entry equals an absent one."""
        empty = 0
        for index in range(MAX_GIDS):
            gid = self._read(f"{port}/gids/{index}")
            empty = 0 if gid.strip(b"0:\r\n\t \0") else empty + 1
            if empty == MAX_EMPTY_GIDS:
                return
            if not empty:
                for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
                    self._copy_file(f"{port}/{folder}/{index}", _GID_BYTES)

    def copy_owners(self) -> None:
        """Copy the cgroup of every process in a copied group, which shows the owner of a device."""
        lists = [
            entries["cgroup.procs"]
            for entries in self.builder.directories.values()
            if "cgroup.procs" in entries
        ]
        pids = {pid for data in lists if isinstance(data, bytes) for pid in data.split()}
        for pid in sorted(pids)[:MAX_PROCESSES]:
            if pid.isdigit():
                self._copy_file(f"/proc/{pid.decode()}/cgroup", _GROUP_BYTES)

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

    def _copy_file(self, path: str, limit: int, *, through: bool = False) -> None:
        try:
            resolved_path, entry = (path, EntryKind.FILE) if through else self._resolver.find(path)
        except HostFileError:
            return
        content = self._contents(resolved_path, limit) if entry is EntryKind.FILE else entry
        if content is not None:
            self.builder.put(resolved_path, content)

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

    def _cached_entry(self, directory: str, name: str) -> TreeEntry | None:
        key = (directory, name)
        if key not in self._entry_cache:
            self._entry_cache[key] = self._read_entry(f"{directory}/{name}")
        return self._entry_cache[key]

    def _read_entry(self, path: str) -> TreeEntry | None:
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
