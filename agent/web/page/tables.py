"""The tables of the hardware: devices, distances, GPUDirect, slices, groups, memory nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.objects.device import UNSCHEDULABLE
from agent.snapshot.device import Device, column_name, short_name
from agent.snapshot.node import GpuDirectPair, NodeSnapshot
from agent.snapshot.publications import EventLine
from agent.topology.distance import device_levels, level_between
from agent.web.device_json import device_group_rows, placement_text
from agent.web.page.html import (
    anchor,
    badge,
    bytes_text,
    fold,
    grid,
    health_badge,
    health_reason,
    meter,
    tag,
    text,
)

MAX_MATRIX_DEVICES = 32  # devices; a larger matrix is read with `topology -o json`
MAX_DEVICE_EVENTS = 5  # the last ones about one device; all are in /api/v1/events


def _device_row(device: Device, history: Sequence[EventLine]) -> list[str]:
    info, place = device.info, device.place
    state = health_badge(info.health) if info.managed else badge("unmanaged")
    barred = dict(info.facts).get(UNSCHEDULABLE)
    notes = [health_reason(info.health), f"nothing to grant: {barred}" if barred else ""]
    notes += [
        f"{c.type} {c.status}: {c.reason} {c.message}" for c in info.conditions if c.is_notable
    ]
    return [
        text(short_name(device)),
        state
        + "".join(tag("div", text(w), class_="why") for w in notes if w)
        + _health_history(device, history),
        text(info.model or info.vendor),
        bytes_text(info.memory_bytes) if info.memory_bytes else "–",
        tag("code", text(info.bus_id)),
        text(place.numa_node if place.numa_node >= 0 else None),
        _link_text(device),
        tag("code", text(info.uuid)),
    ]


def _link_text(device: Device) -> str:
    """Return the PCIe link as it is now; one that is slower than it could be is marked."""
    link = device.place.link
    if not link.width or not link.speed:
        return "–"
    now = f"x{link.width} {link.speed / 10:g} GT/s"
    if device.place.link_degraded is None:
        return tag("span", text(now), class_="figure")
    best = f"x{link.max_width or '?'} {(link.max_speed or 0) / 10:g} GT/s"
    return badge("suspect", now) + tag("div", text(f"of {best}"), class_="quiet")


def _health_history(device: Device, history: Sequence[EventLine]) -> str:
    """Return the changes of health since the agent's start, and the last events about the device.

    Empty for a device about which nothing was reported.
    """
    changes = device.info.health.changes
    if not history and not changes:
        return ""
    rows = [
        tag("li", tag("span", text(one.time), class_="figure"), f" {_event_text(one, device)}")
        for one in reversed(history[-MAX_DEVICE_EVENTS:])
    ]
    more = len(history) - len(rows)
    if more > 0:
        rows.append(tag("li", f"and {more} earlier"))
    last = device.info.health.last_event
    counted = f"{changes} {'change' if changes == 1 else 'changes'} of health since the start"
    return fold(
        anchor("history", device.key),
        counted + (f", last event {last}" if last else ""),
        tag("ul", *rows, class_="plain"),
    )


def _event_text(event: EventLine, device: Device) -> str:
    message = event.message.removeprefix(f"{short_name(device)} ({device.key}): ")
    return tag("strong", text(event.reason)) + " " + text(message)


def devices_table(snapshot: NodeSnapshot) -> str:
    """Return every device with its health, its place and its link."""
    devices = snapshot.devices.value.devices
    if not devices:
        return tag("p", "This host has no accelerator and no RDMA device.", class_="quiet")
    rows = [_device_row(device, _events_about(device, snapshot.events)) for device in devices]
    names = ("device", "health", "model", "memory", "bus", "NUMA", "PCIe link", "id")
    ids = [anchor("device", device.key) for device in devices]
    return grid(names, rows, "Accelerators and RDMA devices", "devices", ids=ids)


def _events_about(device: Device, events: Iterable[EventLine]) -> list[EventLine]:
    return [one for one in events if f"({device.key}):" in one.message]


def matrix_table(snapshot: NodeSnapshot) -> str:
    """Return the distance of each pair as `nvidia-smi topo -m` names it."""
    view = snapshot.devices.value
    columns = [(d, column_name(d, i)) for i, d in enumerate(view.devices) if d.place.path]
    columns = columns[:MAX_MATRIX_DEVICES]
    if len(columns) < 2:
        return ""
    levels = device_levels(view, snapshot.pci.value)
    rows = []
    for a, name in columns:
        words = [level_between(a, b, levels) or "–" for b, _ in columns]
        rows.append([text(name), *map(_level_cell, words)])
    legend = (
        "X itself · NV# NVLinks · PIX one switch · PXB several switches · "
        "PHB one host bridge · NODE one NUMA node · SYS further"
    )
    table = grid(["", *(name for _, name in columns)], rows, "Distance of each pair")
    return table + tag("p", legend, class_="quiet")


def _level_cell(word: str) -> str:
    """Return a distance; near ones and oneself have an element, whose class is their colour."""
    kind = word.rstrip("0123456789")
    return tag("b", text(word)) if kind in ("NV", "PIX") else text(word)


MAX_NICS = 16
MAX_GPUS = 32
MAX_DIRECT_REASONS = 12
_VERDICT_STATES = {"ok": "healthy", "slow": "suspect", "no": "failed", "unknown": "unmanaged"}


def gpudirect_table(snapshot: NodeSnapshot) -> str:
    """Return verdicts by GPU and NIC with all reasons below; empty without pairs."""
    view = snapshot.devices.value
    if not view.direct:
        return ""
    names = {d.key: column_name(d, i) for i, d in enumerate(view.devices)}
    devices = {device.key: device for device in view.devices}
    nics = list(dict.fromkeys(pair.nic for pair in view.direct))[:MAX_NICS]
    gpus = list(dict.fromkeys(pair.gpu for pair in view.direct))[:MAX_GPUS]
    pairs = {(pair.gpu, pair.nic): pair for pair in view.direct}
    rows = [
        [
            text(names.get(gpu, gpu)),
            *(_direct_cell(pairs.get((gpu, nic))) for nic in nics),
        ]
        for gpu in gpus
    ]
    heads = ["", *(_nic_heading(devices.get(nic), names.get(nic, nic)) for nic in nics)]
    return grid(heads, rows, "GPUDirect RDMA") + _direct_reasons(view.direct)


def _nic_heading(nic: Device | None, name: str) -> str:
    netdevs = dict(nic.info.facts).get("name") if nic is not None else None
    return f"{name} {netdevs}" if netdevs and netdevs != name else name


def _direct_cell(pair: GpuDirectPair | None) -> str:
    if pair is None:
        return "–"
    return badge(_VERDICT_STATES.get(pair.verdict, "unmanaged"), f"{pair.verdict} {pair.level}")


def _direct_reasons(pairs: Iterable[GpuDirectPair]) -> str:
    """Return the reasons of bad verdicts, each once, with the number of its pairs."""
    counts: dict[str, int] = {}
    for pair in pairs:
        for reasons in {f"{check.name}: {check.detail}" for check in pair.checks}:
            counts[reasons] = counts.get(reasons, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_DIRECT_REASONS]
    return "".join(
        tag("p", text(f"{reasons} ({count} {'pair' if count == 1 else 'pairs'})"), class_="quiet")
        for reasons, count in ordered
    )


MAX_SLICE_ROWS = 256

SLICE_COLUMNS = ("card", "slice", "profile", "memory", "placement", "health", "id")


def slices_table(snapshot: NodeSnapshot) -> str:
    """Return every hardware slice, and the free slices of each card; empty without slices."""
    cards = [d for d in snapshot.devices.value.devices if d.info.partitions or d.info.free_slices]
    rows = [row for card in cards for row in _slice_rows(card)]
    if not rows and not cards:
        return ""
    room = [
        tag("p", text(f"{short_name(card)}: still fits {_free_slices_text(card)}"), class_="quiet")
        for card in cards
        if card.info.free_slices
    ]
    table = grid(SLICE_COLUMNS, rows[:MAX_SLICE_ROWS], "Hardware slices") if rows else ""
    return table + "".join(room)


def _slice_rows(card: Device) -> list[list[str]]:
    rows = []
    for part in card.info.partitions:
        numbers = [n for n in (part.instance, part.compute_instance) if n is not None]
        place = placement_text(part)
        reason = health_reason(part.health)
        rows.append(
            [
                text(short_name(card)),
                text("/".join(map(str, numbers)) or None),
                text(part.profile),
                bytes_text(part.memory_bytes),
                text(place),
                health_badge(part.health)
                + (tag("div", text(reason), class_="why") if reason else ""),
                tag("code", text(part.uuid)),
            ]
        )
    return rows


def _free_slices_text(card: Device) -> str:
    fits = [
        f"{profile} at {','.join(map(str, starts))}" if starts else f"no {profile}"
        for profile, starts in card.info.free_slices
    ]
    return "; ".join(fits)


def groups_table(snapshot: NodeSnapshot) -> str:
    """Return the groups that the scheduler may allocate together; empty without groups."""
    view = snapshot.devices.value
    rows = [
        [text(len(names)), text(group.link_type), text(", ".join(names))]
        for group, names in device_group_rows(view, aligned=True)
    ]
    if not rows:
        return ""
    policy = f" (policy {view.group_policy})" if view.group_policy else ""
    if more := sum(not group.aligned for group in view.groups):
        policy += f", and {more} combinations across these blocks"
    names = ("size", "link", "devices")
    return grid(names, rows[:MAX_SLICE_ROWS], f"Devices that belong together{policy}")


def numa_table(snapshot: NodeSnapshot) -> str:
    """Return NUMA nodes with their usage and distances."""
    usage = {n.node_id: n for n in snapshot.usage.value.node.numa}
    rows = []
    for node in snapshot.numa.value.nodes:
        use = usage.get(node.id)
        used = use.memory_bytes if use else None
        cores = use.cpu_cores if use else None
        rows.append(
            [
                text(f"NUMA {node.id}"),
                text(len(node.cpus)),
                meter(cores, len(node.cpus), f"{cores:.2f}") if cores is not None else "–",
                meter(
                    used,
                    node.memory_bytes,
                    f"{bytes_text(used)} of {bytes_text(node.memory_bytes)}",
                ),
                text(" ".join(map(str, node.distances or ()))),
            ]
        )
    return grid(("node", "CPUs", "cores used", "memory used", "distances"), rows, "Memory nodes")
