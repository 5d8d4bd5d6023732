"""One thing that the agent changed, and its line on disk with a checksum. Pure."""

from __future__ import annotations

import re
import zlib
from typing import TypeVar

import msgspec

VERSION = 1
OPERATIONS = ("set", "undone", "gone")
MAX_LINE = 16 * 1024  # bytes; a longer one is not ours
MAX_OURS = 8  # values of ours that are told from foreign ones: the last, and those on the way

OOM, CORE = "oom", "core"  # hierarchies of entries about processes instead of files
SYSCTL = "sysctl"  # of the kernel's switches, whose path is that of the file
# the kernel's switches that the agent writes: entries name no other file below /proc
CORE_SWITCH = "/proc/sys/kernel/sched_core"
IDENTITY_SWITCH = "/proc/sys/kernel/sched_group_identity_enabled"
SWITCHES = (CORE_SWITCH, IDENTITY_SWITCH)

_Decoded = TypeVar("_Decoded")
_HEAD = re.compile(rb'\{"crc":([0-9]{1,10}),')


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What stood in one file before our first write, and what we wrote.

    `hierarchy` is version 1's controller, `v2`, `oom`, `core` or `sysctl`;
    `inode` is the directory's, so that a new group of the same name is not taken for the old one.
    """

    hierarchy: str
    path: str  # of the cgroup
    inode: int
    key: str
    owner: str  # the hook
    original: str
    ours: tuple[str, ...] = ()  # the newest last; also those between two wanted ones

    @property
    def id(self) -> tuple[str, str, str]:
        """Return what there is one entry of."""
        return self.hierarchy, self.path, self.key


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line: an entry as it is from now on, or (`undone`, `gone`) that it is no more."""

    v: int
    boot: str
    seq: int
    op: str  # set, undone, gone
    entry: Entry


class NewerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a newer version that this version cannot read; the ledger keeps it as it is."""

    boot: str
    data: bytes  # without its end


class _Head(msgspec.Struct, frozen=True):
    """The fields that the lines of every version have."""

    v: int
    boot: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)
_head_decoder = msgspec.json.Decoder(_Head)


def encode(line: Line) -> bytes:
    """Return the line with its checksum and its end."""
    body = _encoder.encode(line)
    return b'{"crc":%d,%b\n' % (zlib.crc32(body), body[1:])


def decode(data: bytes) -> Line | NewerLine | None:
    """Return what a line says, without its end; `None` for one that is damaged, or not ours.

    Of a newer version's line the fields that this version has are read, so that a node can be
    restored after its agent was rolled back.
    """
    head = _HEAD.match(data)
    if head is None or len(data) > MAX_LINE:
        return None
    body = b"{" + data[head.end() :]
    if zlib.crc32(body) != int(head[1]):
        return None
    line = _decode(_decoder, body)
    if line is not None and line.v >= VERSION and line.op in OPERATIONS and _plain(line.entry.path):
        return line
    version = _decode(_head_decoder, body)
    if version is not None and version.v > VERSION:
        return NewerLine(boot=version.boot, data=data)
    return None


def _decode(decoder: msgspec.json.Decoder[_Decoded], body: bytes) -> _Decoded | None:
    try:
        return decoder.decode(body)
    # UnicodeDecodeError: bytes that are no UTF-8; RecursionError: thousands of nested lists
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _plain(path: str) -> bool:
    """Return whether a path is absolute, stays below its mount, and can be opened."""
    return path.startswith("/") and ".." not in path.split("/") and "\0" not in path
