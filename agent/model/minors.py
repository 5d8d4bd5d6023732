"""Minors: unique for each type of the Device object, because equal ones lose capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent.model.device import HealthState, VendorDevice
from agent.model.inventory import Problem
from agent.topology.address import sort_key

REASON = "DuplicateMinor"
VENDOR_MINOR = "vendor_minor"  # fact: the number that the vendor's own tools use
MAX_HELD = 4096  # devices whose minor is remembered, those that left long ago included

# wire type and key of a device: the minor that its vendor gives it, the one that it has here, and
# whether it was here last
Held = Mapping[tuple[str, str], tuple[int, int, bool]]
NOTHING_HELD: Held = {}
AddressOf = Callable[[VendorDevice], str | None]
_Item = tuple[str, VendorDevice]  # the vendor whose inventory it is from


def unique_minors(
    devices: Sequence[_Item], address_of: AddressOf, held: Held = NOTHING_HELD
) -> tuple[tuple[VendorDevice, ...], list[tuple[str, Problem]]]:
    """Return the devices with minors that are unique within their wire type, and the problems.

    Takes each device with the vendor whose inventory it is from. A device keeps the minor that it
    is held to have, whoever came or left since. Of two others of one vendor with one minor the
    later in PCI order loses it: none is replaced silently, but the second cannot be granted.
    Vendors count on their own, so a card whose minor a card of an earlier vendor (by name) has
    gets the next free number instead.
    """
    desk = _Desk()
    waiting = _in_order(devices, address_of)
    for here in (True, False):  # who comes back gets its number if nobody has it meanwhile
        waiting = [item for item in waiting if not _keeps(desk, item, held, here=here)]
    for vendor, device in waiting:
        desk.give(vendor, device)
    return desk.settled(), desk.problems


def held_minors(devices: Iterable[VendorDevice], before: Held = NOTHING_HELD) -> Held:
    """Return what is held from now on: the minors that these devices have, and earlier ones."""
    now = {}
    for device in devices:
        if device.minor is not None:
            told = dict(device.facts).get(VENDOR_MINOR, "")
            own = int(told) if told.isascii() and told.isdecimal() else device.minor
            now[_name(device)] = (own, device.minor, True)
    left = [(name, (own, minor, False)) for name, (own, minor, _) in before.items()]
    room = max(0, MAX_HELD - len(now))
    others = [item for item in left if item[0] not in now]
    return {**dict(others[max(0, len(others) - room) :]), **now}


def _keeps(desk: _Desk, item: _Item, held: Held, *, here: bool) -> bool:
    """Give a device the minor that it is held to have; `False` if it has none, or has lost it."""
    vendor, device = item
    own, minor, was_here = held.get(_name(device), (None, -1, False))
    same = own is not None and own == device.minor and was_here is here
    return same and desk.take(vendor, device, minor)


def _name(device: VendorDevice) -> tuple[str, str]:
    return device.kind.wire_type, device.key


def _in_order(devices: Sequence[_Item], address_of: AddressOf) -> list[_Item]:
    def order(item: _Item) -> tuple[str, bool, tuple[int, ...], str]:
        vendor, device = item
        address = address_of(device)
        return vendor, address is None, sort_key(address) if address else (), device.key

    return sorted(devices, key=order)


class _Desk:
    """Hands out minors; each goes to one device of a wire type."""

    def __init__(self) -> None:
        self.problems: list[tuple[str, Problem]] = []
        self._taken: dict[tuple[str, int], _Item] = {}
        self._kept: list[VendorDevice] = []
        self._clashes: list[VendorDevice] = []

    def take(self, vendor: str, device: VendorDevice, minor: int) -> bool:
        """Give a device this minor; `False` if another has it."""
        place = (device.kind.wire_type, minor)
        if place in self._taken:
            return False
        self._taken[place] = (vendor, device)
        self._kept.append(device if device.minor == minor else _renumbered(device, minor))
        return True

    def give(self, vendor: str, device: VendorDevice) -> None:
        """Give a device its vendor's minor, or note whose it is already."""
        if device.minor is None:
            self._kept.append(device)
        elif not self.take(vendor, device, device.minor):
            owner, first = self._taken[device.kind.wire_type, device.minor]
            if (owner, first.minor) == (vendor, device.minor):
                self._kept.append(_without(device, first))
                self.problems.append((vendor, Problem(reason=REASON, message=_said(device, first))))
            else:
                self._clashes.append(device)

    def settled(self) -> tuple[VendorDevice, ...]:
        """Return all devices; those that met another vendor's get the next free numbers."""
        highest = {kind: max(n for k, n in self._taken if k == kind) for kind, _ in self._taken}
        for device in self._clashes:
            kind = device.kind.wire_type
            highest[kind] += 1
            self._kept.append(_renumbered(device, highest[kind]))
        return tuple(self._kept)


def _renumbered(device: VendorDevice, minor: int) -> VendorDevice:
    return replace(device, minor=minor, facts=(*device.facts, (VENDOR_MINOR, str(device.minor))))


def _said(device: VendorDevice, first: VendorDevice) -> str:
    return f"minor {device.minor} of {device.key} is that of {first.key}, too"


def _without(device: VendorDevice, first: VendorDevice) -> VendorDevice:
    # the driver's number is the first device's: it does not name this one
    facts = (*device.facts, (VENDOR_MINOR, str(device.minor)))
    lost = replace(device, minor=None, vendor_minor=None, facts=facts)
    if device.health.state is HealthState.FAILED:
        return lost  # its fault is the better reason
    health = replace(device.health, reason=REASON, message=_said(device, first))
    return replace(lost, health=health)
