"""A decoded grant, and which of a vendor's devices it means."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.errors import ParseError
from agent.model.device import DevicePartition, VendorDevice
from agent.model.grant.refusal import GrantRefused, Refusal
from agent.topology.address import parse_address, sort_key

CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
REPLICA = "::"  # between a card's uuid and the number of its replica, where time is shared


class GrantedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a grant. An `id` decides; the minor only where the grant names no id."""

    type: str  # of the Device object: gpu, rdma
    id: str = ""  # of the device, of one of its slices, or of a replica of either
    minor: int | None = None
    resources: tuple[tuple[str, int], ...] = ()  # amounts in base units: bytes, percent
    vfs: tuple[str, ...] = ()  # addresses of virtual functions
    template: str = ""  # of a slice that the runtime or the agent makes
    partition: str = ""  # uuid of the slice that was made for this container

    def amount(self, name: str) -> int | None:
        """Return a resource's amount; `None` if it was not granted."""
        return next((value for key, value in self.resources if key == name), None)


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What one container was granted, in the order written."""

    devices: tuple[GrantedDevice, ...] = ()
    channels: tuple[int, ...] = ()  # of IMEX


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a grant with what it means; `partition` if it is a slice of the device."""

    entry: GrantedDevice
    device: VendorDevice
    partition: DevicePartition | None = None

    @property
    def vendor_minor(self) -> int:
        """Return the driver's number of the device; `DeviceUnknown` for a device without one."""
        if self.device.vendor_minor is None:
            text = f"the driver's number of {self.device.key} is not known"
            raise GrantRefused(Refusal.DEVICE_UNKNOWN, text)
        return self.device.vendor_minor


def matches(grant: Grant, devices: Iterable[VendorDevice]) -> tuple[Match, ...]:
    """Return the entries that mean one of these devices, in the grant's order, each once.

    Entries of other vendors' devices are passed over. `PartitionMissing` if an entry names a
    slice that its device does not have.
    """
    known = tuple(devices)
    # equal entries mean the same: they are less to compare than what they mean
    return tuple(match for entry in dict.fromkeys(grant.devices) for match in _match(entry, known))


def by_bus_id(found: Iterable[Match]) -> tuple[Match, ...]:
    """Return matches in PCI order, which is the order libraries number the cards in."""
    return tuple(sorted(found, key=_order))


def _order(match: Match) -> tuple[bool, tuple[int, ...], int, int, int]:
    part, address = match.partition, _address(match.device.bus_id)
    gi, ci = (part.instance, part.compute_instance) if part else (None, None)
    numbers = _number(match.device.vendor_minor), _number(gi), _number(ci)
    return not address, address, *numbers


def _address(bus_id: str | None) -> tuple[int, ...]:
    """Return what orders a PCI address; nothing for what is none."""
    try:
        return sort_key(parse_address(bus_id)) if bus_id else ()
    except ParseError:
        return ()


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _means(entry: GrantedDevice, name: str, device: VendorDevice) -> bool:
    if entry.id:
        return name in (device.uuid, device.bus_id)
    return entry.minor is not None and entry.minor == device.minor


def _match(entry: GrantedDevice, known: tuple[VendorDevice, ...]) -> Iterable[Match]:
    name = entry.id.partition(REPLICA)[0]
    for device in known:
        part = _slice(device, name) if name and device.partitions else None
        if part is None and not _means(entry, name, device):
            continue
        if device.kind.wire_type != entry.type:
            continue
        if part is None and entry.partition:
            part = _slice(device, entry.partition)
            if part is None:
                told = f"{device.key} has no slice {entry.partition}"
                raise GrantRefused(Refusal.PARTITION_MISSING, told)
        yield Match(entry=entry, device=device, partition=part)
        return


def _slice(device: VendorDevice, uuid: str) -> DevicePartition | None:
    return next((part for part in reversed(device.partitions) if part.uuid == uuid), None)
