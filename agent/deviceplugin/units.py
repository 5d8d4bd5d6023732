"""What the kubelet's ids stand for: cards, their slices, virtual functions, and replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from agent.deviceplugin.base import Listed
from agent.model.device import Device, DevicePartition, VendorDevice
from agent.model.grant.granted import REPLICA, Grant, GrantedDevice
from plugins.injection.preferred.board import UNKNOWN_MINOR
from plugins.injection.preferred.slots import Slot

MIM = "MIMMode"  # why a Cambricon card is out of service while its instances are not

Place = tuple[str, str, str]  # key of the device, uuid of its slice, address of its function


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One id of one resource; a card as a whole if it is neither slice, function nor replica."""

    id: str
    device: Device
    partition: DevicePartition | None = None
    function: str = ""  # address of a virtual function
    replica: int | None = None

    @property
    def base(self) -> str:
        """Return the id without the number of a replica."""
        return self.id if self.replica is None else self.id.rpartition(REPLICA)[0]

    @property
    def place(self) -> Place:
        """Return what of the hardware it is; replicas of one thing are the same."""
        return self.device.key, self.partition.uuid if self.partition else "", self.function

    @property
    def order(self) -> tuple[int, tuple[int, ...], str, int]:
        """Return what lists are sorted by: the same for the same devices."""
        minor = self.device.info.minor
        replica = -1 if self.replica is None else self.replica
        first = UNKNOWN_MINOR if minor is None else minor
        return first, self.number, self.base, replica

    @property
    def number(self) -> tuple[int, ...]:
        """Return what orders the slices of one card."""
        part = self.partition
        if part is None:
            return ()
        return tuple(-1 if n is None else n for n in (part.instance, part.compute_instance))

    @property
    def whole(self) -> bool:
        """Say whether nobody else may use the card beside who has this."""
        return self.partition is None and not self.function and self.replica is None

    @property
    def healthy(self) -> bool:
        """Say whether new pods may have it; a suspect card serves, as in the Device object."""
        card = self.device.info.health
        if self.partition is None:
            return card.in_service
        return self.partition.health.in_service and (card.in_service or card.reason == MIM)

    def granted(self) -> GrantedDevice:
        """Return the entry of a grant that means it."""
        info = self.device.info
        return GrantedDevice(
            type=info.kind.wire_type,
            id=(self.partition.uuid if self.partition else info.uuid) or info.bus_id or "",
            minor=info.minor,
            vfs=(self.function,) if self.function else (),
        )


class Served(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One resource with what its ids stand for."""

    name: str
    vendor: str
    units: Mapping[str, Unit]  # by id, in order
    devices: tuple[VendorDevice, ...] = ()  # all of the vendor

    @cached_property
    def shared(self) -> bool:
        """Say whether the resource has replicas."""
        return any(unit.replica is not None for unit in self.units.values())

    @cached_property
    def slots(self) -> Mapping[str, Slot]:
        """Return the parts of cards by id, each made once: there may be thousands."""
        return {name: slot_of(unit) for name, unit in self.units.items() if not unit.whole}

    @cached_property
    def by_card(self) -> Mapping[str, tuple[Unit, ...]]:
        """Return the ids of each device by its key."""
        table: dict[str, list[Unit]] = {}
        for unit in self.units.values():
            table.setdefault(unit.device.key, []).append(unit)
        return {key: tuple(units) for key, units in table.items()}

    @cached_property
    def capacity(self) -> Mapping[str, int]:
        """Return how many parts each card has."""
        return Counter(slot.card for slot in self.slots.values())


def slot_of(unit: Unit) -> Slot:
    """Return a replica as a slot of what it is a replica of, a slice as one of its card."""
    minor = unit.device.info.minor
    return Slot(
        id=unit.id,
        card=unit.device.key if unit.replica is None else "\0".join(unit.place),
        minor=UNKNOWN_MINOR if minor is None else minor,
        number=unit.number if unit.replica is None else (unit.replica,),
    )


def served(
    name: str, vendor: str, units: Iterable[Unit], devices: tuple[VendorDevice, ...] = ()
) -> Served:
    """Put a resource together; of two units of one id the first in order stays."""
    ordered = sorted(units, key=lambda unit: unit.order)
    table: dict[str, Unit] = {}
    for unit in ordered:
        table.setdefault(unit.id, unit)
    return Served(name=name, vendor=vendor, units=MappingProxyType(table), devices=devices)


def listed(unit: Unit) -> Listed:
    """Return how the kubelet is told of it; an unknown memory node gives no topology."""
    node = unit.device.place.numa_node
    numa_nodes = (node,) if node >= 0 else ()
    return Listed(id=unit.id, healthy=unit.healthy, numa_nodes=numa_nodes)


def replicas(unit: Unit, count: int) -> tuple[Unit, ...]:
    """Return a unit so many times, numbered from 0."""
    return tuple(replace(unit, id=f"{unit.id}{REPLICA}{n}", replica=n) for n in range(count))


def grant_of(units: Iterable[Unit]) -> Grant:
    """Return the grant of these units; of replicas of one thing it has one entry."""
    entries = {unit.place: unit.granted() for unit in units}
    return Grant(devices=tuple(entries.values()))
