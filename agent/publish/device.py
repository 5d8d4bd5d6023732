"""The Device object: what the scheduler may grant on this node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from agent.model.cluster.bare import has_devices, is_bare
from agent.model.device import Device, DeviceKind, Pairs, VfGroup
from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Desired, Json
from agent.publish.wire import sanitise
from agent.publish.wire.annotations import KEYS, own_annotations
from agent.publish.wire.conditions import conditions
from agent.publish.wire.owner import owner_of, waits_for_node
from agent.publish.wire.partitions import PARTITIONS, POLICY_LABEL, partitions_text, policy_of
from agent.publish.wire.vendor_facts import vendor_annotations

API_VERSION = "scheduling.koordinator.sh/v1alpha1"
KIND = "Device"
FILE_NAME = "device.yaml"  # in standalone mode
VENDOR_LABEL = "node.koordinator.sh/gpu-vendor"
MODEL_LABEL = "node.koordinator.sh/gpu-model"
DRIVER_LABEL = "node.koordinator.sh/gpu-driver-version"
_ONE_MODEL = "nvidia"  # the vendor whose mixed cards have no label upstream

UNMANAGED = "Unmanaged"
NO_MINOR = "NoMinor"
MINOR_OUT_OF_RANGE = "MinorOutOfRange"
SAME_MINOR = "SameMinor"
SAME_UUID = "SameUUID"
MEMORY = "koordinator.sh/gpu-memory"


class Selection(msgspec.Struct, frozen=True):
    """Which devices the object lists, by type and number, and why each other one is missing."""

    published: tuple[Device, ...]
    left_out: tuple[tuple[Device, str], ...]


def select(devices: Iterable[Device]) -> Selection:
    """Choose what can be published; the order of the input does not matter.

    A device without a number crashes the scheduler, a number used twice loses one device, and an
    id used twice grants one for the other: of two devices with one number or id the smaller bus
    id wins.
    """
    devices = tuple(devices)
    times_seen = Counter(device.key for device in devices)

    def order(device: Device) -> tuple[str, str]:
        return device.key, repr(device) if times_seen[device.key] > 1 else ""

    chosen: dict[tuple[str, int], Device] = {}
    ids: set[tuple[str, str]] = set()
    left_out: list[tuple[Device, str]] = []
    for device in sorted(devices, key=order):
        kind, minor, uuid = device.info.kind.wire_type, device.info.minor, _id(device)
        if not device.info.managed:
            left_out.append((device, UNMANAGED))
        elif minor is None:
            left_out.append((device, NO_MINOR))
        elif minor < 0 or sanitise.int32(minor) is None:
            left_out.append((device, MINOR_OUT_OF_RANGE))
        elif uuid and (kind, uuid) in ids:
            left_out.append((device, SAME_UUID))
        elif chosen.setdefault((kind, minor), device) is not device:
            left_out.append((device, SAME_MINOR))
        else:
            ids.add((kind, uuid))
    return Selection(tuple(chosen[key] for key in sorted(chosen)), tuple(left_out))


def _id(device: Device) -> str:
    return sanitise.plain(device.info.uuid or "")


class DevicePublisher(msgspec.Struct, frozen=True):
    """Publishes the Device object of this node."""

    interval_s: float = 3.0
    name: str = "device"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:  # noqa: ARG002 - see Publisher
        """Return the object, or nothing before every vendor has answered or failed to.

        What sysfs alone shows of the cards of a vendor that is only starting grants nothing: it
        would take them from the pods that hold them. Nothing is published before the minors of
        an earlier agent are known. In a cluster nothing is published before the Node is known,
        which owns the object, and a node without devices has none: one that is
        there goes when that is certain, and stays as it is while it is not.
        """
        view = snapshot.devices
        if view.taken_s is None or not view.value.is_final:
            return ()
        if waits_for_node(snapshot):
            return ()
        if snapshot.cluster.clustered and not has_devices(snapshot):
            return (_none(snapshot.node.name),) if is_bare(snapshot) else ()
        published = select(snapshot.devices.value.devices).published
        vendors, vendor_keys = vendor_annotations(snapshot, published)
        return (
            Desired(
                file_name=FILE_NAME,
                api_version=API_VERSION,
                kind=KIND,
                name=snapshot.node.name,
                body={
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "metadata": _metadata(snapshot, published, vendors),
                    "spec": _spec(published, snapshot.node.boot_time_s),
                },
                owned_annotations=(*KEYS, PARTITIONS, *vendor_keys),
                owned_labels=(VENDOR_LABEL, MODEL_LABEL, DRIVER_LABEL, POLICY_LABEL),
            ),
        )


def _none(name: str) -> Desired:
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
    return Desired(
        file_name=FILE_NAME,
        api_version=API_VERSION,
        kind=KIND,
        name=name,
        body=body,
        absent=True,
    )


def _metadata(
    snapshot: NodeSnapshot, published: tuple[Device, ...], vendors: Mapping[str, str]
) -> Json:
    node, view = snapshot.node, snapshot.devices.value
    table = partitions_text(view, published)
    policy = policy_of(view)
    return {
        "name": node.name,
        "labels": labels(snapshot, published) | ({POLICY_LABEL: policy} if policy else {}),
        "annotations": {
            **own_annotations(snapshot, published),
            **vendors,
            **({PARTITIONS: table} if table else {}),
        },
        **owner_of(snapshot),
    }


def labels(snapshot: NodeSnapshot, published: tuple[Device, ...]) -> dict[str, str]:
    """Return vendor, model and driver of the accelerators; the lowest number's vendor counts.

    Cards of NVIDIA of several models have neither a model nor a driver label, as upstream; of
    other vendors the most frequent model counts.
    """
    cards = [device for device in published if device.info.kind is not DeviceKind.RDMA]
    if not cards:
        return {}
    vendor = cards[0].info.vendor
    found = {VENDOR_LABEL: vendor}
    models = Counter(c.info.model for c in cards if c.info.vendor == vendor and c.info.model)
    if len(models) <= 1 or vendor != _ONE_MODEL:
        found[MODEL_LABEL] = (_most_frequent(models) or "").removeprefix("NVIDIA ")
        found[DRIVER_LABEL] = _driver_version(snapshot, cards[0]) or ""
    valid = {key: sanitise.label_value(value) for key, value in found.items()}
    return {key: value for key, value in valid.items() if value}


def _most_frequent(models: Counter[str]) -> str | None:
    """Return the model of most cards; of equal ones that of the lowest number, which came first."""
    return max(models, key=lambda model: models[model], default=None)


def _driver_version(snapshot: NodeSnapshot, card: Device) -> str | None:
    """Return the version of the driver that told of the card."""
    for state in snapshot.vendors:
        inventory = state.inventory.value
        if inventory is not None and (
            state.vendor == card.info.vendor or any(d.key == card.key for d in inventory.devices)
        ):
            return inventory.driver_version
    return None


def _spec(published: tuple[Device, ...], boot_time_s: float) -> Json:
    devices = [_device_info(device, boot_time_s) for device in published]
    return {"devices": devices} if devices else {}


def _device_info(device: Device, boot_time_s: float) -> Json:
    info = device.info
    entry = {
        "type": info.kind.wire_type,
        "id": _id(device),
        "minor": info.minor,
        "moduleID": sanitise.int32(info.module_id),
        "health": info.health.in_service,
        "labels": {sanitise.plain(key): sanitise.plain(value) for key, value in info.labels},
        "resources": _resources(info.resources),
        "topology": _topology(device),
        "vfGroups": [_vf_group(group) for group in info.vf_groups if group.vfs],
        "conditions": conditions(device, boot_time_s),
    }
    return {key: value for key, value in entry.items() if value not in (None, "", {}, [])}


def _resources(named: Pairs) -> Json:
    """Return what can be granted; nothing of a card without memory, which the scheduler divides by.

    An amount that is no quantity, or of nothing, is left out.
    """
    found: dict[str, object] = {
        sanitise.plain(name): value
        for name, value in named
        if sanitise.plain(name) and sanitise.is_some(value)
    }
    memory_is_odd = MEMORY in dict(named) and MEMORY not in found
    return {} if memory_is_odd else found


def _topology(device: Device) -> Json:
    """Return the place; always there, because the scheduler gives up on a node without it."""
    place = device.place
    topology: dict[str, object] = {
        "socketID": _number(place.socket),
        "nodeID": _number(place.numa_node),
        "pcieID": sanitise.plain(device.pcie_scope_id),
    }
    if device.info.bus_id:
        topology["busID"] = sanitise.plain(device.info.bus_id)
    return topology


def _vf_group(group: VfGroup) -> Json:
    vfs = [
        {"minor": _number(vf.minor), "busID": sanitise.plain(vf.bus_id)}
        for vf in sorted(group.vfs, key=lambda vf: (vf.bus_id, vf.minor))
    ]
    if not group.labels:
        return {"vfs": vfs}
    return {
        "labels": {sanitise.plain(key): sanitise.plain(value) for key, value in group.labels},
        "vfs": vfs,
    }


def _number(value: int) -> int:
    """Return a number of the wire; -1, which says unknown, for what an int32 cannot hold."""
    fitting = sanitise.int32(value)
    return -1 if fitting is None else fitting
