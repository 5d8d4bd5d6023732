"""The page `/runbook` has an anchor for each entry, and only for clients of this machine."""

from __future__ import annotations

import re

from agent.web.page.document import StatusPage
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from tests.unit.web.view import StillView, eight_cards

RUNBOOK = build_runbook(load_vendors())
PAGE = "".join(StatusPage(StillView(eight_cards(), runbook=RUNBOOK)).render_runbook())


def test_each_entry_has_its_anchor_once() -> None:
    anchors = re.findall(r'<article id="([^"]*)"', PAGE)
    assert anchors == [entry.anchor for entry in RUNBOOK.entries()]
    assert len(set(re.findall(r' id="([^"]*)"', PAGE))) == PAGE.count(' id="')


def test_each_entry_has_its_texts() -> None:
    (entry,) = (one for one in RUNBOOK.entries() if one.heading == "nvidia Xid79")
    start = PAGE.index('<article id="nvidia-xid79"')
    section = PAGE[start : PAGE.index("</article>", start)]
    for words in (entry.title, entry.impact, entry.remedy, "reboot", "pcie"):
        assert words[1:] in section  # sentences begin with a capital letter


def test_links_to_sections_lead_somewhere() -> None:
    targets = re.findall(r'href="#([^"]*)"', PAGE)
    assert targets
    assert all(f' id="{target}"' in PAGE for target in targets)
