"""Write the tables of docs/metrics.md from the families that the agent exports.

With `--check` nothing is written: the exit status is 1 if the file differs, or if a family that was
declared stable has gone, or has another type or fewer labels than before.
"""

from __future__ import annotations

import sys
from pathlib import Path

from agent.cli.reference import exported_alias_tables, exported_families
from agent.metrics.families import ExportedFamily
from agent.metrics.hami import HAMI_ALIAS, HAMI_LEGACY_ALIAS, hami_table
from agent.metrics.infiniband import infiniband_table
from agent.metrics.koordlet import koordlet_table
from agent.snapshot.vendor import AliasMatch, AliasTable, MetricAlias

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "metrics.md"
MARK = "<!-- generated below this line: make docs -->"
STABLE = "stable"


def table(families: list[ExportedFamily]) -> str:
    """Return a Markdown table of the families."""
    lines = ["| name | type | labels | stability | meaning |", "|---|---|---|---|---|"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "none"
        meaning = family.help
        if family.alias_of:
            meaning += f" Repeats `{family.alias_of}`."
        lines.append(
            f"| `{family.name}` | {family.type} | {labels} | {family.stability} | {meaning} |"
        )
    return "\n".join(lines)


def alias_section(table: AliasTable) -> str:
    """Return the heading and the Markdown table of the names of another exporter."""
    counts = ", ".join(
        f"{sum(alias.match is match for alias in table.metrics)} {match.value}"
        for match in AliasMatch
    )
    lines = [
        f"## Alias `{table.name}`: {table.exporter}",
        "",
        f"{label_text(table)}{counts}.",
        "",
        "| name | type | match | made from | difference, or why it is absent |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{alias.name}` | {alias.type} | {alias.match.value} | {sources(alias)} | {alias.note} |"
        for alias in table.metrics
    ]
    return "\n".join(lines)


def label_text(table: AliasTable) -> str:
    """Return the labels that all families of a table have; nothing if each has its own."""
    names = ", ".join(f"`{label.name}`" for label in table.labels)
    return f"Labels: {names}. " if names else ""


def sources(alias: MetricAlias) -> str:
    """Return what an alias is made from."""
    texts = []
    for source in alias.sources:
        labels = ",".join(f'{name}="{value}"' for name, value in source.where)
        text = source.family or (source.value.name.lower() if source.value else "")
        texts.append(f"`{text}{{{labels}}}`" if labels else f"`{text}`")
    return ", ".join(dict.fromkeys(texts))


def find_broken_promises(document: str, families: list[ExportedFamily]) -> list[str]:
    """Return what a stable family of the document has lost since."""
    current = {family.name: family for family in families}
    broken = []
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or cells[3] != STABLE:
            continue
        name, kind = cells[0].strip("`"), cells[1]
        labels = {label.strip("`") for label in cells[2].split(", ")} - {"none"}
        family = current.get(name)
        if family is None:
            broken.append(f"{name} has gone")
        elif family.type != kind:
            broken.append(f"{name} was a {kind} and is a {family.type}")
        elif missing := labels - set(family.labels):
            broken.append(f"{name} has lost the labels {', '.join(sorted(missing))}")
        elif family.stability != STABLE:
            broken.append(f"{name} is no longer stable")
    return broken


def main() -> int:
    """Write or check the document."""
    families = sorted(exported_families(), key=lambda family: family.name)
    document = DOCUMENT.read_text()
    broken = find_broken_promises(document, families)
    for line in broken:
        print(f"docs/metrics.md: {line}: people's dashboards rely on it", file=sys.stderr)
    head = document[: document.index(MARK) + len(MARK)]
    own_tables = (
        *map(hami_table, (HAMI_ALIAS, HAMI_LEGACY_ALIAS)),
        *(infiniband_table(), koordlet_table()),
    )
    aliases = sorted((*exported_alias_tables(), *own_tables), key=lambda one: one.name)
    sections = [table(families), *map(alias_section, aliases)]
    text = "\n\n".join((head, *sections)) + "\n"
    if "--check" not in sys.argv[1:]:
        DOCUMENT.write_text(text)
    elif text != document:
        print("docs/metrics.md is not up to date: run `make docs`", file=sys.stderr)
        return 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
