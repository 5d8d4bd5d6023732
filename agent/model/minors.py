"""Minors: unique for each type of the Device object, because equal ones lose capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from agent.model.device import HealthState, VendorDevice
from agent.model.inventory import Problem
from agent.topology.address import sort_key

REASON = "DuplicateMinor"
VENDOR_MINOR = "vendor_minor"  # fact: the number that the vendor's own tools use


def unique_minors(
    devices: Sequence[tuple[str, VendorDevice]],
    address_of: Callable[[VendorDevice], str | None],
) -> tuple[tuple[VendorDevice, ...], list[tuple[str, Problem]]]:
    """Return the devices with minors that are unique within their wire type, and the problems.

    Takes each device with the vendor whose inventory it is from. Of two devices of one vendor
    with one minor the later in PCI order loses it: none is replaced silently, but the second
    cannot be granted. Vendors count on their own, so a card whose minor a card of an earlier
    vendor (by name) has gets the next free number instead.
    """
    taken: dict[tuple[str, int], tuple[str, VendorDevice]] = {}
    kept: list[VendorDevice] = []
    clashes: list[tuple[int, VendorDevice]] = []
    problems: list[tuple[str, Problem]] = []

    def order(item: tuple[str, VendorDevice]) -> tuple[str, bool, tuple[int, ...], str]:
        vendor, device = item
        address = address_of(device)
        return vendor, address is None, sort_key(address) if address else (), device.key

    for vendor, device in sorted(devices, key=order):
        if device.minor is None:
            kept.append(device)
            continue
        owner, first = taken.setdefault((device.kind.wire_type, device.minor), (vendor, device))
        if first is device:
            kept.append(device)
        elif owner == vendor:
            kept.append(_without(device, first))
            problems.append((vendor, Problem(reason=REASON, message=_said(device, first))))
        else:
            clashes.append((device.minor, device))
    highest = {kind: max(n for k, n in taken if k == kind) for kind, _ in taken}
    for minor, device in clashes:
        highest[device.kind.wire_type] += 1
        facts = (*device.facts, (VENDOR_MINOR, str(minor)))
        kept.append(replace(device, minor=highest[device.kind.wire_type], facts=facts))
    return tuple(kept), problems


def _said(device: VendorDevice, first: VendorDevice) -> str:
    return f"minor {device.minor} of {device.key} is that of {first.key}, too"


def _without(device: VendorDevice, first: VendorDevice) -> VendorDevice:
    lost = replace(device, minor=None, facts=(*device.facts, (VENDOR_MINOR, str(device.minor))))
    if device.health.state is HealthState.FAILED:
        return lost  # its fault is the better reason
    health = replace(device.health, reason=REASON, message=_said(device, first))
    return replace(lost, health=health)
