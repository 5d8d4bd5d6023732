"""The status page and the pages that it links to: HTML documents from the snapshot alone.

They are complete without JavaScript. `page.js` only renews them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from urllib.parse import quote

from agent.clock import rfc3339
from agent.metrics.device_pods import DevicePodIndex
from agent.runbook.problem import Problem
from agent.runbook.problems import find_problems
from agent.runbook.self_checks import self_report
from agent.snapshot.node import NodeSnapshot
from agent.version import VERSION
from agent.web.page import (
    agent_section,
    cluster_section,
    container_section,
    pods,
    qos_section,
    tables,
)
from agent.web.page.glance import fresh_samples, glance_section
from agent.web.page.html import HEALTH_SIGNS, badge, fold, section, tag, text
from agent.web.page.problems import Overview, overview, problems_section, runbook_sections
from agent.web.page.svg import topology_panels
from agent.web.view import AgentView

MAX_PAIRED = 12  # devices whose distances are on the first page
SCRIPT_PATH = "/page.js"
SECTIONS = (
    ("problems", "problems"),
    ("glance", "at a glance"),
    ("topology", "topology"),
    ("devices", "devices"),
    ("pods", "pods"),
    ("checks", "checks"),
    ("events", "events"),
)
PAGES = (
    ("/runbook", "runbook"),
    ("/pods", "all pods"),
    ("/objects", "published objects"),
    ("/settings", "settings"),
    ("/topology.svg", "picture"),
)
DATA = (
    ("/api/v1/problems", "problems as JSON"),
    ("/api/v1/devices", "devices as JSON"),
    ("/api/v1/snapshot", "snapshot as JSON"),
    ("/api/v1/audit", "changes of files as JSON"),
    ("/api/v1/objects", "objects as JSON"),
    ("/api/v1/events", "events as JSON"),
    ("/metrics", "metrics"),
    ("/healthz?verbose", "checks as text"),
)
_ICON_COLOURS = {"healthy": "#1a7f37", "suspect": "#bf8700", "failed": "#cf222e"}


@cache
def stylesheet() -> str:
    """Return the page's style sheet, a file beside this module."""
    text = resources.files("agent.web.page").joinpath("page.css").read_text(encoding="utf-8")
    return re.sub(r" ?([{};:,]) ", r"\1", " ".join(text.split()))


@cache
def script() -> bytes:
    """Return the script that renews the page, a file beside this module."""
    return resources.files("agent.web.page").joinpath("page.js").read_bytes()


class StatusPage:
    """Renders the page and those that it links to. For one thread at a time."""

    def __init__(self, view: AgentView) -> None:
        self._view = view
        self._index = DevicePodIndex()

    def render(self, refresh_s: int | None = None) -> Iterator[str]:
        """Yield the status page in pieces; with `refresh_s` the browser reloads it."""
        snapshot = self._view.snapshot()
        now_s, wall_s = self._view.now_s()
        report = self_report(snapshot, now_s)
        problems = self.problems(snapshot)
        state = overview(snapshot, report, problems)
        yield _head(state, snapshot.node.name, refresh_s)
        yield self._header(snapshot, state)
        yield '<main id="main">'
        yield problems_section(problems, report)
        yield glance_section(snapshot, fresh_samples(snapshot, now_s), self._index)
        yield _topology_section(snapshot)
        yield section(
            "devices",
            "Devices",
            tables.devices_table(snapshot),
            tables.slices_table(snapshot),
            tables.groups_table(snapshot),
        )
        yield _distances_section(snapshot)
        yield section("memory", "Memory nodes", tables.numa_table(snapshot))
        yield pods.pods_section(snapshot)
        yield container_section.container_section(snapshot)
        yield cluster_section.cluster_section(snapshot, now_s, wall_s)
        yield qos_section.qos_section(snapshot)
        yield agent_section.objects_section(snapshot.publications)
        yield agent_section.settings_section(self._view.settings)
        yield agent_section.checks_section(snapshot, report)
        yield agent_section.events_section(snapshot.events)
        yield "</main>"
        yield _footer(snapshot)

    def problems(self, snapshot: NodeSnapshot) -> tuple[Problem, ...]:
        """Return what is wrong on the node, the worst first."""
        return find_problems(snapshot, self._view.runbook.find, *self._view.now_s())

    def render_runbook(self) -> Iterator[str]:
        """Yield the page with every entry of the runbook."""
        yield from self._subpage("runbook", runbook_sections(self._view.runbook))

    def render_pods(self) -> Iterator[str]:
        """Yield the page with every pod."""
        snapshot = self._view.snapshot()
        yield from self._subpage("pods", [pods.all_pods_section(snapshot)])

    def render_settings(self) -> Iterator[str]:
        """Yield the page with every setting."""
        yield from self._subpage(
            "settings", [agent_section.all_settings_section(self._view.settings)]
        )

    def render_objects(self) -> Iterator[str]:
        """Yield the page with the text of every published object."""
        objects = self._view.snapshot().publications
        yield from self._subpage("objects", [agent_section.all_objects_section(objects)])

    def render_distances(self) -> Iterator[str]:
        """Yield the page with the distances of all pairs of devices."""
        snapshot = self._view.snapshot()
        yield from self._subpage("distances", [_all_distances_section(snapshot)])

    def _subpage(self, name: str, body: Iterable[str]) -> Iterator[str]:
        snapshot = self._view.snapshot()
        now_s, _ = self._view.now_s()
        problems = self.problems(snapshot)
        state = overview(snapshot, self_report(snapshot, now_s), problems)
        yield _head(state, f"{name} of {snapshot.node.name}")
        yield tag(
            "header",
            tag("h1", tag("a", text(snapshot.node.name), href="/"), f" · {text(name)}"),
            badge(state.state, state.words),
            class_=f"head {state.state}",
        )
        yield '<main id="main">'
        yield from body
        yield "</main>"
        yield _footer(snapshot)

    def _header(self, snapshot: NodeSnapshot, state: Overview) -> str:
        now_s, wall_s = self._view.now_s()
        age_s = snapshot.devices.age_s(now_s)
        age = "devices not read yet" if age_s is None else f"devices read {age_s:.0f} s ago"
        links = (tag("a", text(label), href=target) for target, label in PAGES)
        sections = (tag("a", text(label), href=f"#{name}") for name, label in SECTIONS)
        reload = tag("a", "reload this page every 5 s", href="/?refresh=5")
        return (
            tag("a", "Skip to what is wrong", href="#main", class_="skip")
            + tag(
                "header",
                tag(
                    "div",
                    tag("h1", text(snapshot.node.name)),
                    tag("p", badge(state.state, state.words), id="state", role="status"),
                    class_="title",
                ),
                tag(
                    "p",
                    tag("span", text(f"{rfc3339(wall_s)} · {age}"), id="stamp"),
                    '<span id="live" role="status"></span>',
                    '<button id="pause" type="button" hidden></button>',
                    tag("noscript", " ", reload),
                    class_="quiet",
                ),
                tag("p", text(self._view.notice), class_="notice"),
                tag("nav", *sections, aria_label="Sections of this page"),
                class_=f"head {state.state}",
                id="head",
            )
            + tag("nav", *links, aria_label="Other pages", class_="pages")
        )


def _head(state: Overview, title: str, refresh_s: int | None = None) -> str:
    colour = _ICON_COLOURS.get(state.state, "#6e7781")
    icon = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
        f'<circle cx="8" cy="8" r="7" fill="{colour}"/></svg>'
    )
    sign = HEALTH_SIGNS.get(state.state, "")
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    parts = (
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # a picture in the page itself, else the browser asks the server for one
        f'<link id="icon" rel="icon" href="data:image/svg+xml,{quote(icon)}">',
        refresh,
        tag("title", text(f"{sign} {title} · xpu-agent")),
        tag("style", stylesheet()),
        "" if refresh else tag("script", src=SCRIPT_PATH, defer=""),
    )
    version = text(VERSION)
    return f'<!doctype html>\n<html lang="en" data-version="{version}">{tag("head", *parts)}<body>'


def _footer(snapshot: NodeSnapshot) -> str:
    words = f"xpu-agent {VERSION} · {snapshot.node.source}"
    links = (tag("a", text(label), href=target) for target, label in DATA)
    nav = tag("nav", *links, aria_label="Data for programs")
    return tag("footer", nav, tag("p", text(words)), class_="quiet") + "</body></html>\n"


def _topology_section(snapshot: NodeSnapshot) -> str:
    more = tag("p", tag("a", "the whole picture", href="/topology.svg"))
    return section("topology", "Topology", topology_panels(snapshot), more)


def _distances_section(snapshot: NodeSnapshot) -> str:
    """Return the distances of a few devices, or a link: they grow with the square of devices."""
    if sum(bool(device.place.path) for device in snapshot.devices.value.devices) > MAX_PAIRED:
        link = tag("a", "distances and GPUDirect RDMA of all pairs", href="/distances")
        return section("distances", "Distances", tag("p", link))
    return _all_distances_section(snapshot)


def _all_distances_section(snapshot: NodeSnapshot) -> str:
    matrix, direct = tables.matrix_table(snapshot), tables.gpudirect_table(snapshot)
    return section(
        "distances",
        "Distances",
        fold("matrix", "Distance of each pair of devices", matrix) if matrix else "",
        fold("direct", "GPUDirect RDMA of each GPU and NIC", direct) if direct else "",
    )


def render_page(view: AgentView, refresh_s: int | None = None) -> str:
    """Return the whole status page."""
    return "".join(StatusPage(view).render(refresh_s))
