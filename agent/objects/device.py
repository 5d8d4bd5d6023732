"""Renders the Device object: allocatable devices, conditions, and the table of partitions.

The annotation `gpu-partitions` has the format of Koordinator 1.7: size as text to a list of
partitions, `allocationScore` an integer. All scores are equal because readers disagree on whether
the lowest or the highest wins. Of equal partitions the scheduler takes the first one, so aligned
partitions come first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from agent.devices.presence import has_devices, has_no_devices
from agent.objects.device_annotations import (
    agent_annotations,
    vendor_annotations,
)
from agent.snapshot.device import (
    Device,
    DeviceKind,
    Health,
    HealthState,
    Pairs,
    VirtualFunctionGroup,
)
from agent.snapshot.inventory import DeviceGroup
from agent.snapshot.node import DeviceView, NodeSnapshot, is_owner_unknown, node_uid
from agent.snapshot.publications import DesiredObject, Json
from agent.wire_formats import api_values
from agent.wire_formats.device_object import (
    DEVICE_API_VERSION,
    DEVICE_KIND,
    VENDORS_WITHOUT_MIXED_MODELS,
    device_id,
    select_devices,
)
from agent.wire_formats.json_values import JsonDict, compact_json
from agent.wire_formats.quantities import format_decimal

DEVICE_FILE_NAME = "device.yaml"  # in standalone mode
VENDOR_LABEL = "node.koordinator.sh/gpu-vendor"
MODEL_LABEL = "node.koordinator.sh/gpu-model"
DRIVER_LABEL = "node.koordinator.sh/gpu-driver-version"
GPU_MEMORY = "koordinator.sh/gpu-memory"


class DevicePublisher(msgspec.Struct, frozen=True):
    """Publishes the Device object of this node."""

    interval_s: float = 3.0
    name: str = "device"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:  # noqa: ARG002 - see Publisher
        """Return the object, or nothing until every vendor has answered or failed to.

        Before that, the cards that only sysfs shows have no resources, and publishing them would
        take them from the pods that use them. Nothing is published before the minors of an earlier
        agent are loaded. In a cluster nothing is published before the Node is known, because it
        owns the object. A node without devices has no object: an existing one is deleted once that
        is certain, and stays unchanged until then.
        """
        view = snapshot.devices
        if view.taken_s is None or not view.value.is_final:
            return ()
        if is_owner_unknown(snapshot):
            return ()
        if snapshot.cluster.is_clustered and not has_devices(snapshot):
            return (_absent_device(snapshot.node.name),) if has_no_devices(snapshot) else ()
        published = select_devices(snapshot.devices.value.devices).published
        vendors = vendor_annotations(snapshot, published)
        return (
            DesiredObject(
                file_name=DEVICE_FILE_NAME,
                api_version=DEVICE_API_VERSION,
                kind=DEVICE_KIND,
                name=snapshot.node.name,
                body={
                    "apiVersion": DEVICE_API_VERSION,
                    "kind": DEVICE_KIND,
                    "metadata": _metadata(snapshot, published, vendors),
                    "spec": _spec(published, snapshot.node.boot_time_s),
                },
            ),
        )


def _absent_device(name: str) -> DesiredObject:
    body = {"apiVersion": DEVICE_API_VERSION, "kind": DEVICE_KIND, "metadata": {"name": name}}
    return DesiredObject(
        file_name=DEVICE_FILE_NAME,
        api_version=DEVICE_API_VERSION,
        kind=DEVICE_KIND,
        name=name,
        body=body,
        is_absent=True,
    )


def _metadata(
    snapshot: NodeSnapshot, published: tuple[Device, ...], vendors: Mapping[str, str]
) -> Json:
    node, view = snapshot.node, snapshot.devices.value
    table = partition_table(view, published)
    policy = partition_policy(view)
    return {
        "name": node.name,
        "labels": accelerator_labels(snapshot, published)
        | ({PARTITION_POLICY_LABEL: policy} if policy else {}),
        "annotations": {
            **agent_annotations(snapshot, published),
            **vendors,
            **({PARTITIONS_ANNOTATION: table} if table else {}),
        },
        **api_values.owner_metadata(snapshot.node.name, node_uid(snapshot)),
    }


def accelerator_labels(snapshot: NodeSnapshot, published: tuple[Device, ...]) -> dict[str, str]:
    """Return vendor, model and driver of the accelerators; the vendor is that of the lowest minor.

    NVIDIA cards of several models have neither a model nor a driver label, as upstream. For other
    vendors the most frequent model is used.
    """
    cards = [device for device in published if device.info.kind is not DeviceKind.RDMA]
    if not cards:
        return {}
    vendor = cards[0].info.vendor
    labels = {VENDOR_LABEL: vendor}
    models = Counter(c.info.model for c in cards if c.info.vendor == vendor and c.info.model)
    if len(models) <= 1 or vendor not in VENDORS_WITHOUT_MIXED_MODELS:
        labels[MODEL_LABEL] = (_most_frequent(models) or "").removeprefix("NVIDIA ")
        labels[DRIVER_LABEL] = _driver_version(snapshot, cards[0]) or ""
    valid = {key: api_values.label_value(value) for key, value in labels.items()}
    return {key: value for key, value in valid.items() if value}


def _most_frequent(models: Counter[str]) -> str | None:
    """Return the most frequent model; of equally frequent ones that of the lowest minor."""
    return max(models, key=lambda model: models[model], default=None)


def _driver_version(snapshot: NodeSnapshot, card: Device) -> str | None:
    """Return the version of the driver whose vendor reported the card."""
    for state in snapshot.vendors:
        inventory = state.inventory.value
        if inventory is not None and (
            state.vendor == card.info.vendor or any(d.key == card.key for d in inventory.devices)
        ):
            return inventory.driver_version
    return None


def _spec(published: tuple[Device, ...], boot_time_s: float) -> Json:
    devices = [_device_entry(device, boot_time_s) for device in published]
    return {"devices": devices} if devices else {}


def _device_entry(device: Device, boot_time_s: float) -> Json:
    info = device.info
    entry = {
        "type": info.kind.wire_type,
        "id": device_id(device),
        "minor": info.minor,
        "moduleID": api_values.as_int32(info.module_id),
        "health": info.health.is_in_service,
        "labels": {
            api_values.clean_text(key): api_values.clean_text(value) for key, value in info.labels
        },
        "resources": _resources(info.resources),
        "topology": _topology(device),
        "vfGroups": [_vf_group(group) for group in info.vf_groups if group.vfs],
        "conditions": device_conditions(device, boot_time_s),
    }
    return {key: value for key, value in entry.items() if value not in (None, "", {}, [])}


def _resources(named: Pairs) -> Json:
    """Return the allocatable resources; none for a card without memory.

    The scheduler divides by the memory. Amounts that are invalid or zero are left out.
    """
    resources: dict[str, object] = {
        api_values.clean_text(name): value
        for name, value in named
        if api_values.clean_text(name) and api_values.is_positive_quantity(value)
    }
    is_memory_invalid = GPU_MEMORY in dict(named) and GPU_MEMORY not in resources
    return {} if is_memory_invalid else resources


def _topology(device: Device) -> Json:
    """Return the place; always present, because the scheduler rejects a node without it."""
    place = device.place
    topology: dict[str, object] = {
        "socketID": _int32_or_unknown(place.socket),
        "nodeID": _int32_or_unknown(place.numa_node),
        "pcieID": api_values.clean_text(device.pcie_scope_id),
    }
    if device.info.bus_id:
        topology["busID"] = api_values.clean_text(device.info.bus_id)
    return topology


def _vf_group(group: VirtualFunctionGroup) -> Json:
    vfs = [
        {"minor": _int32_or_unknown(vf.minor), "busID": api_values.clean_text(vf.bus_id)}
        for vf in sorted(group.vfs, key=lambda vf: (vf.bus_id, vf.minor))
    ]
    if not group.labels:
        return {"vfs": vfs}
    return {
        "labels": {
            api_values.clean_text(key): api_values.clean_text(value) for key, value in group.labels
        },
        "vfs": vfs,
    }


def _int32_or_unknown(value: int) -> int:
    """Return the number, or -1 for unknown if it does not fit into an int32."""
    fitting = api_values.as_int32(value)
    return -1 if fitting is None else fitting


HEALTHY = "Healthy"
SCHEDULABLE = "Schedulable"
UNSCHEDULABLE = "unschedulable"  # the fact in which a vendor says why a card has no resources
MAX_CONDITIONS = 16  # of one device

_CONDITION_TYPE = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)"
)

_MAX_CONDITION_TYPE = 128  # the schema allows 316

_UNSCHEDULABLE_MESSAGES = {
    "MIGEnabled": "the card is partitioned; its instances are granted by the kubelet",
    "HostVGPU": "the card serves virtual machines",
    "MemoryUnknown": "the driver does not tell how much memory the card has",
}


def device_conditions(device: Device, boot_time_s: float) -> list[JsonDict]:
    """Return a device's conditions, one of each type, `Healthy` first, then the vendor's own.

    A NIC has `Healthy` only while it is not healthy. Without a known change the transition time is
    the node's start, so that two renderings are equal. A type that an API server would refuse is
    left out.
    """
    health = device.info.health
    is_healthy = health.state is HealthState.HEALTHY and health.certain
    conditions: dict[str, JsonDict] = {}

    def add(kind: str, status: str, cause: tuple[str, str], since_s: float | None) -> None:
        conditions.setdefault(
            kind,
            {
                "type": kind,
                "status": status,
                "reason": api_values.condition_reason(cause[0]),
                "message": api_values.condition_message(cause[1], cause[0]),
                "lastTransitionTime": api_values.format_first_time(since_s, boot_time_s),
            },
        )

    if device.info.kind is not DeviceKind.RDMA or not is_healthy:
        add(HEALTHY, _condition_status(health), (health.reason, health.message), health.since_s)
    unschedulable_reason = dict(device.info.facts).get(UNSCHEDULABLE)
    if unschedulable_reason:
        text = _UNSCHEDULABLE_MESSAGES.get(
            unschedulable_reason, "nothing of this device can be granted"
        )
        add(SCHEDULABLE, "False", (unschedulable_reason, text), None)
    for condition in device.info.conditions:
        if (
            condition.type != HEALTHY
            and len(condition.type) <= _MAX_CONDITION_TYPE
            and _CONDITION_TYPE.fullmatch(condition.type)
        ):
            add(
                condition.type,
                str(condition.status),
                (condition.reason, condition.message),
                condition.since_s,
            )
    return list(conditions.values())[:MAX_CONDITIONS]


def _condition_status(health: Health) -> str:
    if not health.certain:
        return "Unknown"
    return "True" if health.is_in_service else "False"


PARTITIONS_ANNOTATION = "scheduling.koordinator.sh/gpu-partitions"
PARTITION_POLICY_LABEL = "node.koordinator.sh/gpu-partition-policy"
PARTITION_POLICIES = ("Prefer", "Honor")
MAX_MINOR = 62  # the scheduler keeps minors as bits of a signed 64-bit number
ALLOCATION_SCORE = 1
MAX_PARTITIONS_BYTES = 64 * 1024


def partition_table(view: DeviceView, published: Iterable[Device]) -> str:
    """Return the table as compact JSON; empty if there is none, or if it cannot be used.

    A group is included if all its members are published accelerators with a minor. A minor beyond
    `MAX_MINOR` makes the table empty, because the scheduler would take it for another card. So does
    a size beyond `MAX_PARTITIONS_BYTES`, for which an API server would refuse the whole object.
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
        str(size): [
            _partition_entry(members, group)
            for members, group in sorted(rows.items(), key=_partition_order)
        ]
        for size, rows in sorted(table.items())
    }
    text = compact_json(document, sort_keys=False)
    return text if len(text.encode()) <= MAX_PARTITIONS_BYTES else ""


def partition_policy(view: DeviceView) -> str | None:
    """Return the label's value; `None` if the policy is unknown to Koordinator."""
    return view.group_policy if view.group_policy in PARTITION_POLICIES else None


def _partition_order(row: tuple[tuple[int, ...], DeviceGroup]) -> tuple[bool, tuple[int, ...]]:
    minors, group = row
    return not group.aligned, minors


def _partition_entry(members: tuple[int, ...], group: DeviceGroup) -> dict[str, object]:
    entry: dict[str, object] = {"minors": list(members)}
    if link_type := api_values.clean_text(group.link_type):
        entry["gpuLinkType"] = link_type
    if group.bandwidth_bytes_per_s:
        entry["ringBusBandwidth"] = format_decimal(group.bandwidth_bytes_per_s)
    entry["allocationScore"] = ALLOCATION_SCORE
    return entry
