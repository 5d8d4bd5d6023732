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

Recorded text back to a host; `agent.recording.format` says how it looks.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from agent.recording.tree import (
    DeviceNodeEntry,
    EntryKind,
    ErrorEntry,
    LinkEntry,
    RecordingError,
    TreeBuilder,
    TreeEntry,
    TreeFiles,
)

FIRST_LINE = "xpu-agent host recording 1"
ROW_BYTES = 32  # bytes in a line of a binary file
MAX_FILE_BYTES = 1024 * 1024  # bytes of one recorded file
_TEXT_CONTENT = re.compile(rb"[\t\n\x20-\x7e]*")
_SAFE_CHARACTERS = "_.~:,+@()=&-"


def format_recording(tree: TreeFiles, header: Mapping[str, str]) -> str:
    """Return the recording of a host; equal hosts and headers give equal text."""
    lines = [FIRST_LINE, *(f"{key}: {value}" for key, value in sorted(header.items()))]
    for path, entries in tree.walk():
        lines.extend(_format_section(path, entries))
    return "\n".join(lines) + "\n"


def escape_name(text: str, safe: str = "/") -> str:
    """Escape blanks, control characters and marks of the format in a name."""
    return quote_from_bytes(text.encode("utf-8", "surrogateescape"), safe=_SAFE_CHARACTERS + safe)


def _format_section(path: str, entries: Mapping[str, TreeEntry]) -> Iterator[str]:
    own_entries = {
        name: entry for name, entry in entries.items() if entry is not EntryKind.DIRECTORY
    }
    if entries and not own_entries:
        return  # the sections of its subdirectories imply it
    yield ""
    yield f"[{escape_name(path) or '/'}]"
    for name in sorted(own_entries):
        yield from _format_entry(escape_name(name, ""), own_entries[name])


def _format_entry(name: str, entry: TreeEntry) -> Iterable[str]:
    if isinstance(entry, bytes):
        return (
            _format_text(name, entry)
            if _TEXT_CONTENT.fullmatch(entry)
            else _format_binary(name, entry)
        )
    if isinstance(entry, LinkEntry):
        return (f"{name} -> {escape_name(entry.text)}",)
    if isinstance(entry, ErrorEntry):
        return (f"{name} ! {errno.errorcode.get(entry.errno, entry.errno)}",)
    if isinstance(entry, DeviceNodeEntry):
        return (f"{name} @ {entry.major}:{entry.minor}",)
    raise TypeError(f"{name}: {entry} is not part of a recording")


def _format_text(name: str, data: bytes) -> Iterator[str]:
    text = data.decode("ascii")
    has_newline = text.endswith("\n")
    *first_lines, last = text.removesuffix("\n").split("\n")
    if first_lines:
        yield f"{name} |{'' if has_newline else '-'}"
        yield from (f"|{line}" for line in (*first_lines, last))
    else:
        mark = "=" if has_newline else ":="
        yield f"{name} {mark} {last}" if last else f"{name} {mark}"


def _format_binary(name: str, data: bytes) -> Iterator[str]:
    yield f"{name} x {len(data)}"
    for offset in range(0, len(data), ROW_BYTES):
        row = data[offset : offset + ROW_BYTES]
        if any(row):
            yield f"|{offset:04x} {row.hex()}"


MAX_RECORDING_BYTES = 32 * 1024 * 1024  # bytes of one recording
_MAX_EXTRACT = 60  # characters of an invalid line that its error repeats
_NUMBERS = re.compile(r"(\d{1,7}):(\d{1,7})", re.ASCII)
_SIZE = re.compile(r"\d{1,7}", re.ASCII)
_ROW = re.compile(r"([0-9a-f]{4,5}) ((?:[0-9a-f]{2}){1,32})")


class Recording(msgspec.Struct, frozen=True):
    """A recorded host and the header of the recording."""

    files: TreeFiles
    header: Mapping[str, str]

    @property
    def wall_s(self) -> float | None:
        """Time of the recording, in seconds since the epoch; `None` if unknown."""
        try:
            return datetime.fromisoformat(self.header["recorded"]).timestamp()
        except (KeyError, ValueError):
            return None


class _BadLine(Exception):
    """An error in one line; becomes a `RecordingError` with the line number."""


def parse_recording(data: bytes) -> Recording:
    """Return the recorded host; the `RecordingError` names the first invalid line."""
    if len(data) > MAX_RECORDING_BYTES:
        raise RecordingError(f"more than {MAX_RECORDING_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise RecordingError(f"line {number}: not UTF-8") from error
    head, *sections = text.split("\n[")
    header = _parse_header(head)
    number = head.count("\n") + 2
    builder = TreeBuilder()
    for section in sections:
        lines = section.split("\n")
        _parse_section(builder, lines, number)
        number += len(lines)
    return Recording(builder.build(), header)


def _parse_header(head: str) -> dict[str, str]:
    first, *lines = head.split("\n")
    if first != FIRST_LINE:
        raise RecordingError(f"line 1: {first[:_MAX_EXTRACT]!r} instead of {FIRST_LINE!r}")
    header: dict[str, str] = {}
    for number, line in enumerate(lines, 2):
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            header[key.strip()] = value.strip()
        elif line and not line.startswith("#"):
            raise RecordingError(
                f"line {number}: {line[:_MAX_EXTRACT]!r} is neither key nor section"
            )
    return header


def _parse_section(builder: TreeBuilder, lines: list[str], number: int) -> None:
    """Add one directory's entries; the first line is its path and the closing bracket."""
    path = _unescape_name(lines[0].removesuffix("]"))
    path = "" if path == "/" else path
    if not lines[0].endswith("]") or not builder.put(path, EntryKind.DIRECTORY):
        raise RecordingError(f"line {number}: {lines[0][:_MAX_EXTRACT]!r} is no directory")
    at = 1
    while at < len(lines):
        line = lines[at]
        if line and line[0] != "#":
            name, _, fields = line.partition(" ")
            mark, _, value = fields.partition(" ")
            try:
                entry, next_index = _parse_entry(mark, value, lines, at + 1)
                if "%" in name and "/" in (name := _unescape_name(name)):
                    raise _BadLine("a name with a slash")
                if not builder.put(f"{path}/{name}", entry):
                    raise _BadLine("something else of this name came before")
            except _BadLine as error:
                raise RecordingError(
                    f"line {number + at}: {error}: {line[:_MAX_EXTRACT]!r}"
                ) from error
            at = next_index
        else:
            at += 1


def _parse_entry(mark: str, value: str, lines: list[str], next_index: int) -> tuple[TreeEntry, int]:
    """Return the entry of a line and the index of the line after it."""
    if mark == "=":
        return f"{value}\n".encode(), next_index
    if mark in _BLOCKS:
        end = next_index
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        return _BLOCKS[mark](value, lines[next_index:end]), end
    if mark not in _SINGLES:
        raise _BadLine("no known kind of entry")
    return _SINGLES[mark](value), next_index


def _unescape_name(escaped: str) -> str:
    return unquote_to_bytes(escaped).decode("utf-8", "surrogateescape")


def _parse_error_entry(value: str) -> ErrorEntry:
    number = getattr(errno, value, None) if value.startswith("E") else None
    if number is None and _SIZE.fullmatch(value):
        number = int(value)
    if not isinstance(number, int):
        raise _BadLine("no errno")
    return ErrorEntry(number)


def _parse_device_entry(value: str) -> DeviceNodeEntry:
    match = _NUMBERS.fullmatch(value)
    if match is None:
        raise _BadLine("no device number")
    return DeviceNodeEntry(int(match[1]), int(match[2]))


def _parse_text_block(value: str, rows: list[str]) -> bytes:
    if value or not rows:
        raise _BadLine("no lines follow")
    return "\n".join(row[1:] for row in rows).encode()


def _parse_binary_block(value: str, rows: list[str]) -> bytes:
    size = int(value) if _SIZE.fullmatch(value) else MAX_FILE_BYTES + 1
    if size > MAX_FILE_BYTES:
        raise _BadLine("no size, or too large")
    data = bytearray(size)
    for row in rows:
        match = _ROW.fullmatch(row, 1)
        part = bytes.fromhex(match[2]) if match else b""
        start = int(match[1], 16) if match else size
        if not part or start + len(part) > size:
            raise _BadLine(f"bad row {row[:_MAX_EXTRACT]!r}")
        data[start : start + len(part)] = part
    return bytes(data)


_BLOCKS: Mapping[str, Callable[[str, list[str]], bytes]] = {
    "|": lambda value, rows: _parse_text_block(value, rows) + b"\n",
    "|-": _parse_text_block,
    "x": _parse_binary_block,
}

_SINGLES: Mapping[str, Callable[[str], TreeEntry]] = {
    ":=": str.encode,
    "->": lambda value: LinkEntry(_unescape_name(value)),
    "!": _parse_error_entry,
    "@": _parse_device_entry,
}
