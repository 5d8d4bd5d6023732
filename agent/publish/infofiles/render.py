"""Our accelerators as a device-info file, for a koordlet that publishes what it reads there.

The format is that of koord-device-daemon (see `agent.model.foreign.device_info`). What koordlet
makes of the file equals our Device object, but for what the format cannot say: sockets, driver
version, partitions of one card and bandwidths.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from agent.model.device import Device, DeviceKind, Health
from agent.model.foreign.device_info import FILE_FACT, OWN_FILE
from agent.model.inventory import DeviceGroup
from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Desired
from agent.publish.device import select
from agent.publish.wire import sanitise
from agent.publish.wire.partitions import policy_of

RATIO = "koordinator.sh/gpu-memory-ratio"  # koordlet adds it to every device
HONOR = "Honor"
DEVICES = "devices"  # member of the body that holds the array

Dict = dict[str, object]


class InfoFilePublisher(msgspec.Struct, frozen=True):
    """Renders the entries of all accelerators that koordlet may grant."""

    interval_s: float = 3.0
    name: str = "device-info-file"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:  # noqa: ARG002 - see Publisher
        """Return the file, or nothing before every vendor has answered or failed to."""
        view = snapshot.devices
        if view.taken_s is None or not view.value.is_final:
            return ()
        return (
            Desired(
                file_name=OWN_FILE,
                api_version="",
                kind="DeviceInfoFile",
                name=snapshot.node.name,
                body={DEVICES: entries(snapshot)},
            ),
        )


def entries(snapshot: NodeSnapshot) -> list[Dict]:
    """Return one entry for each published accelerator, in the order of their numbers.

    Left out is what another program told us, because koordlet reads that itself, and what has no
    resources, because koordlet would give it some.
    """
    view = snapshot.devices.value
    cards = [d for d in select(view.devices).published if _is_ours(d)]
    minors = {card.key: card.info.minor for card in cards if card.info.minor is not None}
    groups = [group for group in view.groups if all(key in minors for key in group.keys)]
    policy = policy_of(view)
    return [_entry(card, _links(card, groups, minors), policy) for card in cards]


def _is_ours(device: Device) -> bool:
    info = device.info
    told = FILE_FACT in dict(info.facts)
    return info.kind is not DeviceKind.RDMA and bool(_resources(device)) and not told


def _entry(card: Device, links: list[Dict], policy: str | None) -> Dict:
    info, place = card.info, card.place
    topology: Dict = {}
    if policy is not None:  # the member, even if it is empty, makes koordlet set the label
        topology = {"p2pLinks": links, "mustHonorPartition": policy == HONOR}
    return {
        "vendor": sanitise.label_value(info.vendor),
        "model": sanitise.label_value((info.model or "").removeprefix("NVIDIA ")),
        "uuid": sanitise.plain(info.uuid or ""),
        "minor": str(info.minor),
        "resources": _resources(card),
        "topology": topology
        | {
            "socketID": str(place.socket),
            # koordlet reads the empty text as unknown
            "nodeID": str(place.numa_node) if place.numa_node >= 0 else "",
            "pcieID": sanitise.plain(card.pcie_scope_id),
            "busID": sanitise.plain(info.bus_id or ""),
        },
        "status": _status(info.health),
    }


def _resources(card: Device) -> dict[str, str]:
    known = {sanitise.plain(name): value for name, value in card.info.resources if name != RATIO}
    return {
        name: value
        for name, value in sorted(known.items())
        if name and sanitise.quantity(value) is not None
    }


def _links(card: Device, groups: Iterable[DeviceGroup], minors: dict[str, int]) -> list[Dict]:
    """Return a link for each partition of the card with others; koordlet adds the card itself."""
    found: list[Dict] = []
    for group in groups:
        kind = sanitise.plain(group.link_type)
        others = sorted(minors[key] for key in set(group.keys) if key != card.key)
        if card.key in group.keys and others and kind:
            found.append({"peerMinor": ",".join(map(str, others)), "type": kind})
    return found


def _status(health: Health) -> Dict:
    if health.in_service:
        return {"healthy": True}
    return {
        "healthy": False,
        "errCode": sanitise.reason(health.reason),
        "errMessage": sanitise.message(health.message, health.reason),
    }


def encode(listed: object) -> bytes:
    """Write the array as koord-device-daemon does: two blanks a level, texts as they are."""
    text = json.dumps(listed, indent=2, ensure_ascii=False)
    return text.encode("utf-8", "replace")
