"""The node's topology as an SVG picture: NUMA nodes, PCIe bridges, devices, links, health."""

from __future__ import annotations

from agent.snapshot.node import NodeSnapshot
from agent.web.page.html import HEALTH_SIGNS, tag, text
from agent.web.page.svg_layout import (
    BOX_HEIGHT,
    GUTTER,
    HEAD,
    MARGIN,
    PAD,
    PANEL_WIDTH,
    BridgeLabel,
    DeviceBox,
    LinkBar,
    NumaPanel,
    PictureLayout,
    layout_picture,
)

BAR_HEIGHT = 26

MAX_TITLE, MAX_SECOND, MAX_TRAFFIC = 34, 42, 38  # characters that fit into a card's lines

STYLE = """
.title,.bartext{font-size:12px}.sub,.bridge{font-size:11px}.head,.sign{font-size:14px}
.bg{fill:#fff}.panel{fill:#f6f7f9;stroke:#d5dae1}.head{font-weight:600;fill:#1c2430}
.sub{fill:#5a6675}.bridge{fill:#5a6675;font-family:monospace}.stem{stroke:#b9c1cc;fill:none}
.card{fill:#fff;stroke:#d5dae1}.title{font-weight:600;fill:#1c2430}.why{font-weight:600}
.link{stroke:#7a5cc8;fill:none;stroke-width:1.5}.bar{fill:#ece6fb;stroke:#7a5cc8}.bartext{fill:#4a2fa0}
.healthy{fill:#1a7f37}.suspect{fill:#9a6700}.probing{fill:#0969da}.failed{fill:#cf222e}
.unmanaged{fill:#6e7781}.slow{fill:#9a6700;font-weight:600}.sign{fill:#fff;font-weight:700;text-anchor:middle}
@media (prefers-color-scheme:dark){.bg{fill:#0e1116}.panel{fill:#161b22;stroke:#30363d}
.head,.title{fill:#e6edf3}.sub,.bridge{fill:#9aa6b2}.stem{stroke:#444c56}
.card{fill:#0e1116;stroke:#30363d}.slow{fill:#d29922}.bar{fill:#221a3a}.bartext{fill:#c9b8ff}
.healthy{fill:#2ea043}.suspect{fill:#9e6a03}.probing{fill:#388bfd}.failed{fill:#f85149}}
""".replace("\n", "")


def _label(x: float, y: float, content: str, class_: str) -> str:
    return tag("text", text(content), x=f"{x:g}", y=f"{y:g}", class_=class_)


def _shorten(line: str, most: int) -> str:
    return line if len(line) <= most else line[: most - 1] + "…"


def _draw_device(card: DeviceBox) -> str:
    middle, height = card.y + card.height / 2, f"{card.height:g}"
    place = {"x": f"{card.x:g}", "y": f"{card.y:g}", "height": height, "rx": 5}
    stem = tag("path", d=f"M{card.x - 10:g} {middle:g}h10", class_="stem")
    box = tag("rect", **place, width=f"{card.width:g}", class_="card")
    stripe = tag("rect", **place, width=22, class_=card.state)
    sign = _label(card.x + 11, middle + 5, HEALTH_SIGNS[card.state], "sign")
    second = f"{card.detail} · {card.subtitle}" if card.detail else card.subtitle
    lines = _label(card.x + 30, card.y + 18, _shorten(card.title, MAX_TITLE), "title")
    lines += _label(card.x + 30, card.y + 34, _shorten(second, MAX_SECOND), "sub")
    hover = f"{card.title} · {card.subtitle} · {card.state} {card.detail}".rstrip()
    if card.height > BOX_HEIGHT:
        lines += _draw_traffic(card)
        hover += f" · {card.traffic}" if len(card.traffic + card.slow_link) > MAX_TRAFFIC else ""
    return tag("g", tag("title", text(hover)), stem, box, stripe, sign, lines)


def _draw_traffic(card: DeviceBox) -> str:
    """Draw the last line of a device: a slow link, then the traffic."""
    room = MAX_TRAFFIC - len(card.slow_link)
    traffic = text(_shorten(card.traffic, room)) if card.traffic else ""
    slow = tag("tspan", text(f"{card.slow_link} "), class_="slow") if card.slow_link else ""
    place = {"x": f"{card.x + 30:g}", "y": f"{card.y + 50:g}"}
    return tag("text", slow, traffic, **place, class_="sub")


def _draw_bridge(bridge: BridgeLabel) -> str:
    stem = f"M{bridge.x + 6:g} {bridge.y + 20:g}V{bridge.stem_end_y + 2:g}"
    line = tag("path", d=stem, class_="stem") if bridge.stem_end_y > bridge.y else ""
    return line + _label(bridge.x, bridge.y + 15, bridge.text, "bridge")


def _draw_panel(panel: NumaPanel) -> str:
    box = tag(
        "rect",
        x=panel.x,
        y=panel.y,
        width=PANEL_WIDTH,
        height=panel.height,
        rx=8,
        class_="panel",
    )
    head = _label(panel.x + PAD, panel.y + 19, panel.title, "head")
    head += _label(panel.x + PAD, panel.y + 35, panel.subtitle, "sub")
    if not panel.boxes:
        head += _label(panel.x + PAD, panel.y + HEAD + 16, "no accelerator or RDMA device", "sub")
    bridges = "".join(_draw_bridge(bridge) for bridge in panel.bridges)
    return tag("g", box, head, bridges, *(_draw_device(card) for card in panel.boxes))


def _draw_links(fabric: LinkBar, layout: PictureLayout, index: int) -> str:
    """Draw the bar, and a line from each member to it, right of the member's panel."""
    parts = []
    offset = PAD + 5 + (4 * index) % (GUTTER - 14)
    for panel in layout.panels:
        gutter = panel.x + PANEL_WIDTH + offset - PAD
        for card in panel.boxes:
            if card.key in fabric.keys:
                y = card.y + card.height / 2
                path = f"M{card.x + card.width} {y}H{gutter}V{fabric.y}"
                parts.append(tag("path", d=path, class_="link"))
    width = layout.width - 2 * MARGIN
    parts.append(
        tag("rect", x=MARGIN, y=fabric.y, width=width, height=BAR_HEIGHT, rx=5, class_="bar")
    )
    parts.append(_label(MARGIN + PAD, fabric.y + 17, fabric.text, "bartext"))
    return "".join(parts)


def topology_svg(snapshot: NodeSnapshot, columns: int = 4) -> str:
    """Return the picture as a self-contained SVG document; equal snapshots give equal bytes."""
    layout = layout_picture(snapshot, columns)
    note = ""
    height = layout.height
    if layout.omitted_devices:
        note = _label(MARGIN, height + 8, f"and {layout.omitted_devices} devices more", "sub")
        height += 2 * MARGIN
    healthy = sum(card.state == "healthy" for panel in layout.panels for card in panel.boxes)
    total = sum(len(panel.boxes) for panel in layout.panels)
    about = f"{len(layout.panels)} NUMA nodes, {total} devices, {healthy} healthy"
    return tag(
        "svg",
        tag("title", text(f"Topology of {snapshot.node.name}: {about}")),
        tag("style", STYLE),
        tag("rect", width="100%", height="100%", class_="bg"),
        *(_draw_panel(panel) for panel in layout.panels),
        *(_draw_links(fabric, layout, i) for i, fabric in enumerate(layout.link_bars)),
        note,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {layout.width:g} {height:g}",
        width=f"{layout.width:g}",
        height=f"{height:g}",
        font_family="system-ui, sans-serif",
        role="img",
    )


def topology_panels(snapshot: NodeSnapshot) -> str:
    """Return the picture for a page of any width: one picture a NUMA node, then the links.

    The page places the panels beside or below each other. A card that has direct links to others
    has a mark at its right side; the links themselves are listed.
    """
    layout = layout_picture(snapshot, 1)
    linked = frozenset(key for bar in layout.link_bars for key in bar.keys)
    panels = "".join(_panel_svg(panel, linked) for panel in layout.panels)
    bars = "".join(tag("li", text(bar.text), class_="bar") for bar in layout.link_bars)
    more = layout.omitted_devices
    return (
        tag("div", panels, class_="panels")
        + (tag("ul", bars, class_="bars") if bars else "")
        + (tag("p", f"and {more} devices more", class_="quiet") if more else "")
    )


def _panel_svg(panel: NumaPanel, linked: frozenset[str]) -> str:
    marks = "".join(
        tag("path", d=f"M{box.x + box.width:g} {box.y + 8:g}v{box.height - 16:g}", class_="link")
        for box in panel.boxes
        if box.key in linked
    )
    devices = ", ".join(f"{box.title.partition('  ')[0]} {box.state}" for box in panel.boxes)
    return tag(
        "svg",
        _draw_panel(panel),
        marks,
        viewBox=f"{panel.x - 1:g} {panel.y - 1:g} {PANEL_WIDTH + 2} {panel.height + 2:g}",
        width=PANEL_WIDTH + 2,
        height=f"{panel.height + 2:g}",
        role="img",
        aria_label=f"{panel.title}: {devices or 'no devices'}",
    )
