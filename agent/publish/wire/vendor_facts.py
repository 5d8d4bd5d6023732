"""What a vendor says of its cards beyond the Device object's fields: one annotation a vendor.

`xpu-agent.io/<vendor>` holds driver, library, facts of the whole and of each published card by
uuid, else bus id. A fact whose name begins with `xpu-agent.io/` is an annotation of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from agent.model.device import Device, DeviceKind
from agent.model.inventory import Inventory
from agent.model.snapshot import NodeSnapshot
from agent.publish.wire import sanitise

PREFIX = "xpu-agent.io/"
MAX_BYTES = 32 * 1024  # of one annotation
MAX_ALL_BYTES = 48 * 1024  # an object takes 256 KiB of annotations, whoever's they are
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RESERVED = ("topology", "health", "instance")  # annotations that are not a vendor's

Dict = dict[str, object]


def vendor_annotations(
    snapshot: NodeSnapshot, published: tuple[Device, ...]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the annotations of all vendors with accelerators, and the keys that are ours.

    What does not fit is left out whole, the last first.
    """
    found: dict[str, str] = {}
    owned: list[str] = []
    room = MAX_ALL_BYTES
    for name, texts in _offers(snapshot, published):
        owned.append(name)
        fitting = (text for text in texts if len(text.encode()) <= min(room, MAX_BYTES))
        text = next(fitting, None)
        if text is not None:
            found[name] = text
            room -= len(text.encode())
    return found, tuple(dict.fromkeys(owned))


def _offers(
    snapshot: NodeSnapshot, published: tuple[Device, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what there is to tell: a key, and its texts from the fullest to the shortest."""
    for state in snapshot.vendors:
        inventory = state.inventory.value
        if inventory is None:
            continue
        keys = {device.key for device in inventory.devices if device.kind is not DeviceKind.RDMA}
        cards = [device for device in published if device.key in keys]
        for name, value in inventory.facts:
            if name.startswith(PREFIX) and _usable(name.removeprefix(PREFIX)):
                yield name, (sanitise.plain(value, MAX_BYTES + 1),)  # a longer one does not fit
        if _usable(state.vendor) and (keys or cards):
            yield PREFIX + state.vendor, _texts(inventory, cards) if cards else ()


def _usable(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in _RESERVED


def _texts(inventory: Inventory, cards: list[Device]) -> tuple[str, ...]:
    """Return the JSON with and without the facts of the cards."""
    whole: Dict = {
        "driver": inventory.driver_version,
        "library": inventory.library,
        **{name: value for name, value in inventory.facts if not name.startswith(PREFIX)},
    }
    document: Dict = {name: value for name, value in whole.items() if value}
    devices: Dict = {card.info.uuid or card.key: dict(card.info.facts) for card in cards}
    return _compact({**document, "devices": devices}), _compact(document)


def _compact(document: Dict) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()
