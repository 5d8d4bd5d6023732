"""Write the tables of docs/configuration.md from the settings that the agent reads.

With `--check` nothing is written: the exit status is 1 if the file differs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.config.reference import reference_rows
from agent.workers.load import vendor_descriptions

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
MARK = "<!-- generated below this line: make docs -->"
COLUMNS = ("setting", "type", "default", "range", "maturity", "meaning")


def section_tables(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a heading and a table for each section, in the order of the settings."""
    sections: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        sections.setdefault(row["key"].partition(".")[0], []).append(row)
    return "\n\n".join(f"## {name}\n\n{table(rows)}" for name, rows in sections.items())


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a Markdown table of settings."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        unit = f" {row['unit']}" if row["unit"] else ""
        cells = (
            f"`{row['key']}`",
            row["kind"],
            f"`{row['default']}`{unit}",
            f"{row['range']}{unit if row['range'] else ''}",
            row["maturity"],
            row["about"],
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Write or check the document."""
    document = DOCUMENT.read_text()
    head = document[: document.index(MARK) + len(MARK)]
    text = f"{head}\n\n{section_tables(reference_rows(vendor_descriptions()))}\n"
    if "--check" not in sys.argv[1:]:
        DOCUMENT.write_text(text)
    elif text != document:
        print("docs/configuration.md is not up to date: run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
