"""Prints results: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from agent.cli.terminal import BOLD, PLAIN_TERMINAL, Terminal, standard_output, wrap, write_document
from agent.objects.yaml_text import to_yaml

ABSENT_CELL = "-"
GAP = "  "
MIN_COLUMN_WIDTH = 16  # a column is made no narrower than that, unless its content is
OutputRow = Mapping[str, object]
CellStyle = Callable[[str, str], str]  # from column and cell to a style, "" for none


def format_cell(value: object) -> str:
    """Return one value of a table as text; an absent value is a dash, never 0 or empty."""
    if value is None or value in ("", []):
        return ABSENT_CELL
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    return str(value)


def no_style(_column: str, _cell: str) -> str:
    """Return no style."""
    return ""


def format_table(
    rows: Sequence[OutputRow],
    terminal: Terminal = PLAIN_TERMINAL,
    *,
    spare: Sequence[str] = (),
    style: CellStyle = no_style,
) -> str:
    """Return rows as aligned columns below their names in capitals; the last column is not padded.

    On a narrow terminal the `spare` columns are left out in their order, and a last line names
    them; then long cells are wrapped. If that is not enough, each row becomes a block of lines.
    """
    if not rows:
        return ""
    names = list(rows[0])
    cells = {name: [format_cell(row[name]) for row in rows] for name in names}
    natural = {name: max(map(len, (_title(name), *cells[name]))) for name in names}
    spare_names = [name for name in spare if name in natural]
    while spare_names and _total_width(natural, names, MIN_COLUMN_WIDTH) > (
        terminal.width or sys.maxsize
    ):
        names.remove(spare_names.pop(0))
    widths = _column_widths({name: natural[name] for name in names}, terminal.width)
    if widths is None:
        lines = list(_block_lines(names, cells, terminal))
    else:
        lines = list(_table_lines(names, cells, widths, terminal, style))
    absent = [_title(name) for name in rows[0] if name not in names]
    if absent:
        lines += wrap(f"(too narrow for {', '.join(absent)}: see -o json)", terminal.width or 80)
    return "\n".join(lines)


def _title(name: str) -> str:
    return name.upper().replace("_", " ")


def _total_width(natural: Mapping[str, int], names: Sequence[str], most: int) -> int:
    """Return the width of a table whose columns are at most `most` wide."""
    return sum(min(natural[name], most) for name in names) + len(GAP) * (len(names) - 1)


def _column_widths(natural: Mapping[str, int], width: int | None) -> dict[str, int] | None:
    """Return the width of each column, the widest made narrower first; `None` if too narrow."""
    names = list(natural)
    if width is None:
        return dict(natural)
    if _total_width(natural, names, MIN_COLUMN_WIDTH) > width:
        return None
    most = max(natural.values())
    while _total_width(natural, names, most) > width:
        most -= 1
    widths = {name: min(natural[name], most) for name in names}
    for name in names:  # the remaining room goes to the first column that can use it
        room = width - _total_width(widths, names, sys.maxsize)
        widths[name] += min(room, natural[name] - widths[name])
    return widths


def _table_lines(
    names: Sequence[str],
    cells: Mapping[str, Sequence[str]],
    widths: Mapping[str, int],
    terminal: Terminal,
    style: CellStyle,
) -> Iterator[str]:
    titles = [[part] for part in map(_title, names)]
    yield from _row_lines(names, titles, widths, lambda _, text: terminal.paint(text, BOLD))
    for at in range(len(cells[names[0]])):
        columns = {name: cells[name][at] for name in names}

        def paint(name: str, text: str, columns: Mapping[str, str] = columns) -> str:
            return terminal.paint(text, style(name, columns[name]))

        parts = [list(wrap(columns[name], widths[name])) for name in names]
        yield from _row_lines(names, parts, widths, paint)


def _row_lines(
    names: Sequence[str],
    parts: Sequence[Sequence[str]],
    widths: Mapping[str, int],
    paint: Callable[[str, str], str],
) -> Iterator[str]:
    """Yield the lines of one row, as many as its tallest cell has."""
    for level in range(max(map(len, parts))):
        texts = [column[level] if level < len(column) else "" for column in parts]
        while texts and not texts[-1]:
            texts.pop()
        padded = [
            " " * (widths[name] - len(text)) for name, text in zip(names, texts, strict=False)
        ]
        painted = [paint(name, text) for name, text in zip(names, texts, strict=False)]
        pairs = zip(painted, [*padded[:-1], ""], strict=True)
        yield GAP.join(text + blank for text, blank in pairs)


def _block_lines(
    names: Sequence[str], cells: Mapping[str, Sequence[str]], terminal: Terminal
) -> Iterator[str]:
    """Yield each row as lines of name and value, with an empty line between rows."""
    longest = max(len(_title(name)) for name in names)
    width = max(1, (terminal.width or sys.maxsize) - longest - len(GAP))
    for at in range(len(cells[names[0]])):
        if at:
            yield ""
        for name in names:
            first, *more = wrap(cells[name][at], width)
            yield terminal.paint(_title(name).ljust(longest), BOLD) + GAP + first
            yield from (" " * longest + GAP + part for part in more)


def format_document(data: object, form: str) -> str:
    """Return data as JSON (indented by two) or YAML, keys in their given order."""
    if form == "yaml":
        return to_yaml(data).decode()
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def print_rows(rows: Sequence[OutputRow], form: str, key: str) -> None:
    """Print rows: a table, or `{key: rows}` for programs."""
    if form == "table":
        sys.stdout.write(format_table(rows, standard_output()) + "\n")
    else:
        write_document(format_document({key: list(rows)}, form))
