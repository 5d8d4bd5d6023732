"""The table of `devices`: cards with their slices below them, then what belongs together."""

from __future__ import annotations

from collections.abc import Iterator

from agent.cli.output import table
from agent.cli.terminal import DIM, GREEN, PLAIN, RED, YELLOW, Terminal, fit_lines
from agent.model.device import Device, DevicePartition
from agent.model.snapshot import DeviceView
from agent.publish.device_view import group_rows, placement_text, short_name
from agent.publish.wire.conditions import UNSCHEDULABLE

GIB = 2**30
INDENT = "  "
SPARE = ("id", "switch", "vendor", "memory", "numa", "model")  # left out first on a narrow terminal
_STYLES = {
    "healthy": GREEN,
    "suspect": YELLOW,
    "probing": RED,
    "failed": RED,
    "unmanaged": DIM,
}


def devices_text(view: DeviceView, terminal: Terminal = PLAIN) -> str:
    """Return the whole text, ending in a newline."""
    rows = [row for device in view.devices for row in _rows(device)]
    lines = fit_lines(_together(view), terminal)
    text = table(rows, terminal, spare=SPARE, style=_style)
    return text + "\n" + "".join(f"{line}\n" for line in lines)


def _style(column: str, text: str) -> str:
    return _STYLES.get(text, "") if column == "health" else ""


def _rows(device: Device) -> Iterator[dict[str, object]]:
    info, place = device.info, device.place
    health = info.health
    why = "" if health.reason == "DeviceHealthy" else f"{health.reason}: {health.message}"
    barred = dict(info.facts).get(UNSCHEDULABLE)
    also = "; ".join(f"{c.type}={c.status}: {c.reason}" for c in info.conditions if c.notable)
    vfs = sum(len(group.vfs) for group in info.vf_groups)
    yield {
        "device": short_name(device),
        "vendor": info.vendor,
        "model": info.model,
        "bus": info.bus_id,
        "numa": place.numa_node if place.numa_node >= 0 else None,
        "switch": place.switch,
        "memory": _memory(info.memory_bytes),
        "health": health.state.value if info.managed else "unmanaged",
        "id": info.uuid,
        "reason": "; ".join(
            filter(
                None,
                (
                    why,
                    f"nothing to grant: {barred}" if barred else "",
                    also,
                    f"{vfs} virtual functions" if vfs else "",
                ),
            )
        ),
    }
    for part in info.partitions:
        yield _slice_row(part)


def _slice_row(part: DevicePartition) -> dict[str, object]:
    numbers = [n for n in (part.instance, part.compute_instance) if n is not None]
    placement = placement_text(part)
    bad = not part.health.in_service
    return {
        "device": f"{INDENT}{'/'.join(map(str, numbers)) or '?'}",
        "vendor": None,
        "model": part.profile,
        "bus": None,
        "numa": None,
        "switch": None,
        "memory": _memory(part.memory_bytes),
        "health": part.health.state.value,
        "id": part.uuid,
        "reason": f"{part.health.reason}: {part.health.message}"
        if bad
        else placement and f"at {placement}",
    }


def _memory(memory_bytes: int | None) -> str | None:
    return None if memory_bytes is None else f"{memory_bytes / GIB:.1f}Gi"


def _together(view: DeviceView) -> Iterator[str]:
    """Yield one line for each size and kind of link."""
    lines: dict[tuple[int, str], list[str]] = {}
    for group, names in group_rows(view, aligned=True):
        words = " ".join(name.rpartition(" ")[2] for name in names)
        lines.setdefault((len(names), group.link_type), []).append(f"[{words}]")
    for (size, link_type), groups in lines.items():
        yield f"groups of {size} ({link_type}): {' '.join(groups)}"
    if more := sum(not group.aligned for group in view.groups):
        yield f"groups across these blocks: {more} (-o json lists them)"
    if view.group_policy and lines:
        yield f"policy of groups: {view.group_policy}"
