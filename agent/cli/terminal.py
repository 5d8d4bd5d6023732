"""Properties of the terminal: width, encoding, colour."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

import msgspec

MIN_WIDTH = 20  # characters; on a narrower terminal lines are wrapped by the terminal itself
BOLD, GREEN, YELLOW, RED, DIM = "1", "32", "33", "31", "2"
_BREAKS = frozenset(" ,-/:;._|=")  # a line may end behind one of these


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a terminal that the layout of text depends on."""

    width: int | None = None  # None: not a terminal, lines are as long as their content
    colour: bool = False
    ascii_only: bool = False

    def paint(self, text: str, style: str) -> str:
        """Return the text in a style; unchanged without a style, or where there is no colour."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and style and text else text


PLAIN_TERMINAL = Terminal()


def terminal_of(stream: TextIO, environment: Mapping[str, str]) -> Terminal:
    """Return the properties of a stream; NO_COLOR and TERM=dumb switch colour off."""
    ascii_only = not _encodes(stream, "└─│")
    if not stream.isatty():
        return Terminal(ascii_only=ascii_only)
    colour = not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"
    columns = shutil.get_terminal_size().columns
    return Terminal(
        width=columns if columns >= MIN_WIDTH else None, colour=colour, ascii_only=ascii_only
    )


def standard_output() -> Terminal:
    """Return the properties of this process's standard output."""
    return terminal_of(sys.stdout, os.environ)


def _encodes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write_document(text: str) -> None:
    """Write text for programs: UTF-8, whatever the encoding of the terminal is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def wrap(text: str, width: int) -> Iterator[str]:
    """Yield the text in lines of at most `width` characters; only blanks at breaks are dropped."""
    rest = text
    while len(rest) > width:
        cut = next((at for at in range(width, 0, -1) if rest[at - 1] in _BREAKS), 0)
        if rest[width] == " ":
            cut = width
        head, rest = rest[: cut or width], rest[cut or width :]
        yield head.rstrip()
        rest = rest.lstrip()
    yield rest


def fit_lines(lines: Iterable[str], terminal: Terminal, indent: str = "  ") -> Iterator[str]:
    """Yield lines that fit the terminal; the rest of a long line is indented below it."""
    for line in lines:
        if terminal.width is None or len(line) <= terminal.width:
            yield line
            continue
        margin = line[: len(line) - len(line.lstrip())]
        width = max(MIN_WIDTH, terminal.width - len(margin) - len(indent))
        first, *more = wrap(line.lstrip(), width)
        yield margin + first
        yield from (margin + indent + part for part in more)
