"""What a vendor says of its cards beyond the Device object's fields: one annotation a vendor.

`xpu-agent.io/<vendor>` holds driver, library, facts of the whole and of each published card by
uuid, else bus id. A fact whose name begins with `xpu-agent.io/` is an annotation of its own.
"""

from __future__ import annotations

import json
import re

from agent.model.device import Device, DeviceKind
from agent.model.inventory import Inventory
from agent.model.snapshot import NodeSnapshot
from agent.publish.wire import sanitise

PREFIX = "xpu-agent.io/"
MAX_BYTES = 32 * 1024
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RESERVED = ("topology", "health", "instance")  # annotations that are not a vendor's

Dict = dict[str, object]


def vendor_annotations(
    snapshot: NodeSnapshot, published: tuple[Device, ...]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the annotations of all vendors with accelerators, and the keys that are ours."""
    found: dict[str, str] = {}
    owned: list[str] = []
    for state in snapshot.vendors:
        inventory = state.inventory.value
        if inventory is None:
            continue
        keys = {device.key for device in inventory.devices if device.kind is not DeviceKind.RDMA}
        cards = [device for device in published if device.key in keys]
        own = {name: value for name, value in inventory.facts if name.startswith(PREFIX)}
        for name, value in own.items():
            if _usable(name.removeprefix(PREFIX)) and len(value.encode()) <= MAX_BYTES:
                found[name] = sanitise.plain(value, MAX_BYTES)
                owned.append(name)
        if _usable(state.vendor) and (keys or cards):
            owned.append(PREFIX + state.vendor)
            if cards:
                found[PREFIX + state.vendor] = _text(inventory, cards)
    return found, tuple(dict.fromkeys(owned))


def _usable(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in _RESERVED


def _text(inventory: Inventory, cards: list[Device]) -> str:
    """Return the JSON; facts of the cards go first if it does not fit."""
    whole: Dict = {
        "driver": inventory.driver_version,
        "library": inventory.library,
        **{name: value for name, value in inventory.facts if not name.startswith(PREFIX)},
    }
    document: Dict = {name: value for name, value in whole.items() if value}
    devices: Dict = {card.info.uuid or card.key: dict(card.info.facts) for card in cards}
    text = _compact({**document, "devices": devices})
    return text if len(text.encode()) <= MAX_BYTES else _compact(document)


def _compact(document: Dict) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()
