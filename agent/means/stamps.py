"""Whether a file or folder is the one that was read before."""

from __future__ import annotations

import os

from agent.host.files import HostFiles, LiveRoot

Stamp = tuple[int, ...]

ABSENT: Stamp = ()
RECORDED: Stamp = (0,)  # what was recorded does not change


def stamp(host: HostFiles, path: str) -> Stamp:
    """Return what differs when a path was written, replaced, or had an entry come or go."""
    if not isinstance(host, LiveRoot):
        return RECORDED if host.exists(path) else ABSENT
    try:
        found = os.stat(host.path(path))
    except OSError:
        return ABSENT
    return found.st_mtime_ns, found.st_ino, found.st_dev, found.st_size
