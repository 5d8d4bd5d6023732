"""Parsers of kernel files. No I/O.

Every parser strips NULs and blanks at both ends and raises `ParseError` for text that the kernel
does not print. Digits are ASCII digits only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.errors import ParseError

MAX_CPUS = 65536  # no number of a CPU or a memory node reaches this
MAX_ITEMS = 4096  # of one list
MAX_LAPS = 4  # how often the ranges of one list may span all numbers together
MAX_DISTANCE = 255  # the firmware's table has one byte an entry
MAX_DEV_PART = 1 << 20  # major and minor numbers

_STRIP = "\0 \t\r\n"  # recorded trees pad with NULs
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5})(?::([0-9]{1,5})/([0-9]{1,5}))?)?")
_HEX = re.compile(r"[0-9a-fA-F]+")
_INT = re.compile(r"[+-]?[0-9]{1,18}")
_SIZE = re.compile(r"([0-9]{1,15})([KMG]?)")
_DEV = re.compile(r"([0-9]{1,7}):([0-9]{1,7})")
_UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_WORD_DIGITS = 8
_WORD_BITS = 32


def parse_digits(text: str | bytes, max_digits: int) -> int | None:
    """Return a number of ASCII digits; `None` for anything else and for more than `max_digits`."""
    if not text.isdigit() or not text.isascii() or len(text) > max_digits:
        return None
    return int(text)


def parse_cpu_list(text: str, limit: int = MAX_CPUS) -> frozenset[int]:
    """Parse the kernel's list of CPUs or nodes: `0-3,8` is {0, 1, 2, 3, 8}, empty is empty.

    `a-b:c/d` takes the first c of every d numbers from a to b. At most `MAX_ITEMS` items, all
    numbers below `limit`.
    """
    items = text.strip(_STRIP).split(",")
    if len(items) > MAX_ITEMS:
        raise ParseError("cpu list: too many items", text)
    numbers: set[int] = set()
    visited = 0
    for item in filter(None, (part.strip(" \t") for part in items)):
        span, used, period = _range(item, text, limit)
        visited += len(span)
        if visited > MAX_LAPS * limit:  # no kernel prints them, and they cost time
            raise ParseError("cpu list: ranges overlap", text)
        if used == period:
            numbers.update(span)  # as nearly all are: twenty times as quick
        else:
            numbers.update(n for n in span if (n - span.start) % period < used)
    return frozenset(numbers)


def _range(item: str, text: str, limit: int) -> tuple[range, int, int]:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise ParseError("cpu list", text)
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    used, period = (1, 1) if match[3] is None else (int(match[3]), int(match[4]))
    if not (first <= last < limit and 1 <= used <= period < MAX_CPUS):
        raise ParseError("cpu list", text)
    return range(first, last + 1), used, period


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Format a set as the kernel prints lists: sorted, with ranges, `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_cpu_mask(text: str) -> frozenset[int]:
    """Parse the kernel's bit mask: hexadecimal words joined by `,`, most significant first.

    Every word but the first counts as 32 bits, whatever its length; a trailing `,` is dropped
    (old ia64). A single word may be as long as the largest mask.
    """
    words = text.strip(_STRIP).removesuffix(",").split(",")
    longest = MAX_CPUS // 4 if len(words) == 1 else _WORD_DIGITS
    if len(words) > MAX_CPUS // _WORD_BITS:
        raise ParseError("cpu mask: too many words", text)
    bits = 0
    for word in words:
        if len(word) > longest or not _HEX.fullmatch(word):
            raise ParseError("cpu mask", text)
        bits = bits << _WORD_BITS | int(word, 16)
    return _bits_set(bits)


def _bits_set(bits: int) -> frozenset[int]:
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return frozenset(
        8 * index + bit
        for index, byte in enumerate(data)
        if byte
        for bit in range(8)
        if byte >> bit & 1
    )


def parse_int(text: str, low: int, high: int) -> int:
    """Parse a decimal number of at most 18 digits from `low` to `high`, both included."""
    stripped = text.strip(_STRIP)
    if not _INT.fullmatch(stripped) or not low <= (value := int(stripped)) <= high:
        raise ParseError(f"number from {low} to {high}", text)
    return value


def parse_hex_id(text: str, digits: int) -> int:
    """Parse an identifier that the kernel prints as `0x` and exactly this number of digits.

    PCI `class` has six, `vendor` and `device` four: a shorter text is a damaged one.
    """
    stripped = text.strip(_STRIP)
    body = stripped[2:]
    if not stripped.startswith("0x") or len(body) != digits or not _HEX.fullmatch(body):
        raise ParseError(f"hexadecimal id of {digits} digits", text)
    return int(body, 16)


def parse_size(text: str) -> int:
    """Parse `512K`, `32M`, `1G` or plain bytes into bytes; K is 1024."""
    match = _SIZE.fullmatch(text.strip(_STRIP))
    if match is None:
        raise ParseError("size", text)
    return int(match[1]) * _UNIT_BYTES[match[2]]


def parse_distances(text: str, count: int) -> tuple[int, ...]:
    """Parse one row of the distance matrix: exactly `count` numbers from 0 to 255.

    They are in the order of the node numbers; a node's number is not their index.
    """
    parts = text.strip(_STRIP).split()
    if len(parts) != count:
        raise ParseError(f"row of {count} distances", text)
    return tuple(parse_int(part, 0, MAX_DISTANCE) for part in parts)


def parse_dev_number(text: str) -> tuple[int, int]:
    """Parse `major:minor` of a file `dev`; both below 2^20."""
    match = _DEV.fullmatch(text.strip(_STRIP))
    if match is None:
        raise ParseError("device number", text)
    major, minor = int(match[1]), int(match[2])
    if major >= MAX_DEV_PART or minor >= MAX_DEV_PART:
        raise ParseError("device number", text)
    return major, minor
