"""Stamps of files and folders, which tell whether they changed since the last read."""

from __future__ import annotations

import os

from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from agent.recording.directory import DirectoryFiles
from agent.snapshot.host_files import HostFiles

HostFileStamp = tuple[int, ...]

ABSENT_FILE: HostFileStamp = ()
SETTLE_NS = 1_000_000_000
RECORDED_FILE: HostFileStamp = (0,)  # a recorded file does not change


def read_stamp(host: HostFiles, path: str, wall_s: float) -> HostFileStamp:
    """Return a value that differs after a change of a file, or of a folder's entries.

    File systems store time with a resolution of some milliseconds: a file that changed within this
    second may change again with an equal time, so each stamp of it is different.
    """
    try:
        if isinstance(host, LiveHostFiles):
            real = host.path(path)
        elif isinstance(host, DirectoryFiles):  # for the node's root inside of a container
            real = host.real(path)
        else:
            return RECORDED_FILE if host.exists(path) else ABSENT_FILE
        info = os.stat(real)
    except (HostFileError, OSError):
        return ABSENT_FILE
    now_ns = int(wall_s * 1e9)
    is_recent = abs(now_ns - info.st_mtime_ns) < SETTLE_NS
    return info.st_mtime_ns, info.st_ino, info.st_dev, info.st_size, now_ns if is_recent else 0
