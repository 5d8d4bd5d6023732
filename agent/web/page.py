"""The status page: one HTML document, readable without JavaScript, from the snapshot alone."""

from __future__ import annotations

from functools import cache
from importlib import resources

from agent.clock import rfc3339
from agent.model.device import HealthState
from agent.model.snapshot import NodeSnapshot
from agent.version import VERSION
from agent.web import sections
from agent.web.base import AgentView
from agent.web.html import bytes_text, tag, text
from agent.web.svg import topology_svg
from agent.web.tables import cluster, containers, direct, slices

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
    """Return the page's style sheet, as it lies beside this module."""
    return resources.files("agent.web").joinpath("page.css").read_text(encoding="utf-8")


def _tile(figure: str, label: str) -> str:
    return tag(
        "div", tag("b", text(figure)), tag("span", text(label), class_="quiet"), class_="tile"
    )


def _tiles(snapshot: NodeSnapshot) -> str:
    told = [d.info.health for d in snapshot.devices.value.devices if d.info.managed]
    good = sum(health.state is HealthState.HEALTHY and health.certain for health in told)
    node = snapshot.usage.value.node
    cpus, numa = snapshot.cpus.value, snapshot.numa.value
    cores = "–" if node.cpu_cores is None else f"{node.cpu_cores:.2f}"
    return tag(
        "div",
        _tile(f"{good} of {len(told)}", "devices healthy"),
        _tile(cores, f"cores used of {len(cpus.usable)}"),
        _tile(
            bytes_text(node.memory_bytes), f"memory used of {bytes_text(node.memory_total_bytes)}"
        ),
        _tile(str(len(numa.nodes)), f"memory nodes on {len(cpus.packages)} sockets"),
        _tile(str(len(snapshot.pods.value)), "pods"),
        class_="tiles",
    )


def _header(snapshot: NodeSnapshot, view: AgentView, wall_s: float) -> str:
    ready = view.self_report().ready
    state = sections.badge("healthy" if ready else "failed", "ready" if ready else "not ready")
    age_s = snapshot.devices.age_s(view.now_s()[0])
    seen = "devices not read yet" if age_s is None else f"devices read {age_s:.0f} s ago"
    stamp = tag("span", text(f"{rfc3339(wall_s)} · {seen}"), class_="quiet")
    links = "".join(tag("a", text(label), href=target) for target, label in LINKS)
    refresh = tag("a", "refresh every 5 s", href="/?refresh=5")
    return (
        tag("header", tag("h1", text(snapshot.node.name)), state, stamp)
        + tag("p", text(view.notice), class_="notice")
        + tag("nav", links, refresh)
    )


def render_page(view: AgentView, refresh_s: int | None = None) -> str:
    """Return the whole document; `refresh_s` makes the browser load it again."""
    snapshot = view.snapshot()
    _, wall_s = view.now_s()
    pictures = "".join(
        tag("div", topology_svg(snapshot, columns), class_=name) for name, columns in COLUMNS
    )
    body = (
        _header(snapshot, view, wall_s),
        _tiles(snapshot),
        tag("h2", "Topology"),
        tag("div", pictures, class_="picture", tabindex=0),
        tag("h2", "Devices"),
        sections.devices_table(snapshot),
        slices.slices_table(snapshot),
        slices.groups_table(snapshot),
        tag("h2", "Distances"),
        sections.matrix_table(snapshot),
        direct.direct_table(snapshot),
        tag("h2", "Usage"),
        sections.numa_table(snapshot),
        tag("p", ""),
        sections.pods_table(snapshot),
        cluster.cluster_section(snapshot, view.cluster(), *view.now_s()),
        containers.container_section(snapshot),
        tag("h2", "Published objects"),
        sections.objects_list(view.objects()),
        tag("h2", "Agent"),
        sections.agent_table(snapshot, view.self_report()),
        tag("h2", "Events"),
        sections.events_list(view.events()),
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
