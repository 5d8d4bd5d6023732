"""Write docs/runbook.md from the entries of the agent and of its vendors.

With `--check` nothing is written: the exit status is 1 if the file differs, or if an anchor of the
file is missing now. Alerts, dashboards and conditions of Nodes link to the anchors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from agent.runbook.entry import RecommendedAction, RunbookEntry, RunbookSection, anchor_of
from agent.runbook.runbook import Runbook
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "runbook.md"
HEAD = """\
# Runbook

<!-- generated: make docs -->

One heading for each reason that the agent reports: in conditions, events, metrics, on its page and
in `xpu-agent doctor`. The running agent has the same text at `/runbook`. A reason that several
vendors share is under its vendor if it means something else there; otherwise under *Devices of all
vendors*. A vendor plug-in from another package may have reasons that are not here: see
[Unlisted](#unlisted).

The recommended action is one word, for machines: see [node-health.md](node-health.md).

| Action | Meaning |
|---|---|
"""
ACTIONS = {
    RecommendedAction.NONE: "nothing is broken, or it ends by itself",
    RecommendedAction.LOOK: "a person has to look; no automatic action is right",
    RecommendedAction.RESET: "reset the device while nothing runs on it",
    RecommendedAction.DRAIN_AND_RESET: "end what runs on the device, then reset it",
    RecommendedAction.REBOOT: "drain and reboot the node",
    RecommendedAction.REPLACE: "replace or repair the hardware",
}


def sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    text = clause[:1].upper() + clause[1:]
    return text if text.endswith(".") else f"{text}."


def entry_text(entry: RunbookEntry) -> str:
    """Return the heading and the text of one entry."""
    category = f", class of fault `{entry.category}`" if entry.category else ""
    return "\n".join(
        (
            f"### {entry.heading}",
            "",
            f"**{sentence(entry.title)}** {entry.meaning}",
            "",
            f"* Impact: {entry.impact}",
            f"* What to do: {sentence(entry.remedy)}",
            f"* Recommended action: `{entry.action}`{category}",
        )
    )


def section_text(section: RunbookSection) -> Iterator[str]:
    """Yield the heading and the entries of one section."""
    yield f"## {section.title}\n\nWhere to see them: {section.where}."
    yield from map(entry_text, section.entries)


def document_text(runbook: Runbook) -> str:
    """Return the whole document."""
    rows = "\n".join(f"| `{action}` | {text} |" for action, text in ACTIONS.items())
    sections = [text for section in runbook.sections() for text in section_text(section)]
    return "\n\n".join((HEAD + rows, *sections)) + "\n"


def anchors(document: str) -> frozenset[str]:
    """Return the anchors of the entries of a document."""
    return frozenset(
        anchor_of(line.removeprefix("### "))
        for line in document.splitlines()
        if line.startswith("### ")
    )


def main() -> int:
    """Write or check the document."""
    text = document_text(build_runbook(load_vendors()))
    document = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    missing = sorted(anchors(document) - anchors(text))
    for anchor in missing:
        print(f"docs/runbook.md: #{anchor} has gone: links of alerts use it", file=sys.stderr)
    if "--check" not in sys.argv[1:]:
        DOCUMENT.write_text(text)
    elif text != document:
        print("docs/runbook.md is not up to date: run `make docs`", file=sys.stderr)
        return 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
