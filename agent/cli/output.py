"""How answers are printed: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

ABSENT = "-"


def cell(value: object) -> str:
    """Write one value of a table; what is absent is a dash, never 0 or nothing."""
    if value is None or value in ("", []):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    return str(value)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as aligned columns under their names in capitals; the last is not padded."""
    if not rows:
        return ""
    names = list(rows[0])
    lines = [[name.upper().replace("_", " ") for name in names]]
    lines += [[cell(row[name]) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def dump(data: object, form: str) -> str:
    """Return data as JSON (two blanks of indent) or YAML, keys in their given order."""
    if form == "yaml":
        from agent.publish.wire.yaml_text import to_yaml  # noqa: PLC0415 - only where it is asked for

        return to_yaml(data).decode()
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def show(rows: Sequence[Mapping[str, object]], form: str, key: str) -> None:
    """Print rows: a table, or `{key: rows}` for programs."""
    text = table(rows) + "\n" if form == "table" else dump({key: list(rows)}, form)
    sys.stdout.write(text)
