"""A device as JSON for `devices -o json`, `/api/v1/devices` and the page."""

from __future__ import annotations

from agent.snapshot.device import Device, DevicePartition, Health, short_name
from agent.snapshot.inventory import DeviceGroup
from agent.snapshot.node import DeviceView
from agent.wire_formats import api_values


def health_json(health: Health) -> dict[str, object]:
    """Return state, reason, message, time of the change (`null`: unknown), and certainty."""
    return {
        "state": health.state.value,
        "reason": health.reason,
        "message": health.message,
        "since": api_values.format_time(health.since_s),
        "certain": health.certain,
    }


def device_json(device: Device) -> dict[str, object]:
    """Return all facts about one device; an absent one is `None`, never 0 or an empty text."""
    info, place = device.info, device.place
    return {
        "type": info.kind.value,
        "vendor": info.vendor,
        "model": info.model,
        "minor": info.minor,
        "uuid": info.uuid,
        "bus_id": info.bus_id,
        "numa_node": place.numa_node if place.numa_node >= 0 else None,
        "numa_source": place.numa_source if place.numa_node >= 0 else None,
        "socket": place.socket if place.socket >= 0 else None,
        "pcie_path": list(place.path),
        "pcie_switch": place.switch,
        "near_disks": list(place.near_disks),
        "link": {
            "speed_gts": place.link.speed / 10 if place.link.speed else None,
            "width": place.link.width,
            "max_speed_gts": place.link.max_speed / 10 if place.link.max_speed else None,
            "max_width": place.link.max_width,
            "degraded": place.link_degraded,
        },
        "memory_bytes": info.memory_bytes,
        "managed": info.managed,
        "health": health_json(info.health),
        "conditions": [
            {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
            for c in info.conditions
        ],
        "partitions": [_partition_json(part) for part in info.partitions],
        "free_slices": {profile: list(starts) for profile, starts in info.free_slices},
        "virtual_functions": [
            {"bus_id": vf.bus_id, "minor": vf.minor if vf.minor >= 0 else None}
            for group in info.vf_groups
            for vf in group.vfs
        ],
        "ports": [
            {
                "number": port.number,
                "state": port.state_name or port.state,
                "rate_mbps": port.rate_mbps,
                "link_layer": port.link_layer,
                "netdev": port.netdev,
            }
            for port in info.ports
        ],
        "resources": dict(info.resources),
        "labels": dict(info.labels),
        "facts": dict(info.facts),
    }


def _partition_json(part: DevicePartition) -> dict[str, object]:
    return {
        "uuid": part.uuid,
        "profile": part.profile,
        "memory_bytes": part.memory_bytes,
        "instance": part.instance,
        "compute_instance": part.compute_instance,
        "start": part.start,
        "size": part.size,
        "cores": part.cores,
        "nodes": [node.path for node in part.nodes],
        "health": health_json(part.health),
    }


def placement_text(part: DevicePartition) -> str | None:
    """Return the memory slices that a slice occupies, `0-3` or `4`; `None` if unknown."""
    if part.start is None:
        return None
    last = part.start + max(1, part.size or 1) - 1
    return str(part.start) if last == part.start else f"{part.start}-{last}"


def device_group_rows(
    view: DeviceView, *, aligned: bool = False
) -> tuple[tuple[DeviceGroup, tuple[str, ...]], ...]:
    """Return each group of at least two with the short names of its members, by size.

    With `aligned` only aligned groups: there may be hundreds of others.
    """
    names = {device.key: short_name(device) for device in view.devices}
    rows = [
        (group, tuple(names.get(key, key) for key in group.keys))
        for group in view.groups
        if len(group.keys) > 1 and (group.aligned or not aligned)
    ]
    return tuple(sorted(rows, key=lambda row: len(row[1])))


def devices_json(view: DeviceView) -> dict[str, object]:
    """Return the document of `devices -o json`: the devices, and the groups of them."""
    return {
        "devices": [device_json(device) for device in view.devices],
        "groups": [
            {"size": len(names), "link_type": group.link_type, "devices": list(names)}
            for group, names in device_group_rows(view)
        ],
        "group_policy": view.group_policy,
    }
