"""The page `/runbook`: the entries of docs/runbook.md for the vendors of this agent."""

from __future__ import annotations

from collections.abc import Iterator

from agent.runbook.entry import RunbookEntry, RunbookSection, anchor_of
from agent.runbook.runbook import Runbook
from agent.version import VERSION
from agent.web.page.html import tag, text
from agent.web.page.document import stylesheet


def render_runbook(runbook: Runbook) -> str:
    """Return the whole document."""
    sections = tuple(runbook.sections())
    contents = "".join(
        tag("a", text(section.title), href=f"#{anchor_of(section.title)}") for section in sections
    )
    body = (
        tag("header", tag("h1", "Runbook")),
        tag("nav", tag("a", "status page", href="/"), contents),
        *(part for section in sections for part in _section(section)),
        tag("footer", text(f"xpu-agent {VERSION}"), class_="quiet"),
    )
    head = (
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        tag("title", "Runbook · xpu-agent"),
        tag("style", stylesheet()),
    )
    document = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!doctype html>\n{document}\n"


def _section(section: RunbookSection) -> Iterator[str]:
    yield tag("h2", text(section.title), id=anchor_of(section.title))
    where = section.where.replace("`", "").replace(
        "[collectors.md](collectors.md)", "the documents"
    )
    yield tag("p", text(f"Where to see them: {where}."), class_="quiet")
    yield from map(_entry, section.entries)


def _entry(entry: RunbookEntry) -> str:
    rows = (
        ("Impact", entry.impact),
        ("What to do", entry.remedy),
        ("Recommended action", entry.action),
        ("Class of fault", entry.category),
    )
    facts = "".join(
        tag("dt", text(label)) + tag("dd", text(value)) for label, value in rows if value
    )
    return tag(
        "section",
        tag("h3", text(entry.heading)),
        tag("p", tag("b", text(f"{entry.title}. ")), text(entry.meaning)),
        tag("dl", facts),
        id=entry.anchor,
    )
