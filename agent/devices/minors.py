"""Assigns minors and records which device has which published minor. Pure.

The scheduler accounts devices by type and minor. A minor that was once published for a device
therefore stays with it across restarts of the agent, drivers and the machine, until the device has
left the node: its vendor has answered without it, sysfs lacks it, and no allocation names it.
Minors are unique for each type of the Device object: two equal ones lose capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from agent.devices.presence import has_current_inventory
from agent.errors import ParseError
from agent.snapshot.allocation import REPLICA_SEPARATOR
from agent.snapshot.device import DEVICE_TYPES, HealthState, VendorDevice
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pci import address_sort_key, parse_address
from agent.snapshot.pod import ENDED_PHASES
from agent.wire_formats.device_allocated import ANNOTATION, MAX_MINOR, decode_allocated
from agent.wire_formats.json_values import JSON_ERRORS

VERSION = 1
MAX_RECORDS = 1024  # of one node
MAX_ID = 128  # characters

_RecordText = Annotated[str, msgspec.Meta(max_length=MAX_ID)]

_MinorNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_MINOR)]


class MinorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The published minor of one device. The minor stays; the other fields follow the device."""

    type: _RecordText  # of the Device object
    minor: _MinorNumber
    vendor: _RecordText = ""  # plug-in that lists the device; empty: read from a Device object
    id: _RecordText = ""  # as in the Device object
    bus_id: _RecordText = ""
    vendor_minor: int | None = None  # the driver's number when the device was last listed


MinorRecords = tuple[MinorRecord, ...]

_NO_RECORD = MinorRecord(type="", minor=0)


class _MinorsFile(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    devices: list[MinorRecord]


def encode_records(records: MinorRecords) -> bytes:
    """Return the content of the state file; equal records give equal bytes."""
    ordered = sorted(records, key=lambda record: (record.type, record.minor))
    return msgspec.json.encode(_MinorsFile(version=VERSION, devices=ordered)) + b"\n"


def decode_records(data: bytes) -> MinorRecords:
    """Return the records of a state file; raise `ParseError`.

    A file of a later version is read as far as this version understands it.
    """
    try:
        file = msgspec.json.decode(data, type=_MinorsFile)
    except JSON_ERRORS as error:
        text = data[:80].decode("utf-8", "replace")
        raise ParseError(f"published minors: {str(error)[:200]}", text) from error
    if file.version < VERSION:
        raise ParseError("version of the published minors", str(file.version))
    return _drop_conflicts(file.devices)


def records_of_object(body: object) -> MinorRecords:
    """Return the records in a Device object; entries that are malformed are left out."""
    spec = body.get("spec") if isinstance(body, Mapping) else None
    entries = spec.get("devices") if isinstance(spec, Mapping) else None
    parsed = (_record_of(entry) for entry in entries) if isinstance(entries, list) else ()
    return _drop_conflicts(record for record in parsed if record is not None)


def _record_of(entry: object) -> MinorRecord | None:
    if not isinstance(entry, Mapping):
        return None
    topology = entry.get("topology")
    fields = {
        "type": entry.get("type"),
        "minor": entry.get("minor"),
        "id": entry.get("id", ""),
        "bus_id": _parse_bus_id(topology.get("busID") if isinstance(topology, Mapping) else None),
    }
    try:
        return msgspec.convert(fields, MinorRecord)
    except msgspec.ValidationError:
        return None


def _parse_bus_id(text: object) -> str:
    try:
        return parse_address(text) if isinstance(text, str) else ""
    except ParseError:
        return ""


def _drop_conflicts(records: Iterable[MinorRecord]) -> MinorRecords:
    """Leave out records that name no device, or a minor, id or address of an earlier record."""
    used: set[tuple[str, str, str | int]] = set()
    unique: list[MinorRecord] = []
    for record in records:
        names = (("id", record.id), ("bus_id", record.bus_id))
        keys: set[tuple[str, str, str | int]] = {
            (record.type, name, value) for name, value in names if value
        }
        if record.type in DEVICE_TYPES and keys:
            keys.add((record.type, "minor", record.minor))
            if not keys & used and len(unique) < MAX_RECORDS:
                used |= keys
                unique.append(record)
    return tuple(unique)


def match_records(devices: Sequence[VendorDevice], records: MinorRecords) -> dict[int, MinorRecord]:
    """Return the record of each device that has one, by the device's index in `devices`.

    The id decides, then the PCI address: a card that moves to another slot keeps its minor, and a
    card that replaces another in its slot takes over the minor. Each record matches one device.
    """
    matches: dict[int, MinorRecord] = {}
    matched: set[MinorRecord] = set()

    def match(
        names: Iterable[tuple[int, str | None]], index: Mapping[tuple[str, str], MinorRecord]
    ) -> None:
        for position, name in names:
            record = index.get((devices[position].kind.wire_type, name or ""))
            if position not in matches and record is not None and record not in matched:
                matches[position] = record
                matched.add(record)

    by_id = {(record.type, record.id): record for record in records if record.id}
    by_address = {(record.type, record.bus_id): record for record in records if record.bus_id}
    match(((position, device.uuid) for position, device in enumerate(devices)), by_id)
    match(((position, device.bus_id) for position, device in enumerate(devices)), by_address)
    return matches


def renew_records(
    devices: Sequence[VendorDevice], plugins: Mapping[str, str], records: MinorRecords
) -> MinorRecords:
    """Return the records once these devices are published; `plugins` are by the device's key.

    Records of devices that are not among them stay as they are.
    """
    matched = match_records(devices, records)
    renewed: list[MinorRecord] = []
    replaced: set[MinorRecord] = set()
    for position, device in enumerate(devices):
        if device.minor is None or not 0 <= device.minor < MAX_MINOR:
            continue
        previous = matched.get(position, _NO_RECORD)
        replaced.add(previous)
        number = device.vendor_minor
        record = MinorRecord(
            type=device.kind.wire_type,
            minor=device.minor,
            vendor=_bounded_name(plugins.get(device.key)),
            id=_bounded_name(device.uuid) or previous.id,
            bus_id=_bounded_name(device.bus_id),
            vendor_minor=previous.vendor_minor if number is None else number,
        )
        renewed.append(record)
    return _drop_conflicts((*renewed, *(record for record in records if record not in replaced)))


def _bounded_name(text: str | None) -> str:
    return text if text is not None and len(text) <= MAX_ID else ""


def retain_records(
    records: MinorRecords, inventories: Sequence[Inventory], snapshot: NodeSnapshot
) -> MinorRecords:
    """Return the records without those whose devices have left the node for good."""
    devices = [device for inventory in inventories for device in inventory.devices]
    listed = set(match_records(devices, records).values())
    removed = {
        record for record in records if record not in listed and _is_removed(record, snapshot)
    }
    if not removed:
        return records
    is_allocated = _allocation_test(snapshot)
    return tuple(record for record in records if record not in removed or is_allocated(record))


def _is_removed(record: MinorRecord, snapshot: NodeSnapshot) -> bool:
    """Return whether vendor and sysfs agree that an unlisted device is not on the node."""
    states = [v for v in snapshot.vendors if record.vendor in ("", v.vendor)]
    if not all(map(has_current_inventory, states)):
        return False
    if not record.bus_id:
        # only the vendor can tell; a vendor whose library fails lists devices without numbers
        inventories = [v.inventory.value for v in states if v.inventory.value is not None]
        devices = [d for i in inventories for d in i.devices if d.kind.wire_type == record.type]
        return bool(inventories) and all(device.minor is not None for device in devices)
    pci = snapshot.pci
    return pci.taken_s is not None and not pci.error and pci.value.get(record.bus_id) is None


def _allocation_test(snapshot: NodeSnapshot) -> Callable[[MinorRecord], bool]:
    """Return the test of whether an allocation names a record's device, or may name it."""
    cluster = snapshot.cluster
    if cluster.is_clustered and not cluster.has_pod_list:
        return lambda _: True
    texts = [pod.annotation(ANNOTATION) for pod in cluster.pods if pod.phase not in ENDED_PHASES]
    sandboxes = snapshot.runtime.value.sandboxes.values()
    texts += [sandbox.annotation(ANNOTATION) for sandbox in sandboxes if not sandbox.stopped]
    names: set[str] = set()
    minors: set[tuple[str, int | None]] = set()
    for text in texts:
        try:
            entries = decode_allocated(text) if text else ()
        except ParseError:
            return lambda _: True  # which devices it names is unknown
        names |= {entry.id.partition(REPLICA_SEPARATOR)[0] for entry in entries if entry.id}
        minors |= {(entry.type, entry.minor) for entry in entries}
    kubelet_ids = {
        device_id.partition(REPLICA_SEPARATOR)[0]
        for allocation in snapshot.served.value.held
        for device_id in allocation.ids
    }
    # of ids such as Ascend910-3
    numbers = {device_id.rpartition("-")[2] for device_id in kubelet_ids}

    def is_allocated(record: MinorRecord) -> bool:
        return (
            bool({record.id, record.bus_id} & (names | kubelet_ids))
            or (record.type, record.minor) in minors
            or str(record.vendor_minor) in numbers
        )

    return is_allocated


DUPLICATE_MINOR = "DuplicateMinor"

VENDOR_MINOR_FACT = "vendor_minor"  # fact, for people: the number that the vendor gives a device

AddressOf = Callable[[VendorDevice], str | None]

_VendorItem = tuple[str, VendorDevice]  # the vendor whose inventory it is from

_TypedMinor = tuple[str, int]  # type of the Device object, minor


def assign_minors(
    devices: Sequence[_VendorItem], address_of: AddressOf, records: MinorRecords = ()
) -> tuple[tuple[VendorDevice, ...], list[tuple[str, Problem]]]:
    """Return the devices with minors that are unique within their type, and the problems.

    `devices` are pairs of vendor and device. A device with a record has the minor of the record,
    whatever its vendor proposes; no other device gets a recorded minor. A device without a record
    gets the number that its vendor proposes, or the lowest free number if that is taken: devices
    with a number of the driver come first, then the order is by vendor and PCI address. Of two
    devices of one vendor with one number, the later one in PCI order cannot be allocated, because
    the number does not identify it.
    """
    ordered = _sort_devices(devices, address_of)
    matched = match_records([device for _, device in ordered], records)
    duplicates = _duplicates(ordered, matched)
    proposals = {_proposed_minor(device) for _, device in ordered} - {None}
    used = {(record.type, record.minor) for record in records}
    result: list[VendorDevice] = []
    waiting_devices: list[VendorDevice] = []
    problems: list[tuple[str, Problem]] = []
    for position, (vendor, device) in enumerate(ordered):
        proposal, record = _proposed_minor(device), matched.get(position)
        if position in duplicates:
            text = (
                f"minor {device.minor} of {device.key} is that of {duplicates[position].key}, too"
            )
            problems.append((vendor, Problem(reason=DUPLICATE_MINOR, message=text)))
            result.append(_without_minor(device, text))
        elif record is not None and (device.managed or proposal is not None):
            result.append(_with_minor(device, record.minor))
        elif proposal is None:
            result.append(device)
        elif proposal in used:
            waiting_devices.append(device)
        else:
            used.add(proposal)
            result.append(device)
    for device in waiting_devices:
        free_minor = _free_minor(device.kind.wire_type, {*used, *proposals})
        used.add(free_minor)
        result.append(_with_minor(device, free_minor[1]))
    return tuple(result), problems


def _sort_devices(devices: Sequence[_VendorItem], address_of: AddressOf) -> list[_VendorItem]:
    def order(item: _VendorItem) -> tuple[bool, str, bool, tuple[int, ...], str]:
        vendor, device = item
        address = address_of(device)
        place = address_sort_key(address) if address else ()
        return device.vendor_minor is None, vendor, address is None, place, device.key

    return sorted(devices, key=order)


def _proposed_minor(device: VendorDevice) -> _TypedMinor | None:
    return None if device.minor is None else (device.kind.wire_type, device.minor)


def _duplicates(
    ordered: Sequence[_VendorItem], matched: Mapping[int, MinorRecord]
) -> dict[int, VendorDevice]:
    """Return the devices that have the number of another one of their vendor, with that one.

    The number stays with the device that had it before, else with the first.
    """
    groups: dict[tuple[str, _TypedMinor], list[int]] = {}
    for position, (vendor, device) in enumerate(ordered):
        proposal = _proposed_minor(device)
        if proposal is not None:
            groups.setdefault((vendor, proposal), []).append(position)
    duplicates: dict[int, VendorDevice] = {}
    for (_, (_, minor)), places in groups.items():
        owner = next(
            (p for p in places if p in matched and _had_minor(matched[p], minor)), places[0]
        )
        duplicates |= {position: ordered[owner][1] for position in places if position != owner}
    return duplicates


def _had_minor(record: MinorRecord, minor: int) -> bool:
    number = record.minor if record.vendor_minor is None else record.vendor_minor
    return number == minor


def _free_minor(kind: str, used: set[_TypedMinor | None]) -> _TypedMinor:
    minor = 0
    while (kind, minor) in used:
        minor += 1
    return kind, minor


def _with_minor(device: VendorDevice, minor: int) -> VendorDevice:
    if device.minor in (None, minor):
        return replace(device, minor=minor)
    facts = (*device.facts, (VENDOR_MINOR_FACT, str(device.minor)))
    return replace(device, minor=minor, facts=facts)


def _without_minor(device: VendorDevice, reason: str) -> VendorDevice:
    facts = (*device.facts, (VENDOR_MINOR_FACT, str(device.minor)))
    stripped = replace(device, minor=None, vendor_minor=None, facts=facts)
    if device.health.state is HealthState.FAILED:
        return stripped  # its fault is the better reason
    return replace(stripped, health=replace(device.health, reason=DUPLICATE_MINOR, message=reason))
