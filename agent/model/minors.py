"""Minors: unique for each type of the Device object, because equal ones lose capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from agent.model.device import HealthState, VendorDevice
from agent.model.inventory import Problem
from agent.model.minor_records import MinorRecord, Records, match_records
from agent.topology.address import sort_key

REASON = "DuplicateMinor"
VENDOR_MINOR = "vendor_minor"  # fact, for people: the number that the vendor gives a device

AddressOf = Callable[[VendorDevice], str | None]
_Item = tuple[str, VendorDevice]  # the vendor whose inventory it is from
_Place = tuple[str, int]  # type of the Device object, minor


def unique_minors(
    devices: Sequence[_Item], address_of: AddressOf, records: Records = ()
) -> tuple[tuple[VendorDevice, ...], list[tuple[str, Problem]]]:
    """Return the devices with minors that are unique within their type, and the problems.

    Takes each device with the vendor whose inventory it is from. A device with a record has the
    minor of the record, whatever its vendor says now; no other device gets a recorded minor. A
    device without one gets the number that its vendor proposes, or the lowest free number if that
    is taken: the devices that a driver names by number choose first, then the order is that of
    the vendors' names and of PCI. Of two devices of one vendor with one number the later in PCI
    order cannot be granted, because the number does not name it.
    """
    ordered = _in_order(devices, address_of)
    matched = match_records([device for _, device in ordered], records)
    doubles = _doubles(ordered, matched)
    proposals = {_place(device) for _, device in ordered} - {None}
    taken = {(record.type, record.minor) for record in records}
    result: list[VendorDevice] = []
    later: list[VendorDevice] = []
    problems: list[tuple[str, Problem]] = []
    for place, (vendor, device) in enumerate(ordered):
        proposal, record = _place(device), matched.get(place)
        if place in doubles:
            text = f"minor {device.minor} of {device.key} is that of {doubles[place].key}, too"
            problems.append((vendor, Problem(reason=REASON, message=text)))
            result.append(_without(device, text))
        elif record is not None and (device.managed or proposal is not None):
            result.append(_with(device, record.minor))
        elif proposal is None:
            result.append(device)
        elif proposal in taken:
            later.append(device)
        else:
            taken.add(proposal)
            result.append(device)
    for device in later:
        place_of = _free(device.kind.wire_type, {*taken, *proposals})
        taken.add(place_of)
        result.append(_with(device, place_of[1]))
    return tuple(result), problems


def _in_order(devices: Sequence[_Item], address_of: AddressOf) -> list[_Item]:
    def order(item: _Item) -> tuple[bool, str, bool, tuple[int, ...], str]:
        vendor, device = item
        address = address_of(device)
        place = sort_key(address) if address else ()
        return device.vendor_minor is None, vendor, address is None, place, device.key

    return sorted(devices, key=order)


def _place(device: VendorDevice) -> _Place | None:
    return None if device.minor is None else (device.kind.wire_type, device.minor)


def _doubles(
    ordered: Sequence[_Item], matched: Mapping[int, MinorRecord]
) -> dict[int, VendorDevice]:
    """Return the devices that have the number of another one of their vendor, with that one.

    The number stays with the device that had it before, else with the first.
    """
    groups: dict[tuple[str, _Place], list[int]] = {}
    for place, (vendor, device) in enumerate(ordered):
        proposal = _place(device)
        if proposal is not None:
            groups.setdefault((vendor, proposal), []).append(place)
    found: dict[int, VendorDevice] = {}
    for (_, (_, minor)), places in groups.items():
        owner = next((p for p in places if p in matched and _had(matched[p], minor)), places[0])
        found |= {place: ordered[owner][1] for place in places if place != owner}
    return found


def _had(record: MinorRecord, minor: int) -> bool:
    number = record.minor if record.vendor_minor is None else record.vendor_minor
    return number == minor


def _free(kind: str, taken: set[_Place | None]) -> _Place:
    minor = 0
    while (kind, minor) in taken:
        minor += 1
    return kind, minor


def _with(device: VendorDevice, minor: int) -> VendorDevice:
    if device.minor in (None, minor):
        return replace(device, minor=minor)
    facts = (*device.facts, (VENDOR_MINOR, str(device.minor)))
    return replace(device, minor=minor, facts=facts)


def _without(device: VendorDevice, why: str) -> VendorDevice:
    facts = (*device.facts, (VENDOR_MINOR, str(device.minor)))
    lost = replace(device, minor=None, vendor_minor=None, facts=facts)
    if device.health.state is HealthState.FAILED:
        return lost  # its fault is the better reason
    return replace(lost, health=replace(device.health, reason=REASON, message=why))
