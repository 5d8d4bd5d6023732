"""docs/runbook.md has one heading with a stable anchor for each entry of the runbook."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from agent.cli.main import COMMANDS
from agent.runbook.entry import RecommendedAction
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "runbook.md"
RUNBOOK = build_runbook(load_vendors())


def viewer_anchor(heading: str) -> str:
    """Return the anchor that viewers of Markdown give a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_anchors_of_the_document_are_those_of_the_entries() -> None:
    headings = re.findall(r"^### (.+)$", DOCUMENT.read_text(), re.M)
    assert [viewer_anchor(heading) for heading in headings] == [
        entry.anchor for entry in RUNBOOK.entries()
    ]


def test_no_anchor_is_there_twice() -> None:
    text = DOCUMENT.read_text()
    headings = re.findall(r"^##+ (.+)$", text, re.M)
    counts = Counter(map(viewer_anchor, headings))
    assert [anchor for anchor, count in counts.items() if count > 1] == []


def test_every_entry_has_all_texts_in_their_form() -> None:
    for entry in RUNBOOK.entries():
        assert entry.meaning.endswith("."), entry.heading
        assert entry.impact.endswith("."), entry.heading
        assert not entry.remedy.endswith("."), entry.heading
        assert not entry.title.endswith("."), entry.heading
        assert entry.remedy, entry.heading


# words with a point that are no settings: files of the kernel, settings of others
OTHERS = frozenset(
    {
        "authentication.webhook.enabled",
        "cgroup.subtree_control",
        "io.containerd.nri",
        "io.stat",
        "kernel.perf_event_paranoid",
        "kubelet.sock",
        "memory.idle_page_stats",
        "memory.reclaim",
        "node.koordinator",
        "scheduling.koordinator",
    }
)


def test_every_setting_and_command_that_an_entry_names_exists() -> None:
    reference = (DOCUMENT.parent / "configuration.md").read_text()
    settings = set(re.findall(r"^\| `([a-z_.]+)`", reference, re.M))
    sections = {key.rpartition(".")[0] for key in settings}
    commands = set(COMMANDS)
    for entry in RUNBOOK.entries():
        text = " ".join((entry.title, entry.meaning, entry.impact, entry.remedy))
        words = set(re.findall(r"(?<![\w/.-])[a-z_]+(?:\.[a-z_]+)+(?![\w/])", text))
        words = {word for word in words if not word.startswith("docs.")}
        assert words <= settings | sections | OTHERS, entry.heading
        assert set(re.findall(r"`xpu-agent ([a-z]+)", text)) <= commands, entry.heading
        for path in re.findall(r"(?:docs|daemonset)/[\w/-]+(?:\.md)?", text):
            assert (DOCUMENT.parents[1] / path).exists(), (entry.heading, path)


# what the text of a remedy says if a machine is asked for the action
WORDS = {
    RecommendedAction.RESET: "reset",
    RecommendedAction.DRAIN_AND_RESET: "reset|drain|recovery action",
    RecommendedAction.REBOOT: "reboot|reset the PCI bus",
    RecommendedAction.REPLACE: "replace|reseat|cables|support",
}


def test_the_remedy_and_the_recommended_action_of_an_entry_agree() -> None:
    for entry in RUNBOOK.entries():
        if words := WORDS.get(entry.action):
            assert re.search(words, entry.remedy), entry.heading
        if entry.remedy.startswith("nothing") and "; else" not in entry.remedy:
            assert entry.action not in WORDS, entry.heading


def test_every_recommended_action_has_an_entry() -> None:
    assert {entry.action for entry in RUNBOOK.entries()} == set(RecommendedAction)
