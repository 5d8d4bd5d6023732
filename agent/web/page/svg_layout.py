"""Computes positions in the topology picture. Pure, in picture units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from agent.snapshot.cpu import CpuSet
from agent.snapshot.device import Device, DeviceLink, HealthState, short_name
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.usage import DeviceTrend

PANEL_WIDTH, GUTTER, MARGIN = 330, 26, 12
HEAD, BRIDGE_ROW, PAD = 46, 26, 10
BOX_HEIGHT, TRAFFIC_LINE = 44, 16  # of a device; one more line for traffic and slow links
BOX_GAP = 10
INDENT = 16
MAX_DEVICES = 256  # in the picture; more are counted in a line of text


class DeviceBox(msgspec.Struct, frozen=True, kw_only=True):
    """One device: place, text, sign. `state` is a health state or `unmanaged`."""

    x: float
    y: float
    width: float
    title: str
    subtitle: str
    detail: str
    state: str
    key: str
    height: float = BOX_HEIGHT
    traffic: str = ""  # over its links, in both directions
    slow_link: str = ""  # its PCIe link, if that is slower than it could be


class BridgeLabel(msgspec.Struct, frozen=True, kw_only=True):
    """A host bridge or switch as a line of text, with a stem that connects its devices."""

    x: float
    y: float
    text: str
    stem_end_y: float  # y where the stem ends


class NumaPanel(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA node."""

    x: float
    y: float
    height: float
    title: str
    subtitle: str
    bridges: tuple[BridgeLabel, ...]
    boxes: tuple[DeviceBox, ...]


class LinkBar(msgspec.Struct, frozen=True, kw_only=True):
    """Cards that are linked directly, as a bar below the panels."""

    y: float
    text: str
    keys: frozenset[str]


class PictureLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The whole picture."""

    width: float
    height: float
    panels: tuple[NumaPanel, ...]
    link_bars: tuple[LinkBar, ...]
    omitted_devices: int


def linked_groups(links: tuple[DeviceLink, ...]) -> list[tuple[frozenset[str], list[DeviceLink]]]:
    """Return the groups of linked devices: connected components with their links, in order."""
    groups: list[tuple[set[str], list[DeviceLink]]] = []
    for link in links:
        joined_groups = [group for group in groups if link.a in group[0] or link.b in group[0]]
        members, group_links = {link.a, link.b}, [link]
        for group in joined_groups:
            members |= group[0]
            group_links += group[1]
            groups.remove(group)
        groups.append((members, group_links))
    frozen_groups = [(frozenset(members), group_links) for members, group_links in groups]
    return sorted(frozen_groups, key=lambda group: min(group[0]))


def _gib(value: int | None) -> str:
    return "" if value is None else f" · {value / 2**30:.0f} GiB"


def _subtitle(device: Device) -> str:
    link = device.place.link
    lanes = f" · x{link.width}" if link.width else ""
    speed = f" {link.speed / 10:g} GT/s" if link.speed and link.width else ""
    places = device.info.bus_id or (device.place.path[-1] if device.place.path else device.key)
    return f"{places}{lanes}{speed}{_gib(device.info.memory_bytes)}"


def _title(device: Device) -> str:
    info = device.info
    return f"{short_name(device)}  {(info.model or info.vendor).removeprefix('NVIDIA ')}"


def _detail(device: Device) -> str:
    health = device.info.health
    if health.state is HealthState.HEALTHY and health.certain:
        return "" if device.info.managed else "not published"
    return health.reason


def _state(device: Device) -> str:
    """Return the state in which a device is drawn; an uncertain one is drawn as suspect."""
    health = device.info.health
    if not device.info.managed:
        return "unmanaged"
    return health.state.value if health.certain or not health.is_in_service else "suspect"


def _gigabytes(bytes_per_s: float | None) -> str:
    if bytes_per_s is None:
        return "?"
    value = bytes_per_s / 1e9
    return f"{value:.0f}" if value >= 9.95 or value < 0.05 else f"{value:.1f}"


def traffic_text(trend: DeviceTrend | None) -> str:
    """Return the present traffic of a device over each kind of link; empty if none is known."""
    parts = [
        f"{link.link} {_gigabytes(link.sent.last)}↑ {_gigabytes(link.received.last)}↓"
        for link in (trend.links if trend is not None else ())
        if link.sent.last is not None or link.received.last is not None
    ]
    return " · ".join(parts) + " GB/s" if parts else ""


def _slow_link_text(device: Device) -> str:
    link = device.place.link
    if device.place.link_degraded is None or link.width is None:
        return ""
    if device.place.link_degraded == "width":
        return f"x{link.width} of x{link.max_width or '?'}"
    return f"{(link.speed or 0) / 10:g} of {(link.max_speed or 0) / 10:g} GT/s"


def _device_box(
    device: Device, trend: DeviceTrend | None, x: float, y: float, width: float
) -> DeviceBox:
    traffic, slow_link = traffic_text(trend), _slow_link_text(device)
    return DeviceBox(
        x=x,
        y=y,
        width=width,
        title=_title(device),
        subtitle=_subtitle(device),
        detail=_detail(device),
        state=_state(device),
        key=device.key,
        height=BOX_HEIGHT + (TRAFFIC_LINE if traffic or slow_link else 0),
        traffic=traffic,
        slow_link=slow_link,
    )


def _cpus_text(cpus: CpuSet) -> str:
    if not cpus:
        return "no CPUs"
    low, high = min(cpus), max(cpus)
    whole = len(cpus) == high - low + 1
    return f"CPUs {low}–{high}" if whole and low != high else f"{len(cpus)} CPUs from {low}"


def _group_by_bridge(devices: list[Device]) -> list[tuple[str, str, list[Device]]]:
    """Return (root, switch, devices) in PCI order."""
    grouped: dict[tuple[str, str], list[Device]] = {}
    for device in sorted(devices, key=lambda d: (d.place.root or "~", d.place.path, d.key)):
        key = (device.place.root or "", device.place.switch or "")
        grouped.setdefault(key, []).append(device)
    return [(root, switch, members) for (root, switch), members in grouped.items()]


def _numa_panel(
    title: str,
    subtitle: str,
    devices: list[Device],
    trends: Mapping[str, DeviceTrend],
    x: float,
    y: float,
) -> NumaPanel:
    bridges, cards = [], []
    at, last_root = y + HEAD, None
    for root, switch, members in _group_by_bridge(devices):
        if root != last_root:
            bridges.append((x + PAD, at, root or "not on PCI"))
            last_root, at = root, at + BRIDGE_ROW
        if switch:
            bridges.append((x + PAD + INDENT, at, f"switch {switch}"))
            at += BRIDGE_ROW
        box_x = x + PAD + INDENT * (2 if switch else 1)
        for device in members:
            trend, width = trends.get(device.key), x + PANEL_WIDTH - PAD - box_x
            cards.append(_device_box(device, trend, box_x, at, width))
            at += cards[-1].height + BOX_GAP
    stems = _bridge_labels(bridges, cards)
    height = max(at - y, HEAD + BRIDGE_ROW) + PAD
    return NumaPanel(
        x=x, y=y, height=height, title=title, subtitle=subtitle, bridges=stems, boxes=tuple(cards)
    )


def _bridge_labels(
    rows: list[tuple[float, float, str]], cards: list[DeviceBox]
) -> tuple[BridgeLabel, ...]:
    """Return the bridges; each stem ends at the last card before the next bridge of its level."""
    stems = []
    for index, (x, y, label) in enumerate(rows):
        end = next((by for bx, by, _ in rows[index + 1 :] if bx <= x), float("inf"))
        below = [card.y + 20 for card in cards if y < card.y < end and card.x - x < 2 * INDENT]
        below += [by + 11 for bx, by, _ in rows[index + 1 :] if x < bx and by < end]
        stems.append(BridgeLabel(x=x, y=y, text=label, stem_end_y=max(below, default=y)))
    return tuple(stems)


def _link_text(members: frozenset[str], links: list[DeviceLink]) -> str:
    kinds = Counter(link.type for link in links)
    counts = sorted({link.count for link in links})
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    pairs = len(members) * (len(members) - 1) // 2
    reach = "every pair" if len({(k.a, k.b) for k in links}) == pairs else f"{len(links)} pairs"
    return f"{' and '.join(sorted(kinds))}: {len(members)} devices, {span} links, {reach}"


def layout_picture(snapshot: NodeSnapshot, columns: int) -> PictureLayout:
    """Return one panel per NUMA node, in rows of `columns`; devices without a node come last."""
    view = snapshot.devices.value
    devices = view.devices[:MAX_DEVICES]
    groups = linked_groups(view.links)
    contents = []
    for node in snapshot.numa.value.nodes:
        memory = "" if not node.memory_bytes else f" · {node.memory_bytes / 2**30:.1f} GiB"
        socket = f" · socket {node.socket}" if node.socket >= 0 else ""
        own = [device for device in devices if device.place.numa_node == node.id]
        contents.append((f"NUMA {node.id}", f"{_cpus_text(node.cpus)}{memory}{socket}", own))
    node_ids = {node.id for node in snapshot.numa.value.nodes}
    if rest := [device for device in devices if device.place.numa_node not in node_ids]:
        contents.append(("NUMA unknown", "the firmware does not say", rest))
    trends = snapshot.trend.value.devices
    panels: list[NumaPanel] = []
    y = float(MARGIN)
    for first in range(0, len(contents), columns):
        row = [
            _numa_panel(*content, trends, MARGIN + index * (PANEL_WIDTH + GUTTER), y)
            for index, content in enumerate(contents[first : first + columns])
        ]
        tallest = max(panel.height for panel in row)
        panels += row
        y += tallest + MARGIN
    fabrics = []
    for members, links in groups:
        fabrics.append(LinkBar(y=y, text=_link_text(members, links), keys=members))
        y += BRIDGE_ROW + MARGIN
    wide = min(columns, max(1, len(contents)))
    return PictureLayout(
        width=2 * MARGIN + wide * (PANEL_WIDTH + GUTTER),
        height=y,
        panels=tuple(panels),
        link_bars=tuple(fabrics),
        omitted_devices=len(view.devices) - len(devices),
    )
