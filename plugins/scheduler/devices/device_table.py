"""The devices of one node as its Device object lists them, for allocation. Untrusted input.

An unreadable entry does not affect the others: a device without a number is left out, an absent
place is unknown. Amounts are in base units, as plain numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType

import msgspec

from agent.errors import ParseError
from agent.wire_formats.device_object import TOPOLOGY_ANNOTATION
from agent.wire_formats.json_values import JSON_ERRORS
from agent.wire_formats.quantities import parse_quantity

GPU, RDMA, FPGA = "gpu", "rdma", "fpga"
KINDS = (GPU, RDMA, FPGA)

GPU_CORE = "koordinator.sh/gpu-core"
GPU_MEMORY = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"

VENDOR_LABEL = "node.koordinator.sh/gpu-vendor"
MODEL_LABEL = "node.koordinator.sh/gpu-model"
POLICY_LABEL = "node.koordinator.sh/gpu-partition-policy"
WELL_PLANNED_LABEL = "node.koordinator.sh/secondary-device-well-planned"
PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
HONOR = "Honor"
UNKNOWN = -1
MAX_DEVICES = 1024  # of one node
MAX_PARTITIONS = 4096  # of one node

Amounts = Mapping[str, int]
Labels = Mapping[str, str]
NO_AMOUNTS: Amounts = MappingProxyType({})
NO_LABELS: Labels = MappingProxyType({})


class DeviceFunction(msgspec.Struct, frozen=True):
    """One function of a device that is allocated on its own."""

    bus_id: str
    minor: int = UNKNOWN


class FunctionGroup(msgspec.Struct, frozen=True):
    """The virtual functions with the same labels, by bus id as text."""

    labels: Labels
    functions: tuple[DeviceFunction, ...]


class NodeDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device.

    `total` is empty for an unhealthy device; without a topology its places are unknown.
    """

    kind: str
    minor: int
    id: str = ""
    total: Amounts = NO_AMOUNTS
    labels: Labels = NO_LABELS
    has_topology: bool = False
    numa_node: int = UNKNOWN
    socket: int = UNKNOWN
    pcie: str = ""
    switch: str = ""  # bus id of the nearest PCIe switch; empty: none, or not published
    function_groups: tuple[FunctionGroup, ...] = ()


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A group of GPUs that work well together."""

    minors: tuple[int, ...]
    score: int = 0
    ring_bandwidth: int | None = None  # bits per second as published; None: not published
    link_type: str = ""


PartitionTable = Mapping[int, tuple[Partition, ...]]  # by number of GPUs


class DeviceTable(msgspec.Struct, frozen=True, kw_only=True):
    """All devices of one node, by kind and then minor."""

    node: str
    uid: str = ""  # of the object
    devices: Mapping[str, tuple[NodeDevice, ...]]
    labels: Labels = NO_LABELS
    partitions: PartitionTable | None = None  # None: the object has no table

    def of(self, kind: str) -> tuple[NodeDevice, ...]:
        """Return the devices of a kind, by minor."""
        return self.devices.get(kind, ())

    @property
    def is_secondary_well_planned(self) -> bool:
        """Return whether NICs suffice whenever whole GPUs do, so that only GPUs are checked."""
        return self.labels.get(WELL_PLANNED_LABEL) == "true"


class _Topology(msgspec.Struct):
    node_id: int = msgspec.field(name="nodeID", default=UNKNOWN)
    socket_id: int = msgspec.field(name="socketID", default=UNKNOWN)
    pcie_id: str = msgspec.field(name="pcieID", default="")
    bus_id: str = msgspec.field(name="busID", default="")


class _FunctionEntry(msgspec.Struct):
    bus_id: str = msgspec.field(name="busID", default="")
    minor: int = 0


class _FunctionGroupEntry(msgspec.Struct):
    labels: dict[str, str] | None = None
    vfs: list[_FunctionEntry] | None = None


class _SpecDevice(msgspec.Struct):
    type: str = ""
    minor: int | None = None
    id: str = ""
    health: bool = False
    labels: dict[str, str] | None = None
    resources: dict[str, str | int | float] | None = None
    topology: _Topology | None = None
    vf_groups: list[_FunctionGroupEntry] | None = msgspec.field(name="vfGroups", default=None)


class _DeviceMetadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _DeviceSpec(msgspec.Struct):
    devices: list[msgspec.Raw] | None = None


class DeviceObject(msgspec.Struct):
    """The fields of a Device object's JSON that are read; `device_table` makes a table of it."""

    metadata: _DeviceMetadata
    spec: _DeviceSpec | None = None


class _PlaceEntry(msgspec.Struct):
    """One device of the agent's annotation; `chip` is there if a chip has several switches."""

    switch: str = ""
    chip: str = ""


class _PlacesAnnotation(msgspec.Struct):
    devices: dict[str, msgspec.Raw] | None = None  # by bus id


class _PartitionEntry(msgspec.Struct):
    minors: list[int]
    link_type: str = msgspec.field(name="gpuLinkType", default="")
    ring_bandwidth: str | int | None = msgspec.field(name="ringBusBandwidth", default=None)
    # Koordinator's notes write it as text, its code as a number: both are read
    score: int | str = msgspec.field(name="allocationScore", default=0)


_SCORE = re.compile(r"-?[0-9]{1,9}")
_OBJECT = msgspec.json.Decoder(DeviceObject)
_DEVICE = msgspec.json.Decoder(_SpecDevice)
_PLACES = msgspec.json.Decoder(_PlacesAnnotation)
_PLACE = msgspec.json.Decoder(_PlaceEntry)
_PARTITIONS = msgspec.json.Decoder(dict[str, list[_PartitionEntry] | None])


def decode_device_table(data: bytes | msgspec.Raw) -> DeviceTable:
    """Return the devices of a Device object in JSON; raises `ParseError` if it is invalid."""
    try:
        decoded = _OBJECT.decode(data)
    except JSON_ERRORS as error:
        raise ParseError(f"Device object: {type(error).__name__}", "") from error
    return device_table(decoded)


def device_table(decoded: DeviceObject) -> DeviceTable:
    """Return the devices of an object."""
    annotations = decoded.metadata.annotations or {}
    switches = decode_switches(annotations.get(TOPOLOGY_ANNOTATION))
    by_key: dict[tuple[str, int], NodeDevice] = {}
    for raw in ((decoded.spec and decoded.spec.devices) or [])[:MAX_DEVICES]:
        device = _decode_device(raw, switches)
        if device is not None:  # of two devices with one number the first counts
            by_key.setdefault((device.kind, device.minor), device)
    kinds = {kind for kind, _ in by_key}
    return DeviceTable(
        node=decoded.metadata.name,
        uid=decoded.metadata.uid,
        devices={
            kind: tuple(by_key[key] for key in sorted(by_key) if key[0] == kind) for kind in kinds
        },
        labels=decoded.metadata.labels or NO_LABELS,
        partitions=decode_partitions(annotations.get(PARTITIONS)),
    )


def decode_switches(text: str | None) -> Mapping[str, str]:
    """Return the nearest PCIe switch of devices by bus id, from the agent's annotation."""
    if text is None:
        return {}
    try:
        entries = _PLACES.decode(text).devices or {}
    except JSON_ERRORS:
        return {}
    switches: dict[str, str] = {}
    for bus_id, raw in islice(entries.items(), MAX_DEVICES):
        try:
            entry = _PLACE.decode(raw)
        except JSON_ERRORS:
            continue
        if entry.chip or entry.switch:
            switches[bus_id] = entry.chip or entry.switch
    return switches


def _decode_device(raw: msgspec.Raw, switches: Mapping[str, str]) -> NodeDevice | None:
    try:
        entry = _DEVICE.decode(raw)
    except JSON_ERRORS:
        return None
    if entry.minor is None or not entry.type:
        return None
    place = entry.topology or _Topology()
    return NodeDevice(
        kind=entry.type,
        minor=entry.minor,
        id=entry.id,
        total=_amounts(entry.resources or {}) if entry.health else NO_AMOUNTS,
        labels=entry.labels or NO_LABELS,
        has_topology=entry.topology is not None,
        numa_node=place.node_id,
        socket=place.socket_id,
        pcie=place.pcie_id,
        switch=switches.get(place.bus_id, ""),
        function_groups=tuple(
            FunctionGroup(
                group.labels or NO_LABELS,
                tuple(
                    sorted(
                        (DeviceFunction(vf.bus_id, vf.minor) for vf in group.vfs or ()),
                        key=lambda function: function.bus_id,
                    )
                ),
            )
            for group in entry.vf_groups or ()
        ),
    )


def _amounts(quantities: Mapping[str, str | int | float]) -> Amounts:
    parsed = {name: parse_quantity(str(value)) for name, value in quantities.items()}
    return {name: quantity.value for name, quantity in parsed.items() if quantity is not None}


def decode_partitions(text: str | None) -> PartitionTable | None:
    """Return the table of an annotation; `None` without one or if it cannot be read.

    A group of another number of cards than its size is left out.
    """
    if text is None:
        return None
    try:
        decoded = _PARTITIONS.decode(text)
    except JSON_ERRORS:
        return None
    table: dict[int, tuple[Partition, ...]] = {}
    left = MAX_PARTITIONS
    for size, entries in decoded.items():
        if size.isdecimal() and len(size) <= len(str(MAX_DEVICES)):
            partitions = tuple(map(_partition, (entries or ())[:left]))
            left -= len(partitions)
            count = int(size)
            table[count] = tuple(
                partition
                for partition in partitions
                if len(partition.minors) == len(set(partition.minors)) == count
            )
    return table


def _partition(entry: _PartitionEntry) -> Partition:
    score, bandwidth = str(entry.score), entry.ring_bandwidth
    quantity = None if bandwidth is None else parse_quantity(str(bandwidth))
    return Partition(
        minors=tuple(entry.minors),
        score=int(score) if _SCORE.fullmatch(score) else 0,
        ring_bandwidth=None if quantity is None else quantity.value,
        link_type=entry.link_type,
    )


def _hopper_partitions() -> PartitionTable:
    groups = {
        size: [range(first, first + size) for first in range(0, 8, size)] for size in (1, 2, 4, 8)
    }
    return {
        size: tuple(Partition(minors=tuple(group), score=1) for group in of_size)
        for size, of_size in groups.items()
    }


HOPPER_PARTITIONS = _hopper_partitions()  # of eight cards behind NVSwitches
_HOPPER_MODELS = ("H100", "H800", "H20")


def built_in_partitions(labels: Labels) -> PartitionTable | None:
    """Return the table of a model that has a fixed one; `labels` are those of the Node.

    The agent writes the whole model (`H100-80GB-HBM3`), other writers its first word.
    """
    model = labels.get(MODEL_LABEL, "").removeprefix("NVIDIA-").partition("-")[0]
    is_hopper = labels.get(VENDOR_LABEL, "") in ("", "nvidia") and model in _HOPPER_MODELS
    return HOPPER_PARTITIONS if is_hopper else None
