"""From any host to the part of it that a recording keeps."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from fnmatch import fnmatchcase

from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.recording import paths
from agent.recording.entries import DeviceNode, Entry, Kind, Link, Refused
from agent.recording.paths import Wanted
from agent.recording.resolve import Resolver
from agent.recording.tree import TreeBuilder, TreeFiles

MAX_GIDS = 256  # of one port
EMPTY_RUN = 16  # consecutive empty GIDs after which the agent reads no further
_GID_BYTES = 64
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def capture(source: HostFiles, *, pods: bool) -> TreeFiles:
    """Copy what the agent reads of a host: contents, links, errnos and device numbers.

    With `pods` the cgroups of pods and containers as well. A file that vanishes in between is
    left out. Raises `RecordingError` for a host beyond the bounds of a recording.
    """
    taker = _Taker(source)
    for wanted in paths.HOST + (paths.CGROUP_PODS if pods else ()):
        taker.take(wanted)
    for port in taker.expand(paths.GID_TABLES):
        taker.take_gids(port)
    return taker.builder.build()


class _Taker:
    """Puts what it looks at into a tree, under the resolved path, links on the way included."""

    def __init__(self, source: HostFiles) -> None:
        self.builder = TreeBuilder()
        self._source = source
        self._resolver = Resolver(self._look)
        self._seen: dict[tuple[str, str], Entry | None] = {}

    def expand(self, pattern: str) -> Iterator[str]:
        """Yield the directories that match, as spelled; links are not resolved in them."""
        found = [""]
        for part in pattern.strip("/").split("/"):
            if any(mark in part for mark in "*?["):
                found = [
                    f"{path}/{name}"
                    for path in found
                    for name in self._names(path)
                    if fnmatchcase(name, part)
                ]
            else:
                found = [f"{path}/{part}" for path in found]
        yield from found

    def take(self, wanted: Wanted) -> None:
        """Put the wanted entries of every directory that matches."""
        for base in self.expand(wanted.base):
            there = self._names(base)
            for name in there:
                if any(fnmatchcase(name, pattern) for pattern in wanted.entries):
                    self._put(f"{base}/{name}", wanted.limit, through=wanted.through)
            if not there and self._contents(base, 0) is Kind.DIRECTORY:
                self._put(base, 0)  # an empty directory says something, too

    def take_gids(self, port: str) -> None:
        """Put the GIDs that the agent would read; an empty slot is as good as an absent one."""
        empty = 0
        for index in range(MAX_GIDS):
            gid = self._read(f"{port}/gids/{index}")
            empty = 0 if gid.strip(b"0:\r\n\t \0") else empty + 1
            if empty == EMPTY_RUN:
                return
            if not empty:
                for place in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
                    self._put(f"{port}/{place}/{index}", _GID_BYTES)

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
            found, entry = (path, Kind.FILE) if through else self._resolver.find(path)
        except HostFileError:
            return
        known = self._contents(found, limit) if entry is Kind.FILE else entry
        if known is not None:
            self.builder.put(found, known)

    def _contents(self, path: str, limit: int) -> Entry | None:
        number = self._source.device_number(path)
        if number is not None:
            return DeviceNode(*number)
        try:
            return self._source.read(path, limit)
        except HostFileError as error:
            if error.errno == errno.EISDIR:
                return Kind.DIRECTORY
            return None if error.errno in _ABSENT else Refused(error.errno)

    def _look(self, directory: str, name: str) -> Entry | None:
        key = (directory, name)
        if key not in self._seen:
            self._seen[key] = self._look_once(f"{directory}/{name}")
        return self._seen[key]

    def _look_once(self, path: str) -> Entry | None:
        try:
            target = self._source.link(path)
            if target is not None:
                link = Link(target)
                self.builder.put(path, link)
                return link
            if self._source.names(path):
                return Kind.DIRECTORY
        except HostFileError as error:
            return None if error.errno in _ABSENT else Refused(error.errno)
        return Kind.FILE if self._source.exists(path) else None
