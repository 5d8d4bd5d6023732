"""The text form of a recorded host: one line a file, in a form that people can review.

    xpu-agent host recording 1
    recorded: 2026-11-21T16:00:00Z          any number of `key: value` lines

    [/sys/bus/pci/devices]                  a directory; those above it are implied
    0000:3b:00.0 -> ../../../devices/...    a link
    name = text                             a file: the text and a newline
    name := text                            a file: the text alone; `:=` is the empty file
    name |                                  a file of several lines, each after a bar;
    |first line                             `|-` is the same without the last newline
    name x 4096                             4096 bytes, of which only rows of 32 that are
    |0040 0a00...                           not all zero follow, each after its offset
    name ! EACCES                           a file or directory that answered an errno
    name @ 195:0                            a device node: major and minor

Names, directories and link texts have bytes outside of `[A-Za-z0-9_.~:,+@()=&-]` and `/`
as `%XX`. Lines that start with `#` are remarks. Contents are restored to the byte.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote_from_bytes

from agent.recording.entries import DeviceNode, Entry, Kind, Link, Refused
from agent.recording.tree import TreeFiles

FIRST_LINE = "xpu-agent host recording 1"
ROW = 32  # bytes in a line of a binary file
MAX_FILE = 1024 * 1024  # bytes of one recorded file

_TEXT = re.compile(rb"[\t\n\x20-\x7e]*")
_SAFE = "_.~:,+@()=&-"


def write(tree: TreeFiles, header: Mapping[str, str]) -> str:
    """Return the recording of a host; equal hosts and headers give equal text."""
    lines = [FIRST_LINE, *(f"{key}: {value}" for key, value in sorted(header.items()))]
    for path, entries in tree.walk():
        lines.extend(_section(path, entries))
    return "\n".join(lines) + "\n"


def escape(text: str, safe: str = "/") -> str:
    """Spell a name so that it has no blanks, control characters or marks of the format."""
    return quote_from_bytes(text.encode("utf-8", "surrogateescape"), safe=_SAFE + safe)


def _section(path: str, entries: Mapping[str, Entry]) -> Iterator[str]:
    own = {name: entry for name, entry in entries.items() if entry is not Kind.DIRECTORY}
    if entries and not own:
        return  # the sections of its subdirectories imply it
    yield ""
    yield f"[{escape(path) or '/'}]"
    for name in sorted(own):
        yield from _lines(escape(name, ""), own[name])


def _lines(name: str, entry: Entry) -> Iterable[str]:
    if isinstance(entry, bytes):
        return _text(name, entry) if _TEXT.fullmatch(entry) else _binary(name, entry)
    if isinstance(entry, Link):
        return (f"{name} -> {escape(entry.text)}",)
    if isinstance(entry, Refused):
        return (f"{name} ! {errno.errorcode.get(entry.errno, entry.errno)}",)
    if isinstance(entry, DeviceNode):
        return (f"{name} @ {entry.major}:{entry.minor}",)
    raise TypeError(f"{name}: {entry} is not part of a recording")


def _text(name: str, data: bytes) -> Iterator[str]:
    text = data.decode("ascii")
    ended = text.endswith("\n")
    *first, last = text.removesuffix("\n").split("\n")
    if first:
        yield f"{name} |{'' if ended else '-'}"
        yield from (f"|{line}" for line in (*first, last))
    else:
        mark = "=" if ended else ":="
        yield f"{name} {mark} {last}" if last else f"{name} {mark}"


def _binary(name: str, data: bytes) -> Iterator[str]:
    yield f"{name} x {len(data)}"
    for offset in range(0, len(data), ROW):
        row = data[offset : offset + ROW]
        if any(row):
            yield f"|{offset:04x} {row.hex()}"
