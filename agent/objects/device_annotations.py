"""Annotations of the Device object: the agent's own, and one for each vendor.

`xpu-agent.io/<vendor>` has driver, library, node facts and the facts of each published card by
uuid, else bus id. A fact whose name begins with `xpu-agent.io/` is an annotation of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from agent.snapshot.cpu import NumaTopology
from agent.snapshot.device import Device, DeviceKind, DevicePartition, Health
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pci import PciLink
from agent.version import VERSION
from agent.wire_formats import api_values
from agent.wire_formats.device_object import (
    HEALTH_ANNOTATION,
    MAX_ANNOTATION_BYTES,
    TOPOLOGY_ANNOTATION,
)
from agent.wire_formats.json_values import JsonDict, compact_json
from agent.wire_formats.kernel_text import format_cpu_list

INSTANCE_ANNOTATION = "xpu-agent.io/instance"

RESCTRL_ANNOTATION = "xpu-agent.io/resctrl-groups"


Entries = dict[str, JsonDict]  # by bus id

_UNKNOWN_VALUES: tuple[object, ...] = ("unknown", -1, None, "", (), [], {})


def agent_annotations(snapshot: NodeSnapshot, published: tuple[Device, ...]) -> dict[str, str]:
    """Return the annotations that are the same for all vendors; equal snapshots give equal text."""
    instance: JsonDict = {"version": VERSION, "bootID": snapshot.node.boot_id}
    return {
        **_resctrl_annotation(snapshot),
        TOPOLOGY_ANNOTATION: topology_annotation(snapshot, published),
        HEALTH_ANNOTATION: health_annotation(published),
        INSTANCE_ANNOTATION: compact_json(_without_unknown(instance)),
    }


def _resctrl_annotation(snapshot: NodeSnapshot) -> dict[str, str]:
    """Return how many resctrl groups the agent may have and has; nothing while that is unknown."""
    view = snapshot.resctrl
    if view.closids is None:
        return {}
    counts: JsonDict = {"total": view.closids, "used": len(view.groups)}
    return {RESCTRL_ANNOTATION: compact_json(counts)}


def topology_annotation(snapshot: NodeSnapshot, published: tuple[Device, ...]) -> str:
    """Return the place of each published device, as JSON of at most `MAX_ANNOTATION_BYTES`.

    If it is too long, whole members are dropped: acs, link, links, paths of RDMA devices, then the
    others, the most important last.
    """
    view = snapshot.devices.value
    on_pci = [(device.info.bus_id, device) for device in published if device.info.bus_id]
    entries: Entries = {bus_id: _device_entry(device) for bus_id, device in on_pci}
    nics = {bus_id for bus_id, device in on_pci if device.info.kind is DeviceKind.RDMA}
    links = sorted([link.a, link.b, link.type, link.count] for link in view.links)
    document = _without_unknown(
        {
            "devices": entries,
            "numa": _numa_entry(snapshot.numa.value),
            "links": links,
            "topologyFile": view.topology_file,
        }
    ) | {"v": 1}

    def without(member: str, bus_ids: set[str] | None = None) -> Callable[[], None]:
        def drop() -> None:
            for bus_id, entry in entries.items():
                if bus_ids is None or bus_id in bus_ids:
                    entry.pop(member, None)

        return drop

    return _fit(
        document,
        (
            without("acs"),
            without("link"),
            lambda: document.pop("links", None),
            without("path", nics),
            without("path"),
            without("freeSlices"),
            without("instances"),
            lambda: document.pop("devices", None),
            lambda: document.pop("numa", None),
        ),
    )


def health_annotation(published: tuple[Device, ...]) -> str:
    """Return the health of each published device by bus id, else uuid.

    `count` is how often its state changed since the agent's start, `lastEvent` the reason of its
    last event; both are absent if there was none. `certain` is present, and false, while it is
    unknown whether the state still holds. If not all devices fit, the healthy ones are dropped
    first.
    """
    entries: Entries = {device.key: _health_entry(device.info.health) for device in published}

    def without(member: str) -> Callable[[], None]:
        def drop() -> None:
            for entry in entries.values():
                entry.pop(member, None)

        return drop

    def drop_healthy() -> None:
        for key in [key for key, entry in entries.items() if entry["state"] == "healthy"]:
            del entries[key]

    drops = (
        drop_healthy,
        without("lastEvent"),
        without("count"),
        without("since"),
        without("reason"),
        entries.clear,
    )
    return _fit(entries, drops)


def _health_entry(health: Health) -> JsonDict:
    entry: JsonDict = {
        "state": health.state.value,
        "reason": api_values.condition_reason(health.reason),
    }
    if not health.certain:
        entry["certain"] = False
    if health.since_s is not None:
        entry["since"] = api_values.format_first_time(health.since_s)
    if health.changes:
        entry["count"] = health.changes
    if health.last_event:
        entry["lastEvent"] = api_values.condition_reason(health.last_event)
    return entry


def _device_entry(device: Device) -> JsonDict:
    place = device.place
    return _without_unknown(
        {
            "path": list(place.path),
            "switch": place.switch,
            "chip": place.chip if place.chip != place.switch else None,
            "node": place.numa_node,
            "nodeSource": place.numa_source,
            "socket": place.socket,
            "package": place.package_id,
            "link": _link_entry(place.link),
            "acs": place.acs,
            "instances": [_instance_entry(part) for part in device.info.partitions],
            "freeSlices": {profile: list(starts) for profile, starts in device.info.free_slices},
        }
    )


def _instance_entry(part: DevicePartition) -> JsonDict:
    """Return one hardware slice; `start` and `size` are in memory slices of the card."""
    return _without_unknown(
        {
            "uuid": part.uuid,
            "profile": part.profile,
            "memory": part.memory_bytes,
            "instance": part.instance,
            "computeInstance": part.compute_instance,
            "start": part.start,
            "size": part.size,
            "cores": part.cores,
            "reason": None
            if part.health.is_in_service
            else api_values.condition_reason(part.health.reason),
        }
    )


def _link_entry(link: PciLink) -> JsonDict:
    """Return speeds in GT/s x 10 and widths in lanes."""
    return _without_unknown(
        {
            "speed": link.speed,
            "width": link.width,
            "maxSpeed": link.max_speed,
            "maxWidth": link.max_width,
        }
    )


def _numa_entry(numa: NumaTopology) -> JsonDict:
    ids = [str(node.id) for node in numa.nodes]
    return {
        str(node.id): {
            "cpus": format_cpu_list(node.cpus),
            "kind": node.kind.value,
            **(
                {"distances": dict(zip(ids, node.distances, strict=False))}
                if node.distances is not None
                else {}
            ),
        }
        for node in numa.nodes
    }


def _without_unknown(members: JsonDict) -> JsonDict:
    """Return the members whose values are known."""
    return {key: value for key, value in members.items() if value not in _UNKNOWN_VALUES}


def _fit(document: object, drops: tuple[Callable[[], object], ...]) -> str:
    text = compact_json(document)
    for drop in drops:
        if len(text.encode()) <= MAX_ANNOTATION_BYTES:
            break
        drop()
        text = compact_json(document)
    return text


VENDOR_PREFIX = "xpu-agent.io/"
MAX_VENDOR_BYTES = 32 * 1024  # of one annotation
MAX_ALL_VENDORS_BYTES = 48 * 1024  # an object may have 256 KiB of annotations of all writers
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RESERVED = ("topology", "health", "instance")  # annotations that are not a vendor's


def vendor_annotations(snapshot: NodeSnapshot, published: tuple[Device, ...]) -> dict[str, str]:
    """Return the annotations of all vendors with accelerators, as long as they fit."""
    annotations: dict[str, str] = {}
    remaining_bytes = MAX_ALL_VENDORS_BYTES
    for name, texts in _candidates(snapshot, published):
        fitting = (
            text for text in texts if len(text.encode()) <= min(remaining_bytes, MAX_VENDOR_BYTES)
        )
        text = next(fitting, None)
        if text is not None:
            annotations[name] = text
            remaining_bytes -= len(text.encode())
    return annotations


def _candidates(
    snapshot: NodeSnapshot, published: tuple[Device, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield annotation keys, each with its texts from the fullest to the shortest."""
    for state in snapshot.vendors:
        inventory = state.inventory.value
        if inventory is None:
            continue
        keys = {device.key for device in inventory.devices if device.kind is not DeviceKind.RDMA}
        cards = [device for device in published if device.key in keys]
        for name, value in inventory.facts:
            if name.startswith(VENDOR_PREFIX) and _is_annotation_name(
                name.removeprefix(VENDOR_PREFIX)
            ):
                yield (
                    name,
                    (api_values.clean_text(value, MAX_VENDOR_BYTES + 1),),
                )  # a longer one does not fit
        if _is_annotation_name(state.vendor) and (keys or cards):
            yield VENDOR_PREFIX + state.vendor, _annotation_texts(inventory, cards) if cards else ()


def _is_annotation_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in _RESERVED


def _annotation_texts(inventory: Inventory, cards: list[Device]) -> tuple[str, ...]:
    """Return the JSON with and without the facts of the cards."""
    whole: JsonDict = {
        "driver": inventory.driver_version,
        "library": inventory.library,
        **{name: value for name, value in inventory.facts if not name.startswith(VENDOR_PREFIX)},
    }
    document: JsonDict = {name: value for name, value in whole.items() if value}
    devices: JsonDict = {card.info.uuid or card.key: dict(card.info.facts) for card in cards}
    return compact_json({**document, "devices": devices}), compact_json(document)
