"""What a recorded host can hold at a path, and how much of it one recording may hold."""

from __future__ import annotations

import enum

import msgspec

from agent.errors import NotAHost

MAX_NODES = 200_000  # files, links and directories of one recorded host
MAX_KEPT = 128 * 1024 * 1024  # bytes of file contents of one recorded host


class RecordingError(NotAHost):
    """A recording or archive is damaged or beyond its bounds; says where and what."""


class Kind(enum.Enum):
    """An entry without contents of its own."""

    DIRECTORY = "directory"
    FILE = "file"  # on disk; its bytes are read when asked for
    OTHER = "other"  # on disk: a FIFO or a socket, never opened


class Link(msgspec.Struct, frozen=True):
    """A symbolic link, its text as found."""

    text: str


class Refused(msgspec.Struct, frozen=True):
    """A file or directory that answered an errno instead of its contents."""

    errno: int


class DeviceNode(msgspec.Struct, frozen=True):
    """A character or block device; only its numbers are kept."""

    major: int
    minor: int


Entry = bytes | Link | Refused | DeviceNode | Kind
