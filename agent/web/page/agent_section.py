"""The sections about the agent itself: checks, settings with origins, objects and events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from agent.config.reference import effective_rows
from agent.config.sources import LoadedSettings
from agent.objects.yaml_text import to_yaml
from agent.snapshot.node import IdentityMemo, NodeSnapshot
from agent.snapshot.publications import EventLine, Publication
from agent.snapshot.self_check import SelfCheckReport
from agent.web.page.html import anchor, badge, fold, grid, section, tag, text

MAX_EVENTS = 15  # the last ones; all are in /api/v1/events
MAX_SETTINGS = 24  # of the first page; all are on a page of their own
MAX_VALUE = 120  # characters of a setting's value
DEFAULT = "default"
HIDDEN = "hidden: a secret"
_SECRET_NAME = re.compile(r"(?:passwords?|passwd|secrets?|tokens?|credentials?|private_key)\Z")
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]+@")

SettingRow = Mapping[str, str]  # key, value, origin


def checks_section(snapshot: NodeSnapshot, report: SelfCheckReport) -> str:
    """Return the agent's self-checks: those that fail, and the others to be opened."""
    failed = [check for check in report.checks if not check.ok]
    good = [check for check in report.checks if check.ok]
    rows = [
        [
            text(check.name),
            badge("failed" if check.gates_ready else "suspect", "fails"),
            text(check.message),
        ]
        for check in failed
    ]
    for vendor, problem in snapshot.devices.value.problems:
        rows.append([text(vendor), badge("suspect", problem.reason), text(problem.message)])
    names = ("part", "state", "what it says")
    good_names = tag("p", ", ".join(text(one.name) for one in good))
    more = tag("p", tag("a", "what each check says", href="/healthz?verbose"))
    summary = f"{len(good)} of {len(report.checks)} checks of the agent hold"
    advice = (
        "These are the agent's checks of itself. ",
        tag("code", "xpu-agent doctor"),
        " checks the whole node: kernel, drivers, runtime, kubelet and cluster.",
    )
    return section(
        "checks",
        "Checks",
        grid(names, rows, "Checks that fail") if rows else "",
        fold("good-checks", summary, good_names, more),
        tag("p", *advice, class_="quiet"),
    )


_ROWS: IdentityMemo[list[SettingRow]] = IdentityMemo()


def setting_rows(loaded: LoadedSettings) -> list[SettingRow]:
    """Return all settings with value and origin; secrets are hidden.

    The settings of a process do not change: their rows are computed once.
    """
    return _ROWS.get((loaded,), lambda: [_hide_secrets(row) for row in effective_rows(loaded)])


def _hide_secrets(row: Mapping[str, str]) -> SettingRow:
    value = _USER_OF_URL.sub("…@", row["value"])
    is_secret = bool(_SECRET_NAME.search(row["key"])) and value not in ("", '""')
    return {**row, "value": HIDDEN if is_secret else value}


def settings_section(loaded: LoadedSettings) -> str:
    """Return the settings that are not defaults, with a link to the page that has all."""
    rows = setting_rows(loaded)
    changed = [row for row in rows if row["origin"] != DEFAULT]
    link = tag("p", tag("a", f"all {len(rows)} settings", href="/settings"))
    table = _settings_table(changed[:MAX_SETTINGS], "Settings that are not defaults")
    note = f"Of {len(rows)} settings {len(changed)} are not defaults."
    return section(
        "settings",
        "Configuration",
        tag("p", note, class_="quiet"),
        table if changed else "",
        link,
    )


def all_settings_section(loaded: LoadedSettings) -> str:
    """Return every setting, for a page of its own."""
    table = _settings_table(setting_rows(loaded), "All settings, with the origin of each value")
    return section("settings", "Configuration", table)


def _settings_table(rows: Sequence[SettingRow], caption: str) -> str:
    cells = (
        [tag("code", text(row["key"])), text(row["value"][:MAX_VALUE]), text(row["origin"])]
        for row in rows
    )
    return grid(("setting", "value", "origin"), cells, caption)


def events_section(events: Sequence[EventLine]) -> str:
    """Return the last events, newest first."""
    if not events:
        note = "Nothing has happened since the agent started."
        return section("events", "Events", tag("p", note, class_="quiet"))
    rows = [
        [text(one.time), text(one.reason), text(one.about), text(one.message), text(one.count)]
        for one in reversed(events[-MAX_EVENTS:])
    ]
    more = len(events) - len(rows)
    link = tag("a", f"the {more} events before these, as JSON", href="/api/v1/events")
    return section(
        "events",
        "Events",
        grid(("time", "reason", "about", "message", "times"), rows, "Events, the newest first"),
        tag("p", link) if more > 0 else "",
    )


def objects_section(objects: Sequence[Publication]) -> str:
    """Return the kind and the place of each published object; their text is on its own page."""
    if not objects:
        return ""
    rows = [
        [
            tag("a", text(one.desired.kind), href=f"/objects#{_object_anchor(one)}"),
            badge("failed", one.problem) if one.problem else badge("healthy", "published"),
            tag("code", text(one.where)),
        ]
        for one in objects
    ]
    names = ("object", "state", "where")
    return section("objects", "Published objects", grid(names, rows, "Objects of this node"))


def all_objects_section(objects: Sequence[Publication]) -> str:
    """Return the text of each published object, for a page of its own."""
    parts = [
        tag("h3", text(one.desired.kind), id=_object_anchor(one))
        + tag("p", tag("code", text(one.where)))
        + (tag("p", badge("failed", one.problem)) if one.problem else "")
        + tag("pre", text(to_yaml(one.desired.body).decode()), tabindex=0)
        for one in objects
    ]
    return section("objects", "Published objects", *parts)


def _object_anchor(one: Publication) -> str:
    return anchor("object", one.desired.kind, one.desired.file_name)
