"""Which file system, and which path in it, a path of the host is: as mount tables name it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.proof.evidence import MountFound, Origin
from agent.proof.procfs import parse_mountinfo

# the host's first process has its mount table, wherever the agent itself lives
TABLES = ("/proc/1/mountinfo", "/proc/self/mountinfo")
MAX_TABLE = 4 << 20  # bytes; every container on the node adds lines
MAX_LINKS = 40


def origins_of(host: HostFiles, paths: Iterable[str]) -> Mapping[str, Origin]:
    """Return the origins of those host paths that can be told."""
    wanted = tuple(dict.fromkeys(paths))
    if not wanted:
        return {}
    mounts = _table(host)
    resolved = {path: real for path in wanted if (real := _resolved(host, path)) is not None}
    found = {path: _origin(mounts, real) for path, real in resolved.items()}
    return {path: origin for path, origin in found.items() if origin is not None}


def _table(host: HostFiles) -> tuple[MountFound, ...]:
    for table in TABLES:
        try:
            data = host.read(table, MAX_TABLE)
        except HostFileError:
            continue
        if data and len(data) < MAX_TABLE:
            return parse_mountinfo(data)
    return ()


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
