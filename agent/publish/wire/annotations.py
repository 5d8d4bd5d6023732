"""Our own annotations on the Device object: bounded JSON that readers of ours understand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from agent.model.device import Device, DeviceKind, DevicePartition, Health
from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Json
from agent.publish.wire import sanitise
from agent.publish.wire.sanitise import TIME
from agent.topology.numa import NumaTopology
from agent.topology.pci import PciLink
from agent.topology.text import format_cpu_list
from agent.version import VERSION

TOPOLOGY = "xpu-agent.io/topology"
HEALTH = "xpu-agent.io/health"
INSTANCE = "xpu-agent.io/instance"
KEYS = (TOPOLOGY, HEALTH, INSTANCE)
MAX_BYTES = 64 * 1024

Dict = dict[str, object]
Entries = dict[str, Dict]  # by bus id
_UNKNOWN: tuple[object, ...] = ("unknown", -1, None, "", (), [], {})


def own_annotations(snapshot: NodeSnapshot, published: tuple[Device, ...]) -> dict[str, str]:
    """Return all of our annotations; equal snapshots give equal text."""
    instance: Dict = {"version": VERSION, "bootID": snapshot.node.boot_id}
    return {
        TOPOLOGY: topology_text(snapshot, published),
        HEALTH: health_text(published),
        INSTANCE: _compact(_told(instance)),
    }


def topology_text(snapshot: NodeSnapshot, published: tuple[Device, ...]) -> str:
    """Return where each published device sits, as JSON of at most `MAX_BYTES`.

    What does not fit is dropped whole: acs, link, links, paths of RDMA devices, then the rest
    in the order of its worth.
    """
    view = snapshot.devices.value
    on_pci = [(device.info.bus_id, device) for device in published if device.info.bus_id]
    entries: Entries = {bus_id: _device_entry(device) for bus_id, device in on_pci}
    nics = {bus_id for bus_id, device in on_pci if device.info.kind is DeviceKind.RDMA}
    links = sorted([link.a, link.b, link.type, link.count] for link in view.links)
    document = _told(
        {
            "devices": entries,
            "numa": _numa_entry(snapshot.numa.value),
            "links": links,
            "topologyFile": view.topology_file,
        }
    ) | {"v": 1}

    def without(member: str, only: set[str] | None = None) -> Callable[[], None]:
        def drop() -> None:
            for bus_id, entry in entries.items():
                if only is None or bus_id in only:
                    entry.pop(member, None)

        return drop

    return _fitting(
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


def health_text(published: tuple[Device, ...]) -> str:
    """Return the health of each published device by bus id, else uuid.

    `count` is how often its state changed since the agent's start, `lastEvent` the reason of its
    last event; neither is there if there was none. `certain` is there, and false, while nobody
    can tell whether the state still holds. Where not all fit, the healthy ones go first.
    """
    entries: Entries = {device.key: _health_entry(device.info.health) for device in published}

    def without(member: str) -> Callable[[], None]:
        def drop() -> None:
            for entry in entries.values():
                entry.pop(member, None)

        return drop

    def unhealthy_only() -> None:
        for key in [key for key, entry in entries.items() if entry["state"] == "healthy"]:
            del entries[key]

    drops = (
        unhealthy_only,
        without("lastEvent"),
        without("count"),
        without("since"),
        without("reason"),
        entries.clear,
    )
    return _fitting(entries, drops)


def _health_entry(health: Health) -> Dict:
    entry: Dict = {"state": health.state.value, "reason": sanitise.reason(health.reason)}
    if not health.certain:
        entry["certain"] = False
    if health.since_s is not None:
        entry["since"] = sanitise.time_text(health.since_s)
    if health.changes:
        entry["count"] = health.changes
    if health.last_event:
        entry["lastEvent"] = sanitise.reason(health.last_event)
    return entry


def keep_since(previous: object, body: Json) -> Json:
    """Return `body` with the times of `previous` in its health, of devices in the same state.

    An agent that has just started saw no change, and would take the last one's time away.
    """
    known, entries = _health_of(previous), _health_of(body)
    for key, entry in entries.items():
        old = known.get(key, {})
        since = old.get("since")
        same = old.get("state") == entry.get("state")
        if same and "since" not in entry and isinstance(since, str) and TIME.fullmatch(since):
            entry["since"] = since
    text = _compact(entries)
    if not entries or entries == _health_of(body) or len(text.encode()) > MAX_BYTES:
        return body
    metadata = body["metadata"]
    assert isinstance(metadata, Mapping)  # noqa: S101 - its annotations were read just now
    annotations = {**metadata["annotations"], HEALTH: text}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def _health_of(body: object) -> dict[str, Dict]:
    """Return the entries of an object's health annotation; none of what is no such thing."""
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = annotations.get(HEALTH) if isinstance(annotations, Mapping) else None
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: entry for key, entry in found.items() if isinstance(entry, dict)}


def _device_entry(device: Device) -> Dict:
    place = device.place
    return _told(
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


def _instance_entry(part: DevicePartition) -> Dict:
    """Return one hardware slice; `start` and `size` are in memory slices of the card."""
    return _told(
        {
            "uuid": part.uuid,
            "profile": part.profile,
            "memory": part.memory_bytes,
            "instance": part.instance,
            "computeInstance": part.compute_instance,
            "start": part.start,
            "size": part.size,
            "cores": part.cores,
            "reason": None if part.health.in_service else sanitise.reason(part.health.reason),
        }
    )


def _link_entry(link: PciLink) -> Dict:
    """Return speeds in GT/s x 10 and widths in lanes."""
    return _told(
        {
            "speed": link.speed,
            "width": link.width,
            "maxSpeed": link.max_speed,
            "maxWidth": link.max_width,
        }
    )


def _numa_entry(numa: NumaTopology) -> Dict:
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


def _told(members: Dict) -> Dict:
    """Leave out what nobody knows."""
    return {key: value for key, value in members.items() if value not in _UNKNOWN}


def _fitting(document: object, drops: tuple[Callable[[], object], ...]) -> str:
    text = _compact(document)
    for drop in drops:
        if len(text.encode()) <= MAX_BYTES:
            break
        drop()
        text = _compact(document)
    return text


def _compact(document: object) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()  # foreign text may hold lone surrogates
