"""Devices whose function the kernel removed: listed as failed for a while, pods may hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from agent.model.assemble import parent_of
from agent.model.device import Health, HealthState, VendorDevice
from agent.model.inventory import Inventory
from agent.model.snapshot import Departed
from agent.topology.pci import PciTree

KEEP_S = 600.0  # after the function left; a vendor that keeps a card longer does so itself
MAX_DEPARTED = 256
GONE = "DeviceGone"
MESSAGE = "the kernel removed its PCI function"


def with_departure(
    known: Iterable[Departed], vendor: str, device: VendorDevice, now_s: float, wall_s: float
) -> tuple[Departed, ...]:
    """Return what is kept from now on; what has been kept long enough goes."""
    others = [one for one in known if one.until_s > now_s and one.device.key != device.key]
    health = Health(state=HealthState.FAILED, reason=GONE, message=MESSAGE, since_s=wall_s)
    gone = Departed(vendor=vendor, device=replace(device, health=health), until_s=now_s + KEEP_S)
    return (*others[-MAX_DEPARTED + 1 :], gone)


def still_away(departed: Iterable[Departed], pci: PciTree, read_s: float) -> tuple[Departed, ...]:
    """Return those whose function has not come back: of the others their vendor tells.

    `read_s` is when the reading of the tree began; what left since may well be in it.
    """
    return tuple(
        one
        for one in departed
        if one.until_s - KEEP_S >= read_s or pci.get(parent_of(one.device)) is None
    )


def with_departed(
    inventories: Sequence[Inventory], departed: Iterable[Departed], now_s: float
) -> list[Inventory]:
    """Return the inventories with the departed that nobody lists any more."""
    listed = {device.key for inventory in inventories for device in inventory.devices}
    kept = [one for one in departed if one.until_s > now_s and one.device.key not in listed]
    return [
        replace(inventory, devices=(*inventory.devices, *back))
        if (back := [one.device for one in kept if one.vendor == inventory.vendor])
        else inventory
        for inventory in inventories
    ]
