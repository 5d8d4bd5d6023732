"""Records of published minors: which device has which, and when a device has left. Pure.

The scheduler accounts devices by type and minor. So a minor that was once published for a device
stays with it across restarts of the agent, drivers and the machine, until the device has left the
node for good: its vendor has answered without it, sysfs lacks it, and no allocation names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from agent.errors import ParseError
from agent.model.cluster.bare import answers
from agent.model.cluster.pods import ENDED
from agent.model.device import VendorDevice
from agent.model.foreign.device_allocated import KEY, MAX_MINOR, decode_allocated
from agent.model.grant.granted import REPLICA
from agent.model.inventory import Inventory
from agent.model.snapshot import NodeSnapshot
from agent.topology.address import parse_address

VERSION = 1
MAX_RECORDS = 1024  # of one node
MAX_ID = 128  # characters
TYPES = ("gpu", "rdma")

_Text = Annotated[str, msgspec.Meta(max_length=MAX_ID)]
_Minor = Annotated[int, msgspec.Meta(ge=0, lt=MAX_MINOR)]


class MinorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The published minor of one device. The minor stays; the other fields follow the device."""

    type: _Text  # of the Device object
    minor: _Minor
    vendor: _Text = ""  # plug-in that lists the device; empty: read from a Device object
    id: _Text = ""  # as in the Device object
    bus_id: _Text = ""
    vendor_minor: int | None = None  # the driver's number when the device was last listed


Records = tuple[MinorRecord, ...]
_UNKNOWN = MinorRecord(type="", minor=0)


class _File(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    devices: list[MinorRecord]


def encode_records(records: Records) -> bytes:
    """Return the content of the state file; equal records give equal bytes."""
    ordered = sorted(records, key=lambda one: (one.type, one.minor))
    return msgspec.json.encode(_File(version=VERSION, devices=ordered)) + b"\n"


def decode_records(data: bytes) -> Records:
    """Return the records of a state file; raise `ParseError`.

    A file of a later version is read as far as this version understands it.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = data[:80].decode("utf-8", "replace")
        raise ParseError(f"published minors: {str(error)[:200]}", text) from error
    if file.version < VERSION:
        raise ParseError("version of the published minors", str(file.version))
    return _distinct(file.devices)


def records_of_object(body: object) -> Records:
    """Return the records in a Device object; entries that are malformed are left out."""
    spec = body.get("spec") if isinstance(body, Mapping) else None
    entries = spec.get("devices") if isinstance(spec, Mapping) else None
    found = (_record_of(entry) for entry in entries) if isinstance(entries, list) else ()
    return _distinct(record for record in found if record is not None)


def _record_of(entry: object) -> MinorRecord | None:
    if not isinstance(entry, Mapping):
        return None
    topology = entry.get("topology")
    fields = {
        "type": entry.get("type"),
        "minor": entry.get("minor"),
        "id": entry.get("id", ""),
        "bus_id": _address(topology.get("busID") if isinstance(topology, Mapping) else None),
    }
    try:
        return msgspec.convert(fields, MinorRecord)
    except msgspec.ValidationError:
        return None


def _address(text: object) -> str:
    try:
        return parse_address(text) if isinstance(text, str) else ""
    except ParseError:
        return ""


def _distinct(records: Iterable[MinorRecord]) -> Records:
    """Leave out records that name no device, or a minor, id or address of an earlier record."""
    taken: set[tuple[str, str, str | int]] = set()
    found: list[MinorRecord] = []
    for record in records:
        names = (("id", record.id), ("bus_id", record.bus_id))
        claims: set[tuple[str, str, str | int]] = {
            (record.type, name, value) for name, value in names if value
        }
        if record.type in TYPES and claims:
            claims.add((record.type, "minor", record.minor))
            if not claims & taken and len(found) < MAX_RECORDS:
                taken |= claims
                found.append(record)
    return tuple(found)


def match_records(devices: Sequence[VendorDevice], records: Records) -> dict[int, MinorRecord]:
    """Return the record of each device that has one, by the device's place in `devices`.

    The id decides, then the PCI address: a card that moves to another slot keeps its minor, and a
    card that replaces another in its slot takes over the minor. Each record is of one device.
    """
    found: dict[int, MinorRecord] = {}
    matched: set[MinorRecord] = set()

    def match(
        names: Iterable[tuple[int, str | None]], index: Mapping[tuple[str, str], MinorRecord]
    ) -> None:
        for place, name in names:
            record = index.get((devices[place].kind.wire_type, name or ""))
            if place not in found and record is not None and record not in matched:
                found[place] = record
                matched.add(record)

    by_id = {(record.type, record.id): record for record in records if record.id}
    by_address = {(record.type, record.bus_id): record for record in records if record.bus_id}
    match(((place, device.uuid) for place, device in enumerate(devices)), by_id)
    match(((place, device.bus_id) for place, device in enumerate(devices)), by_address)
    return found


def renew_records(
    devices: Sequence[VendorDevice], plugins: Mapping[str, str], records: Records
) -> Records:
    """Return the records after these devices were published; `plugins` are by the device's key.

    Records of devices that are not among them stay as they are.
    """
    matched = match_records(devices, records)
    renewed: list[MinorRecord] = []
    replaced: set[MinorRecord] = set()
    for place, device in enumerate(devices):
        if device.minor is None or not 0 <= device.minor < MAX_MINOR:
            continue
        before = matched.get(place, _UNKNOWN)
        replaced.add(before)
        number = device.vendor_minor
        record = MinorRecord(
            type=device.kind.wire_type,
            minor=device.minor,
            vendor=_name(plugins.get(device.key)),
            id=_name(device.uuid) or before.id,
            bus_id=_name(device.bus_id),
            vendor_minor=before.vendor_minor if number is None else number,
        )
        renewed.append(record)
    return _distinct((*renewed, *(record for record in records if record not in replaced)))


def _name(text: str | None) -> str:
    return text if text is not None and len(text) <= MAX_ID else ""


def retain_records(
    records: Records, inventories: Sequence[Inventory], snapshot: NodeSnapshot
) -> Records:
    """Return the records without those whose devices have left the node for good."""
    devices = [device for inventory in inventories for device in inventory.devices]
    listed = set(match_records(devices, records).values())
    left = {one for one in records if one not in listed and _has_left(one, snapshot)}
    if not left:
        return records
    is_allocated = _allocations(snapshot)
    return tuple(one for one in records if one not in left or is_allocated(one))


def _has_left(record: MinorRecord, snapshot: NodeSnapshot) -> bool:
    """Return whether vendor and sysfs agree that an unlisted device is not on the node."""
    states = [v for v in snapshot.vendors if record.vendor in ("", v.vendor)]
    if not all(map(answers, states)):
        return False
    if not record.bus_id:
        # only the vendor can tell; a vendor whose library fails lists devices without numbers
        told = [v.inventory.value for v in states if v.inventory.value is not None]
        devices = [d for one in told for d in one.devices if d.kind.wire_type == record.type]
        return bool(told) and all(device.minor is not None for device in devices)
    pci = snapshot.pci
    return pci.taken_s is not None and not pci.error and pci.value.get(record.bus_id) is None


def _allocations(snapshot: NodeSnapshot) -> Callable[[MinorRecord], bool]:
    """Return the test whether an allocation names a record's device, or may name it."""
    cluster = snapshot.cluster
    if cluster.clustered and not cluster.pods_known:
        return lambda _: True
    texts = [pod.annotation(KEY) for pod in cluster.pods if pod.phase not in ENDED]
    sandboxes = snapshot.runtime.value.sandboxes.values()
    texts += [sandbox.annotation(KEY) for sandbox in sandboxes if not sandbox.stopped]
    names: set[str] = set()
    minors: set[tuple[str, int | None]] = set()
    for text in texts:
        try:
            entries = decode_allocated(text) if text else ()
        except ParseError:
            return lambda _: True  # which devices it names is unknown
        names |= {entry.id.partition(REPLICA)[0] for entry in entries if entry.id}
        minors |= {(entry.type, entry.minor) for entry in entries}
    held = {one.partition(REPLICA)[0] for held in snapshot.served.value.held for one in held.ids}
    numbers = {one.rpartition("-")[2] for one in held}  # of ids such as Ascend910-3

    def is_allocated(record: MinorRecord) -> bool:
        return (
            bool({record.id, record.bus_id} & (names | held))
            or (record.type, record.minor) in minors
            or str(record.vendor_minor) in numbers
        )

    return is_allocated
