"""The scheduler's table of cards that belong together: annotation `gpu-partitions` and its policy.

Format of Koordinator 1.7: size as text to a list of partitions, `allocationScore` an integer. One
score for all: readers disagree on whether the lowest or the highest wins. Of equal partitions the
scheduler takes the first in the table, so aligned ones stand before the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent.model.device import Device, DeviceKind
from agent.model.inventory import DeviceGroup
from agent.model.quantity import decimal
from agent.model.snapshot import DeviceView
from agent.publish.wire import sanitise

PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
POLICY_LABEL = "node.koordinator.sh/gpu-partition-policy"
POLICIES = ("Prefer", "Honor")
MAX_MINOR = 62  # the scheduler keeps minors as bits of a signed 64-bit number
SCORE = 1
MAX_BYTES = 64 * 1024


def partitions_text(view: DeviceView, published: Iterable[Device]) -> str:
    """Return the table as compact JSON; empty if there is none, or if it could not be read.

    A group counts if all its members are published accelerators with a number. One number beyond
    `MAX_MINOR` voids the table: the scheduler would take it for another card's. So does more than
    `MAX_BYTES`, for which an API server would refuse the whole object.
    """
    minors = {
        device.key: device.info.minor
        for device in published
        if device.info.kind is not DeviceKind.RDMA and device.info.minor is not None
    }
    if any(minor > MAX_MINOR for minor in minors.values()):
        return ""
    table: dict[int, dict[tuple[int, ...], DeviceGroup]] = {}
    for group in view.groups:
        members = tuple(sorted({minors[key] for key in group.keys if key in minors}))
        if members and len(members) == len(group.keys):
            table.setdefault(len(members), {}).setdefault(members, group)
    if not table:
        return ""
    document = {
        str(size): [_entry(members, group) for members, group in sorted(rows.items(), key=_order)]
        for size, rows in sorted(table.items())
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return text if len(text.encode()) <= MAX_BYTES else ""


def policy_of(view: DeviceView) -> str | None:
    """Return the label's value; `None` for what is no policy."""
    return view.group_policy if view.group_policy in POLICIES else None


def _order(row: tuple[tuple[int, ...], DeviceGroup]) -> tuple[bool, tuple[int, ...]]:
    minors, group = row
    return not group.aligned, minors


def _entry(members: tuple[int, ...], group: DeviceGroup) -> dict[str, object]:
    entry: dict[str, object] = {"minors": list(members)}
    if link_type := sanitise.plain(group.link_type):
        entry["gpuLinkType"] = link_type
    if group.bandwidth_bytes_per_s:
        entry["ringBusBandwidth"] = decimal(group.bandwidth_bytes_per_s)
    entry["allocationScore"] = SCORE
    return entry
