"""The entries of docs/runbook.md for the vendors of this agent, as sections of a page."""

from __future__ import annotations

from collections.abc import Iterator

from agent.runbook.entry import RunbookEntry, RunbookSection, anchor_of
from agent.runbook.runbook import Runbook
from agent.web.page.html import prose, section, tag, text
from agent.web.page.problems import remedy_text, sentence


def runbook_sections(runbook: Runbook) -> Iterator[str]:
    """Yield a list of the sections, then each with its entries.

    `/runbook#ANCHOR` is the entry of a reason.
    """
    sections = tuple(runbook.sections())
    links = (tag("a", text(one.title), href=f"#{anchor_of(one.title)}") for one in sections)
    yield tag("nav", *links, aria_label="Sections of the runbook")
    for one in sections:
        yield section(anchor_of(one.title), one.title, *_section_parts(one))


def _section_parts(one: RunbookSection) -> Iterator[str]:
    where = one.where.replace("`", "").replace("[collectors.md](collectors.md)", "the documents")
    yield tag("p", text(f"Where to see them: {where}."), class_="quiet")
    yield from map(_entry, one.entries)


def _entry(entry: RunbookEntry) -> str:
    fault = f"Class of fault: {entry.category}." if entry.category else ""
    return tag(
        "article",
        tag("h3", text(entry.heading)),
        tag("p", tag("b", prose(sentence(entry.title))), " ", prose(sentence(entry.meaning))),
        tag("p", tag("b", "Impact: "), prose(sentence(entry.impact))) if entry.impact else "",
        remedy_text(entry.remedy, entry.action),
        tag("p", text(fault), class_="quiet") if fault else "",
        id=entry.anchor,
        class_="entry",
    )
