"""The status page: one HTML document, readable without JavaScript, from the snapshot alone."""

from __future__ import annotations

from functools import cache
from importlib import resources

from agent.clock import rfc3339
from agent.runbook.self_checks import self_report
from agent.snapshot.device import HealthState
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import SelfCheckReport
from agent.version import VERSION
from agent.web.page import cluster_section, container_section, html, qos_section, tables
from agent.web.page.html import bytes_text, tag, text
from agent.web.page.svg import topology_svg
from agent.web.view import AgentView

COLUMNS = (("wide", 4), ("middle", 2), ("narrow", 1))
LINKS = (
    ("/metrics", "metrics"),
    ("/topology.svg", "picture"),
    ("/api/v1/devices", "devices as JSON"),
    ("/api/v1/snapshot", "snapshot as JSON"),
    ("/api/v1/audit", "changes of files as JSON"),
    ("/api/v1/objects", "published objects as JSON"),
    ("/api/v1/events", "events as JSON"),
    ("/healthz?verbose", "checks"),
)


@cache
def stylesheet() -> str:
    """Return the page's style sheet, a file beside this module."""
    return resources.files("agent.web.page").joinpath("page.css").read_text(encoding="utf-8")


def _tile(figure: str, label: str) -> str:
    return tag(
        "div", tag("b", text(figure)), tag("span", text(label), class_="quiet"), class_="tile"
    )


def _tiles(snapshot: NodeSnapshot) -> str:
    healths = [d.info.health for d in snapshot.devices.value.devices if d.info.managed]
    good = sum(health.state is HealthState.HEALTHY and health.certain for health in healths)
    node = snapshot.usage.value.node
    cpus, numa = snapshot.cpus.value, snapshot.numa.value
    cores = "–" if node.cpu_cores is None else f"{node.cpu_cores:.2f}"
    return tag(
        "div",
        _tile(f"{good} of {len(healths)}", "devices healthy"),
        _tile(cores, f"cores used of {len(cpus.usable)}"),
        _tile(
            bytes_text(node.memory_bytes), f"memory used of {bytes_text(node.memory_total_bytes)}"
        ),
        _tile(str(len(numa.nodes)), f"memory nodes on {len(cpus.packages)} sockets"),
        _tile(str(len(snapshot.pods.value)), "pods"),
        class_="tiles",
    )


def _header(view: AgentView, snapshot: NodeSnapshot, report: SelfCheckReport) -> str:
    now_s, wall_s = view.now_s()
    ready = report.is_ready
    state = html.badge("healthy" if ready else "failed", "ready" if ready else "not ready")
    age_s = snapshot.devices.age_s(now_s)
    age = "devices not read yet" if age_s is None else f"devices read {age_s:.0f} s ago"
    stamp = tag("span", text(f"{rfc3339(wall_s)} · {age}"), class_="quiet")
    links = "".join(tag("a", text(label), href=target) for target, label in LINKS)
    refresh = tag("a", "refresh every 5 s", href="/?refresh=5")
    return (
        tag("header", tag("h1", text(snapshot.node.name)), state, stamp)
        + tag("p", text(view.notice), class_="notice")
        + tag("nav", links, refresh)
    )


def render_page(view: AgentView, refresh_s: int | None = None) -> str:
    """Return the whole document; with `refresh_s` the browser reloads it."""
    snapshot = view.snapshot()
    now_s, wall_s = view.now_s()
    report = self_report(snapshot, now_s)
    pictures = "".join(
        tag("div", topology_svg(snapshot, columns), class_=name) for name, columns in COLUMNS
    )
    body = (
        _header(view, snapshot, report),
        _tiles(snapshot),
        tag("h2", "Topology"),
        tag("div", pictures, class_="picture", tabindex=0),
        tag("h2", "Devices"),
        tables.devices_table(snapshot),
        tables.slices_table(snapshot),
        tables.groups_table(snapshot),
        tag("h2", "Distances"),
        tables.matrix_table(snapshot),
        tables.gpudirect_table(snapshot),
        tag("h2", "Usage"),
        tables.numa_table(snapshot),
        tag("p", ""),
        tables.pods_table(snapshot),
        cluster_section.cluster_section(snapshot, now_s, wall_s),
        container_section.container_section(snapshot),
        qos_section.qos_section(snapshot),
        tag("h2", "Published objects"),
        tables.objects_list(snapshot.publications),
        tag("h2", "Agent"),
        tables.agent_table(snapshot, report),
        tag("h2", "Events"),
        tables.events_list(snapshot.events),
        tag("footer", text(f"xpu-agent {VERSION} · {snapshot.node.source}"), class_="quiet"),
    )
    head = (
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',  # else the browser asks for one
        f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else "",
        tag("title", text(f"{snapshot.node.name} · xpu-agent")),
        tag("style", stylesheet()),
    )
    document = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!doctype html>\n{document}\n"
