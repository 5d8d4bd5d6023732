"""Which file system, and which path in it, a path of the host is: as mount tables name it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.proof.evidence import MountFound, Origin
from agent.proof.procfs import parse_mountinfo

# the host's first process has its mount table; runtimes and agents may live in one of their own
TABLES = ("/proc/1/mountinfo", "/proc/self/mountinfo")
MAX_TABLE = 4 << 20  # bytes; every container on the node adds lines
MAX_LINKS = 40


def origins_of(host: HostFiles, paths: Iterable[str]) -> Mapping[str, tuple[Origin, ...]]:
    """Return the origins of those host paths that can be told: one in each mount table."""
    wanted = tuple(dict.fromkeys(paths))
    if not wanted:
        return {}
    tables = tuple(_tables(host))
    resolved = {path: real for path in wanted if (real := _resolved(host, path)) is not None}
    found = {path: _origins(tables, real) for path, real in resolved.items()}
    return {path: origins for path, origins in found.items() if origins}


def _tables(host: HostFiles) -> Iterator[tuple[MountFound, ...]]:
    for table in TABLES:
        try:
            data = host.read(table, MAX_TABLE)
        except HostFileError:
            continue
        if data and len(data) < MAX_TABLE:
            yield parse_mountinfo(data)


def _origins(tables: Iterable[tuple[MountFound, ...]], path: str) -> tuple[Origin, ...]:
    found = (_origin(mounts, path) for mounts in tables)
    return tuple(dict.fromkeys(origin for origin in found if origin is not None))


def _origin(mounts: Iterable[MountFound], path: str) -> Origin | None:
    best: MountFound | None = None
    for mount in mounts:
        above = mount.path.rstrip("/")
        inside = path == mount.path or path.startswith(f"{above}/")
        if inside and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    if best is None:
        return None
    rest = path[len(best.path.rstrip("/")) :]
    return Origin(best.origin.device, (best.origin.root.rstrip("/") + rest) or "/")


def _resolved(host: HostFiles, path: str) -> str | None:
    """Follow the host's links, as the kernel does when it mounts."""
    parts, done, links = [part for part in path.split("/") if part], "", 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        try:
            target = host.link(f"{done}/{part}") if part != "." else ""
        except HostFileError:
            return None
        if target is None:
            done = f"{done}/{part}"
        elif target:
            links += 1
            if links > MAX_LINKS:
                return None
            done = "" if target.startswith("/") else done
            parts = [more for more in target.split("/") if more] + parts
    return done or "/"
