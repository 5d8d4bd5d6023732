"""The annotation `xpu-agent.io/mig`: instances and free places of a node's cut cards. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent.model.device import DevicePartition, VendorDevice

KEY = "xpu-agent.io/mig"
MAX_BYTES = 32 * 1024
_MIB = 1 << 20


def annotation(cards: Iterable[VendorDevice]) -> str:
    """Return the JSON by minor; empty if no card has instances or room for one.

    What does not fit into `MAX_BYTES` is left out whole: free places first, then everything.
    """
    cut = [c for c in cards if c.minor is not None and (c.partitions or c.free_slices)]
    for free in (True, False):
        document = {str(card.minor): _entry(card, free=free) for card in cut}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        if cut and len(text) <= MAX_BYTES:
            return text
    return ""


def _entry(card: VendorDevice, *, free: bool) -> dict[str, object]:
    entry: dict[str, object] = {
        "uuid": card.uuid,
        "instances": [_instance(part) for part in card.partitions],
        "free": {name: list(starts) for name, starts in card.free_slices} if free else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _instance(part: DevicePartition) -> dict[str, object]:
    told: dict[str, object] = {
        "uuid": part.uuid,
        "profile": part.profile,
        "gi": part.instance,
        "ci": part.compute_instance,
        "start": part.start,
        "size": part.size,
        "memoryMiB": part.memory_bytes // _MIB if part.memory_bytes is not None else None,
        "sm": part.cores,
    }
    return {key: value for key, value in told.items() if value is not None}
