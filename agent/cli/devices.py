"""The table of `devices`: cards with their slices, then the groups."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from agent.app.oneshot import inspect_host
from agent.cli.context import command_inputs
from agent.cli.output import format_document, format_table
from agent.cli.terminal import (
    DIM,
    GREEN,
    PLAIN_TERMINAL,
    RED,
    YELLOW,
    Terminal,
    fit_lines,
    standard_output,
    write_document,
)
from agent.objects.device import UNSCHEDULABLE
from agent.snapshot.device import Device, DevicePartition, short_name
from agent.snapshot.node import DeviceView
from agent.web.device_json import device_group_rows, devices_json, placement_text

GIB = 2**30

INDENT = "  "

SPARE_COLUMNS = (
    "id",
    "switch",
    "vendor",
    "memory",
    "numa",
    "model",
)  # left out first on a narrow terminal

_STYLES = {
    "healthy": GREEN,
    "suspect": YELLOW,
    "probing": RED,
    "failed": RED,
    "unmanaged": DIM,
}


def devices_text(view: DeviceView, terminal: Terminal = PLAIN_TERMINAL) -> str:
    """Return the whole text, ending in a newline."""
    rows = [row for device in view.devices for row in _device_rows(device)]
    lines = fit_lines(_group_lines(view), terminal)
    text = format_table(rows, terminal, spare=SPARE_COLUMNS, style=_cell_style)
    return text + "\n" + "".join(f"{line}\n" for line in lines)


def _cell_style(column: str, text: str) -> str:
    return _STYLES.get(text, "") if column == "health" else ""


def _device_rows(device: Device) -> Iterator[dict[str, object]]:
    info, place = device.info, device.place
    health = info.health
    reason = "" if health.reason == "DeviceHealthy" else f"{health.reason}: {health.message}"
    barred = dict(info.facts).get(UNSCHEDULABLE)
    also = "; ".join(f"{c.type}={c.status}: {c.reason}" for c in info.conditions if c.is_notable)
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
                    reason,
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
    bad = not part.health.is_in_service
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


def _group_lines(view: DeviceView) -> Iterator[str]:
    """Yield one line for each size and kind of link."""
    lines: dict[tuple[int, str], list[str]] = {}
    for group, names in device_group_rows(view, aligned=True):
        text = " ".join(name.rpartition(" ")[2] for name in names)
        lines.setdefault((len(names), group.link_type), []).append(f"[{text}]")
    for (size, link_type), groups in lines.items():
        yield f"groups of {size} ({link_type}): {' '.join(groups)}"
    if more := sum(not group.aligned for group in view.groups):
        yield f"groups across these blocks: {more} (-o json lists them)"
    if view.group_policy and lines:
        yield f"policy of groups: {view.group_policy}"


def devices(arguments: argparse.Namespace) -> int:
    """List the devices.

    Status 1 if a managed device is out of service, or a vendor did not answer.
    """
    snapshot = inspect_host(command_inputs(arguments), samples=0)
    all_devices = snapshot.devices.value.devices
    if arguments.output != "table":
        write_document(format_document(devices_json(snapshot.devices.value), arguments.output))
    elif all_devices:
        print(devices_text(snapshot.devices.value, standard_output()), end="")
    else:
        print(f"{snapshot.node.source}: no accelerator and no RDMA device")
    for vendor, problem in snapshot.devices.value.problems:
        print(f"{vendor}: {problem.reason}: {problem.message}", file=sys.stderr)
    silent = [vendor for vendor in snapshot.vendors if vendor.state != "ready"]
    for state in silent:
        print(state.message, file=sys.stderr)
    bad = any(d.info.managed and not d.info.health.is_in_service for d in all_devices)
    return 1 if bad or silent else 0
