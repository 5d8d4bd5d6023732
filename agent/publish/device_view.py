"""A device as JSON for people and programs: `devices -o json`, `/api/v1/devices`, the page."""

from __future__ import annotations

from agent.model.device import Device, DeviceKind, DevicePartition, Health
from agent.model.inventory import DeviceGroup
from agent.model.snapshot import DeviceView
from agent.publish.wire import sanitise

_SHORT = {DeviceKind.RDMA: "NIC"}


def short_name(device: Device) -> str:
    """Name a device in a few characters: GPU 0, NPU 3, NIC 1.

    Without a minor by the name its kernel driver gave it, else by its key.
    """
    info = device.info
    kind = _SHORT.get(info.kind, info.kind.value.upper())
    if info.minor is not None:
        return f"{kind} {info.minor}"
    return f"{kind} {_kernel_name(device) or device.key}"


def column_name(device: Device, index: int) -> str:
    """Name a device in one narrow word: GPU0, rxe_eth3; `?` and the index without such a name."""
    kind, _, number = short_name(device).partition(" ")
    if device.info.minor is not None:
        return kind + number
    return _kernel_name(device) or f"{kind}?{index}"


def long_name(device: Device) -> str:
    """Say what a device is, beside its short name: what its maker calls it, else its vendor.

    Of an RDMA device the name its kernel driver gave it comes first, unless it is the short one.
    """
    info = device.info
    if info.kind is not DeviceKind.RDMA:
        return dict(info.facts).get("name") or info.model or info.vendor
    name = _kernel_name(device) if info.minor is not None else None
    return " ".join(word for word in (name, info.model or info.vendor) if word)


def _kernel_name(device: Device) -> str | None:
    info = device.info
    return dict(info.facts).get("name") if info.kind is DeviceKind.RDMA else None


def health_json(health: Health) -> dict[str, object]:
    """Return state, reason, message, since when (`null`: nobody saw it), and if it is known now."""
    return {
        "state": health.state.value,
        "reason": health.reason,
        "message": health.message,
        "since": sanitise.known_time(health.since_s),
        "certain": health.certain,
    }


def device_json(device: Device) -> dict[str, object]:
    """Return every fact of one device; an absent one is `None`, never 0 or an empty text."""
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
        "partitions": [_slice_json(part) for part in info.partitions],
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


def _slice_json(part: DevicePartition) -> dict[str, object]:
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
    """Return the memory slices that a slice occupies, `0-3` or `4`; `None` if nobody told."""
    if part.start is None:
        return None
    last = part.start + max(1, part.size or 1) - 1
    return str(part.start) if last == part.start else f"{part.start}-{last}"


def group_rows(
    view: DeviceView, *, aligned: bool = False
) -> tuple[tuple[DeviceGroup, tuple[str, ...]], ...]:
    """Return each group of two and more with the short names of its members, by size.

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
    """Return the document of `devices -o json`: the devices, and those granted together at best."""
    return {
        "devices": [device_json(device) for device in view.devices],
        "groups": [
            {"size": len(names), "link_type": group.link_type, "devices": list(names)}
            for group, names in group_rows(view)
        ],
        "group_policy": view.group_policy,
    }
