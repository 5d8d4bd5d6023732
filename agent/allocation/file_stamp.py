"""Whether a file or folder is the one that was read before."""

from __future__ import annotations

import os

from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from agent.recording.directory import DirectoryFiles
from agent.snapshot.host_files import HostFiles

HostFileStamp = tuple[int, ...]

ABSENT_FILE: HostFileStamp = ()
SETTLE_NS = 1_000_000_000
RECORDED_FILE: HostFileStamp = (0,)  # what was recorded does not change


def read_stamp(host: HostFiles, path: str, wall_s: float) -> HostFileStamp:
    """Return what differs when a path was written, replaced, or had an entry come or go.

    File systems count time in ticks of some milliseconds: what changed within this second may
    change again without looking different, so each look at it is another.
    """
    try:
        if isinstance(host, LiveHostFiles):
            real = host.path(path)
        elif isinstance(host, DirectoryFiles):  # as a container has its node's root
            real = host.real(path)
        else:
            return RECORDED_FILE if host.exists(path) else ABSENT_FILE
        found = os.stat(real)
    except (HostFileError, OSError):
        return ABSENT_FILE
    now_ns = int(wall_s * 1e9)
    young = abs(now_ns - found.st_mtime_ns) < SETTLE_NS
    return found.st_mtime_ns, found.st_ino, found.st_dev, found.st_size, now_ns if young else 0
