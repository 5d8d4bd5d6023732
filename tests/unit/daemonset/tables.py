"""Tables of documents, which tests compare with the manifests."""

from __future__ import annotations

from pathlib import Path


def read_table(document: Path, name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of the table below the comment that begins with `name`, by column."""
    lines = document.read_text().split(f"<!-- {name}:", 1)[1].splitlines()[1:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    head, _, *body = rows
    return tuple(dict(zip(head, row, strict=True)) for row in body)
