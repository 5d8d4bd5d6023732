"""Recorded text back to a host; `agent.recording.format` says how it looks."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from urllib.parse import unquote_to_bytes

import msgspec

from agent.recording.entries import DeviceNode, Entry, Kind, Link, RecordingError, Refused
from agent.recording.format import FIRST_LINE, MAX_FILE
from agent.recording.tree import TreeBuilder, TreeFiles

MAX_TEXT = 32 * 1024 * 1024  # bytes of one recording
_SHOWN = 60  # characters of a bad line that its error repeats
_NUMBERS = re.compile(r"(\d{1,7}):(\d{1,7})", re.ASCII)
_SIZE = re.compile(r"\d{1,7}", re.ASCII)
_ROW = re.compile(r"([0-9a-f]{4,5}) ((?:[0-9a-f]{2}){1,32})")


class Recording(msgspec.Struct, frozen=True):
    """A recorded host and what its header says about it."""

    files: TreeFiles
    header: Mapping[str, str]

    @property
    def wall_s(self) -> float | None:
        """When it was taken, in seconds since the epoch; `None` if nobody noted it."""
        try:
            return datetime.fromisoformat(self.header["recorded"]).timestamp()
        except (KeyError, ValueError):
            return None


class _BadLine(Exception):
    """What is wrong with one line; becomes a `RecordingError` that says which."""


def parse(data: bytes) -> Recording:
    """Return the host that was written; `RecordingError` names the first line that is bad."""
    if len(data) > MAX_TEXT:
        raise RecordingError(f"more than {MAX_TEXT} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise RecordingError(f"line {number}: not UTF-8") from error
    head, *sections = text.split("\n[")
    header = _header(head)
    number = head.count("\n") + 2
    builder = TreeBuilder()
    for section in sections:
        lines = section.split("\n")
        _section(builder, lines, number)
        number += len(lines)
    return Recording(builder.build(), header)


def _header(head: str) -> dict[str, str]:
    first, *lines = head.split("\n")
    if first != FIRST_LINE:
        raise RecordingError(f"line 1: {first[:_SHOWN]!r} instead of {FIRST_LINE!r}")
    header: dict[str, str] = {}
    for number, line in enumerate(lines, 2):
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            header[key.strip()] = value.strip()
        elif line and not line.startswith("#"):
            raise RecordingError(f"line {number}: {line[:_SHOWN]!r} is neither key nor section")
    return header


def _section(builder: TreeBuilder, lines: list[str], number: int) -> None:
    """Put one directory's entries; the first line is its path and the closing bracket."""
    path = _plain(lines[0].removesuffix("]"))
    path = "" if path == "/" else path
    if not lines[0].endswith("]") or not builder.put(path, Kind.DIRECTORY):
        raise RecordingError(f"line {number}: {lines[0][:_SHOWN]!r} is no directory")
    at = 1
    while at < len(lines):
        line = lines[at]
        if line and line[0] != "#":
            name, _, rest = line.partition(" ")
            mark, _, value = rest.partition(" ")
            try:
                entry, used = _entry(mark, value, lines, at + 1)
                if "%" in name and "/" in (name := _plain(name)):
                    raise _BadLine("a name with a slash")
                if not builder.put(f"{path}/{name}", entry):
                    raise _BadLine("something else of this name came before")
            except _BadLine as error:
                raise RecordingError(f"line {number + at}: {error}: {line[:_SHOWN]!r}") from error
            at = used
        else:
            at += 1


def _entry(mark: str, value: str, lines: list[str], after: int) -> tuple[Entry, int]:
    """Return the entry of a line and the index of the line after it."""
    if mark == "=":
        return f"{value}\n".encode(), after
    if mark in _BLOCKS:
        end = after
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        return _BLOCKS[mark](value, lines[after:end]), end
    if mark not in _SINGLES:
        raise _BadLine("no known kind of entry")
    return _SINGLES[mark](value), after


def _plain(escaped: str) -> str:
    return unquote_to_bytes(escaped).decode("utf-8", "surrogateescape")


def _refused(value: str) -> Refused:
    number = getattr(errno, value, None) if value.startswith("E") else None
    if number is None and _SIZE.fullmatch(value):
        number = int(value)
    if not isinstance(number, int):
        raise _BadLine("no errno")
    return Refused(number)


def _device(value: str) -> DeviceNode:
    match = _NUMBERS.fullmatch(value)
    if match is None:
        raise _BadLine("no device number")
    return DeviceNode(int(match[1]), int(match[2]))


def _block(value: str, rows: list[str]) -> bytes:
    if value or not rows:
        raise _BadLine("no lines follow")
    return "\n".join(row[1:] for row in rows).encode()


def _binary(value: str, rows: list[str]) -> bytes:
    size = int(value) if _SIZE.fullmatch(value) else MAX_FILE + 1
    if size > MAX_FILE:
        raise _BadLine("no size, or too large")
    data = bytearray(size)
    for row in rows:
        match = _ROW.fullmatch(row, 1)
        part = bytes.fromhex(match[2]) if match else b""
        start = int(match[1], 16) if match else size
        if not part or start + len(part) > size:
            raise _BadLine(f"bad row {row[:_SHOWN]!r}")
        data[start : start + len(part)] = part
    return bytes(data)


_BLOCKS: Mapping[str, Callable[[str, list[str]], bytes]] = {
    "|": lambda value, rows: _block(value, rows) + b"\n",
    "|-": _block,
    "x": _binary,
}
_SINGLES: Mapping[str, Callable[[str], Entry]] = {
    ":=": str.encode,
    "->": lambda value: Link(_plain(value)),
    "!": _refused,
    "@": _device,
}
