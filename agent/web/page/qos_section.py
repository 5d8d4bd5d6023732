"""The section of the status page about quality of service: strategies, and the last changes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.clock import rfc3339
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import AuditRecord
from agent.snapshot.self_check import (
    EnforcementView,
    ResctrlView,
    StrategyState,
    StrategyStatus,
)
from agent.web.page.html import badge, grid, section, tag, text

MAX_CHANGES = 10  # the last changes; all are in /api/v1/audit
MAX_VALUE_CHARACTERS = 48  # of a cell; a list of CPUs may have thousands
ID_CHARACTERS = 12  # of a container's id, as runtimes print it
_CONTAINER_ID = re.compile("[0-9a-f]{32,}")
_TONES = {
    StrategyState.OFF: "unmanaged",
    StrategyState.IDLE: "unmanaged",
    StrategyState.ACTIVE: "healthy",
    StrategyState.FROZEN: "suspect",
    StrategyState.WAITING: "probing",
    StrategyState.UNSUPPORTED: "suspect",
    StrategyState.FAILED: "failed",
}
_RESTORE_RESULTS = {
    "restored": "original value restored",
    "refused": "original value refused",
    "foreign": "not restored: another program has written since",
}


def qos_section(snapshot: NodeSnapshot) -> str:
    """Return the state of each strategy, and the last changes; empty without strategies."""
    part = snapshot.enforcement
    if part.taken_s is None or not (part.value.strategies or snapshot.audit):
        return ""
    rows = [_strategy_row(strategy) for strategy in part.value.strategies]
    names = ("strategy", "state", "mode", "files", "figures", "why")
    changes = [_change_row(record) for record in reversed(snapshot.audit[-MAX_CHANGES:])]
    columns = ("time", "by", "change", "because of", "file")
    caption = "Last changes of files, the newest first"
    more = len(snapshot.audit) - len(changes)
    link = tag("a", f"the {more} changes before these, as JSON", href="/api/v1/audit")
    return section(
        "qos",
        "Quality of service",
        *(tag("p", text(one), class_="notice") for one in _notices(part.value)),
        grid(names, rows, "Strategies") if rows else "",
        _resctrl_table(snapshot.resctrl),
        grid(columns, changes, caption) if changes else "",
        tag("p", link) if more > 0 else "",
    )


def _resctrl_table(view: ResctrlView) -> str:
    """Return the groups of the agent; empty without groups."""
    rows = [
        [
            tag("code", text(group.name)),
            text(", ".join(group.classes) if group.classes else f"pod {group.pod_uid}"),
            tag("code", text(group.schemata)),
            "ready" if group.name in view.ready_groups else "not ready",
        ]
        for group in view.groups
    ]
    if not rows:
        return ""
    foreign = len(view.foreign_groups)
    title = f"Resctrl groups: {len(rows)} of {view.closids}, {foreign} of other programs"
    return grid(("group", "for", "cache masks and bandwidth", "state"), rows, title)


def _notices(view: EnforcementView) -> Iterable[str]:
    if view.brake:
        yield f"Nothing is changed: {view.brake}."
    if view.is_frozen:
        yield "Values stay as they are: the API server has not confirmed the NodeSLO."
    for condition in view.conditions:
        yield f"{condition.reason}: {condition.message}"


def _strategy_row(status: StrategyStatus) -> list[str]:
    figures = "".join(
        tag("div", text(_words(name)), " ", tag("strong", text(f"{value:g}")), class_="figure")
        for name, value in status.figures
    )
    return [
        text(_words(status.name)),
        badge(_TONES[status.state], status.state.value),
        text(status.mode),
        str(status.values),
        figures or "–",
        tag("div", text(status.message), class_="why"),
    ]


def _change_row(record: AuditRecord) -> list[str]:
    outcome = record.message
    tone = ""
    if record.restore:
        outcome = _RESTORE_RESULTS.get(record.restore, record.restore)
    elif record.planned:
        tone, outcome = badge("probing", "planned"), ""
    if record.errno:
        tone = badge("failed", f"errno {record.errno}")
    old, new = _shortened(record.old or "?"), _shortened(record.new)
    return [
        tag("span", text(rfc3339(record.wall_s)), class_="figure"),
        text(record.owner),
        f"{text(old)} → {tag('strong', text(new))} {tone}",
        text(record.source or outcome),
        tag("code", text(_short_path(record.path)), class_="path"),
    ]


def _short_path(path: str) -> str:
    """Return the path with the first characters of each container's id."""
    return _CONTAINER_ID.sub(lambda match: f"{match[0][:ID_CHARACTERS]}…", path)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shortened(value: str) -> str:
    if len(value) <= MAX_VALUE_CHARACTERS:
        return value
    return f"{value[: MAX_VALUE_CHARACTERS - 1]}…"
