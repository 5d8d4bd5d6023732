"""What is wrong on this node and what to do: the first section, the head's state, the runbook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from agent.runbook.entry import RecommendedAction, RunbookEntry, RunbookSection, anchor_of
from agent.runbook.problem import Problem, Severity
from agent.runbook.runbook import Runbook
from agent.snapshot.device import HealthState
from agent.snapshot.node import NodeSnapshot
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


MAX_NAMES = 3  # of checks


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the node: healthy, suspect or failed, and why in a few words."""

    state: str
    words: str


def overview(
    snapshot: NodeSnapshot, report: SelfCheckReport, problems: Sequence[Problem]
) -> Overview:
    """Return the worst state of the agent, of the managed devices, and of all problems.

    An agent that is not ready and a device out of service are failures, as is every critical
    problem. A problem that asks for nothing does not change the state.
    """
    healths = [one.info.health for one in snapshot.devices.value.devices if one.info.managed]
    failed = sum(not health.is_in_service for health in healths)
    odd = sum(
        health.is_in_service and (health.state is not HealthState.HEALTHY or not health.certain)
        for health in healths
    )
    words = []
    if not report.is_ready:
        late = [check.name for check in report.checks if check.gates_ready and not check.ok]
        names = ", ".join(late[:MAX_NAMES]) + (" …" if len(late) > MAX_NAMES else "")
        words.append(f"agent not ready ({names})")
    if failed:
        words.append(f"{failed} of {len(healths)} devices out of service")
    if odd:
        words.append(f"{odd} of {len(healths)} devices suspect")
    bad = [one.severity for one in problems if one.severity is not Severity.INFO]
    if bad:
        words.append(f"{len(bad)} {'problem' if len(bad) == 1 else 'problems'}")
    if not report.is_ready or failed or Severity.CRITICAL in bad:
        return Overview(state="failed", words=", ".join(words))
    return Overview(
        state="suspect" if words else "healthy", words=", ".join(words) or "ready, all well"
    )


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
