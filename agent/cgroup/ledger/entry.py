"""One thing that the agent changed, and its line on disk with a checksum. Pure."""

from __future__ import annotations

import re
import zlib

import msgspec

VERSION = 1
MAX_LINE = 16 * 1024  # bytes; a longer one is not ours
MAX_OURS = 8  # values of ours that are told from foreign ones: the last, and those on the way

OOM, CORE = "oom", "core"  # hierarchies of entries about processes instead of files
SYSCTL = "sysctl"  # of the kernel's switches, whose path is that of the file

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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """Return the line with its checksum and its end."""
    body = _encoder.encode(line)
    return b'{"crc":%d,%b\n' % (zlib.crc32(body), body[1:])


def decode(data: bytes) -> Line | None:
    """Return what a line says, without its end; `None` for one that is damaged, or not ours."""
    head = _HEAD.match(data)
    if head is None or len(data) > MAX_LINE:
        return None
    body = b"{" + data[head.end() :]
    if zlib.crc32(body) != int(head[1]):
        return None
    try:
        line = _decoder.decode(body)
    except msgspec.DecodeError:  # whole, but of another version
        return None
    plain = line.entry.path.startswith("/") and ".." not in line.entry.path.split("/")
    return line if line.v == VERSION and plain else None
