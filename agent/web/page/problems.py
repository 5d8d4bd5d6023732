"""The first section of the page: what is wrong on this node, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from agent.runbook.entry import RecommendedAction
from agent.runbook.problem import Problem, Severity
from agent.snapshot.self_check import SelfCheckReport
from agent.web.page.html import anchor, badge, prose, section, tag, text
from agent.wire_formats.api_values import format_time

MAX_GROUPS = 8  # groups of problems of the first page; all are in /api/v1/problems
MAX_SUBJECTS = 8  # names of one group
MAX_MESSAGES = 3  # different messages of one group
MAX_TEXT = 400  # characters of a message
RUNBOOK_PATH = "/runbook"
TONES = {Severity.CRITICAL: "failed", Severity.WARNING: "suspect", Severity.INFO: "probing"}
ACTION_WORDS = {  # without the one that says that nothing is broken
    RecommendedAction.LOOK: "look",
    RecommendedAction.RESET: "reset",
    RecommendedAction.DRAIN_AND_RESET: "drain and reset",
    RecommendedAction.REBOOT: "reboot",
    RecommendedAction.REPLACE: "replace",
}


class ProblemGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Problems of several subjects that have one cause and one remedy."""

    problems: tuple[Problem, ...]

    @property
    def first(self) -> Problem:
        """Return the problem whose texts stand for all."""
        return self.problems[0]

    @property
    def names(self) -> str:
        """Return the names of the subjects, for people."""
        names = list(dict.fromkeys(one.name for one in self.problems))
        more = len(names) - MAX_SUBJECTS
        return ", ".join(names[:MAX_SUBJECTS]) + (f" and {more} more" if more > 0 else "")

    @property
    def since_s(self) -> float | None:
        """Return the time of the first problem; `None` if none is known."""
        return min((one.since_s for one in self.problems if one.since_s is not None), default=None)


def group_problems(problems: Iterable[Problem]) -> tuple[ProblemGroup, ...]:
    """Return problems with the same entry of the runbook together, in the order of the first."""
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for one in problems:
        key = (one.severity, one.kind, one.vendor, one.reason, one.anchor)
        groups.setdefault(key, []).append(one)
    return tuple(ProblemGroup(problems=tuple(members)) for members in groups.values())


def problems_section(problems: Sequence[Problem], report: SelfCheckReport) -> str:
    """Return each problem with its cause, its impact and its remedy, the worst first.

    Changes are announced to screen readers, so nothing here changes with each second.
    """
    groups = group_problems(problems)
    body = "".join(map(_group_item, groups[:MAX_GROUPS]))
    more = len(groups) - MAX_GROUPS
    fine = tag("p", "Nothing is wrong that the agent can see.", class_="fine")
    if not report.is_ready:
        link = tag("a", "its checks", href="#checks")
        fine = tag("p", "The agent is not ready yet. See ", link, " for what it waits for.")
    content = tag("ul", body, class_="problem-list") if groups else fine
    return section(
        "problems",
        "What is wrong, and what to do",
        tag("div", content, aria_live="polite", aria_relevant="additions"),
        tag("p", tag("a", f"{more} more kinds of problems, as JSON", href="/api/v1/problems"))
        if more > 0
        else "",
    )


def _group_item(group: ProblemGroup) -> str:
    first = group.first
    title, tone = first.title or first.reason, TONES[first.severity]
    since = format_time(group.since_s)
    origin = tag("a", "runbook", href=f"{RUNBOOK_PATH}#{first.anchor}") if first.anchor else ""
    facts = [f"since {text(since)}" if since else "", tag("code", text(first.reason)), origin]
    return tag(
        "li",
        tag("h3", badge(tone, first.severity.value), f" {text(group.names)}: {text(title)}"),
        *_messages(group),
        tag("p", tag("b", "Impact: "), prose(sentence(first.impact))) if first.impact else "",
        remedy_text(first.remedy, first.action),
        tag("p", " · ".join(filter(None, facts)), class_="quiet"),
        class_=f"problem {tone}",
        id=anchor("problem", first.kind, first.vendor, first.reason, first.subject),
    )


def _messages(group: ProblemGroup) -> Iterator[str]:
    """Yield the different messages, each with the names of its subjects if there are several."""
    by_message: dict[str, list[str]] = {}
    for one in group.problems:
        by_message.setdefault(one.message[:MAX_TEXT], []).append(one.name)
    for message, names in list(by_message.items())[:MAX_MESSAGES]:
        subject = f"{', '.join(names[:MAX_SUBJECTS])}: " if len(by_message) > 1 else ""
        if message:
            yield tag("p", text(subject + message))
    if len(by_message) > MAX_MESSAGES:
        yield tag("p", f"and {len(by_message) - MAX_MESSAGES} more messages", class_="quiet")


def remedy_text(remedy: str, action: RecommendedAction) -> str:
    """Return what a person does, with the recommended action in a word."""
    word = tag("span", ACTION_WORDS[action], class_="word") if action in ACTION_WORDS else ""
    return tag("p", tag("b", "What to do: "), prose(sentence(remedy)), " ", word)


def sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    stripped = clause.strip()
    if not stripped:
        return ""
    end = "" if stripped.endswith((".", "!", "?")) else "."
    return stripped[0].upper() + stripped[1:] + end
