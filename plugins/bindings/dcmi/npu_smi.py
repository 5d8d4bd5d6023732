"""The tables that `npu-smi` prints, as values. Pure; a line that is no row is passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from agent.errors import ParseError
from agent.topology.address import parse_address

MAX_TEXT = 1 << 20
MAX_ROWS = 256
MAX_COLUMN = 16  # characters of a number, with its blanks
WELL = "OK"
_HEADER = re.compile(r"\|\s*NPU\s+Name\s*\|\s*Health\s*\|")
_PROCESSES = "Process id"
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?")
_PAIR = re.compile(r"(?<!\d)(\d{1,9})\s*/\s*(\d{1,9})(?!\d)")
_COLUMN = re.compile(r"(?:NPU|Phy-ID)(\d{1,3})")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One chip of `npu-smi info`; `None` is a dash. Memory is (used, total) in MB."""

    card: int
    chip: int
    phy: int | None  # None: the table has no such column
    name: str
    health: str
    bus_id: str | None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    core_percent: float | None = None
    ddr_mb: tuple[int, int] | None = None
    hbm_mb: tuple[int, int] | None = None


def parse_info(text: str) -> tuple[Row, ...]:
    """Return the chips of `npu-smi info` in the order printed; `ParseError` without its table."""
    table, _, _ = text[:MAX_TEXT].partition(_PROCESSES)
    head = _HEADER.search(table)
    if head is None:
        raise ParseError("npu-smi info", text)
    cells = list(_cells(table[head.start() :]))
    columns = " ".join(cells[1]) if len(cells) > 1 else ""
    with_phy = "Phy-ID" in columns or "Device" in columns.split()
    rows = [_row(a, b, with_phy=with_phy, hbm="HBM" in columns) for a, b in _twos(cells[2:])]
    return tuple(row for row in rows if row is not None)[:MAX_ROWS]


def _cells(table: str) -> Iterator[tuple[str, ...]]:
    for line in table.splitlines():
        parts = tuple(part.strip() for part in line.strip().strip("|").split("|"))
        if line.strip().startswith("|") and len(parts) == 3:
            yield parts


def _twos(
    rows: list[tuple[str, ...]],
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    yield from zip(rows[::2], rows[1::2], strict=False)


def _row(
    first: tuple[str, ...], second: tuple[str, ...], *, with_phy: bool, hbm: bool
) -> Row | None:
    card, _, name = first[0].partition(" ")
    chip, _, phy = second[0].partition(" ")
    if not (card.isdecimal() and chip.isdecimal()) or len(card + chip) > 6:
        return None
    power, heat = _leading(first[2], 2)
    (busy,) = _leading(second[2], 1)
    pairs = [(int(used), int(total)) for used, total in _PAIR.findall(second[2])]
    return Row(
        card=int(card),
        chip=int(chip),
        phy=int(phy) if with_phy and phy.strip().isdecimal() and len(phy) < MAX_COLUMN else None,
        name=name.strip(),
        health=first[1],
        bus_id=_address(second[1]),
        power_watts=power,
        temperature_celsius=heat,
        core_percent=busy if busy is not None and 0 <= busy <= 100 else None,
        ddr_mb=_some(pairs[0]) if pairs else None,
        hbm_mb=_some(pairs[1]) if hbm and len(pairs) > 1 else None,
    )


def _leading(text: str, count: int) -> list[float | None]:
    """Return the first words as numbers; a dash, or a word that is none, is `None`."""
    words = [*text.split()[:count], *[""] * count][:count]
    return [float(word) if _NUMBER.fullmatch(word) else None for word in words]


def _some(pair: tuple[int, int]) -> tuple[int, int] | None:
    return pair if 0 <= pair[0] <= pair[1] and pair[1] > 0 else None


def _address(text: str) -> str | None:
    try:
        return parse_address(text)
    except ParseError:
        return None


def parse_topo(text: str) -> dict[tuple[int, int], str]:
    """Return how chips are joined, by two numbers, the smaller first; `ParseError` without any.

    Words are those of the tool's legend: HCCS, HCCS_SW, SIO, PIX, PXB, PHB, SYS, NA.
    """
    lines = text[:MAX_TEXT].splitlines()
    heads = [index for index, line in enumerate(lines) if len(_COLUMN.findall(line)) > 1]
    if not heads:
        raise ParseError("npu-smi topo", text)
    columns = [int(number) for number in _COLUMN.findall(lines[heads[0]])]
    found: dict[tuple[int, int], str] = {}
    for line in lines[heads[0] + 1 :]:
        label, *words = line.split() or [""]
        match = _COLUMN.fullmatch(label)
        if match is None:
            continue
        for column, word in zip(columns, words, strict=False):
            if int(match[1]) < column:
                found[int(match[1]), column] = word
    return found
