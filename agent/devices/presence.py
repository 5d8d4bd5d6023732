"""Which devices are really absent: empty nodes, functions that were removed, incomplete ones.

A device whose function the kernel removed stays listed as failed for a while, because pods may
hold it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from msgspec.structs import replace

from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice, pci_address_of
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeSnapshot, RemovedDevice, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciFunction, PciTree

HOST_VENDOR = "host"  # whose problems these are: of reading the machine, not of a vendor

READY_STATE = "ready"

INCOMPLETE_PCI_REASONS = (
    "PciLimit",
    "PciUnreadable",
    "PciVanished",
)  # a device may have been overlooked


def has_devices(snapshot: NodeSnapshot) -> bool:
    """Return whether a device is listed that the Device object of the node has to show.

    Healthy NICs without RDMA are Ethernet NICs, which every node has. A card that another driver
    has is shown.
    """
    return any(
        one.info.kind is not DeviceKind.RDMA
        or one.info.managed
        or not one.info.health.is_in_service
        for one in snapshot.devices.value.devices
    )


def has_no_devices(snapshot: NodeSnapshot) -> bool:
    """Say whether it is certain that there is no device; a doubt of any kind says no.

    A card that was pulled is listed for ten minutes more. A vendor that a setting switches off
    is not asked: a person has said that its cards are not ours.
    """
    return not has_devices(snapshot) and is_inventory_complete(snapshot)


def is_inventory_complete(snapshot: NodeSnapshot) -> bool:
    """Say whether what is listed is certainly all there is.

    The PCI functions were read, and every vendor that has something here answers and misses
    nothing. A driver that is being replaced, a library that is missing, a worker that hangs or
    was released are no proof of anything.
    """
    view = snapshot.devices
    return (
        view.taken_s is not None
        and not view.value.awaited
        and snapshot.pci.taken_s is not None
        and not snapshot.pci.error
        and all(has_current_inventory(vendor) for vendor in snapshot.vendors)
        and all(
            vendor == HOST_VENDOR and problem.reason not in INCOMPLETE_PCI_REASONS
            for vendor, problem in view.value.problems
        )
    )


def has_current_inventory(vendor: VendorState) -> bool:
    """Return whether the vendor is ready and its last answer holds."""
    inventory = vendor.inventory
    return vendor.state == READY_STATE and inventory.value is not None and not inventory.error


PLACE_WAIT_S = 5.0  # that a new device waits for its place

_DISPLAY, _PROCESSING, _COPROCESSOR = 0x03, 0x12, 0x0B40

_INFINIBAND = 0x0207


def missing_parts(snapshot: NodeSnapshot, address: str) -> tuple[str, ...]:
    """Name what a function lacks: driver, infiniband, uverbs, ports; empty if it is complete.

    A function that is of no use to us, that has left again, or that is a virtual one, which its
    owner may leave without a driver, lacks nothing.
    """
    function = snapshot.pci.value.get(address)
    if function is None or function.physfn is not None:
        return ()
    devices = [d.info for d in snapshot.devices.value.devices if pci_address_of(d.info) == address]
    if not devices and not _is_accelerator_or_nic(function):
        return ()
    if function.driver is None:
        return ("driver",)
    if not devices and function.base_class == _INFINIBAND:
        return ("infiniband",)
    return tuple(sorted({what for device in devices for what in _missing_rdma_parts(device)}))


def without_unplaced(
    answer: SnapshotPart[Inventory | None],
    pci: SnapshotPart[PciTree],
    listed: Container[str],
    now_s: float,
) -> Inventory | None:
    """Return an inventory without new devices whose PCI function the host has not shown yet.

    A vendor may see a new card before the PCI tree is read again, and the card would be published
    without a place. A device waits for `PLACE_S` at most; one that is `listed` does not wait.
    """
    inventory = answer.value
    if inventory is None or answer.taken_s is None or pci.taken_s is None:
        return inventory
    if pci.taken_s >= answer.taken_s or now_s - answer.taken_s >= PLACE_WAIT_S:
        return inventory
    waiting = {
        device.key for device in inventory.devices if _awaits_place(device, pci.value, listed)
    }
    if not waiting:
        return inventory
    return replace(
        inventory,
        devices=tuple(device for device in inventory.devices if device.key not in waiting),
        links=tuple(link for link in inventory.links if not waiting & {link.a, link.b}),
        groups=tuple(group for group in inventory.groups if not waiting & set(group.keys)),
    )


def _awaits_place(device: VendorDevice, pci: PciTree, listed: Container[str]) -> bool:
    address = pci_address_of(device)
    return address is not None and device.key not in listed and pci.get(address) is None


def _is_accelerator_or_nic(function: PciFunction) -> bool:
    kind = function.base_class
    if kind is None:
        return False
    return kind in (_INFINIBAND, _COPROCESSOR) or kind >> 8 in (_DISPLAY, _PROCESSING)


def _missing_rdma_parts(device: VendorDevice) -> Iterator[str]:
    if device.kind is not DeviceKind.RDMA:
        return
    if not device.nodes:
        yield "uverbs"
    if not device.ports:
        yield "ports"


REMOVED_SHOWN_S = 600.0  # after the function left; a vendor that keeps a card longer does so itself

MAX_REMOVED = 256

GONE_REASON = "DeviceGone"

GONE_MESSAGE = "the kernel removed its PCI function"


def add_removed(
    removed: Iterable[RemovedDevice], vendor: str, device: VendorDevice, now_s: float, wall_s: float
) -> tuple[RemovedDevice, ...]:
    """Return what is kept from now on; what has been kept long enough goes."""
    others = [one for one in removed if one.until_s > now_s and one.device.key != device.key]
    health = Health(
        state=HealthState.FAILED, reason=GONE_REASON, message=GONE_MESSAGE, since_s=wall_s
    )
    entry = RemovedDevice(
        vendor=vendor, device=replace(device, health=health), until_s=now_s + REMOVED_SHOWN_S
    )
    return (*others[-MAX_REMOVED + 1 :], entry)


def drop_returned(
    departed: Iterable[RemovedDevice], pci: PciTree, read_s: float
) -> tuple[RemovedDevice, ...]:
    """Return those whose function has not come back: of the others their vendor tells.

    `read_s` is when the reading of the tree began; what left since may well be in it.
    """
    return tuple(
        one
        for one in departed
        if one.until_s - REMOVED_SHOWN_S >= read_s or pci.get(pci_address_of(one.device)) is None
    )


def with_removed_devices(
    inventories: Sequence[Inventory], departed: Iterable[RemovedDevice], now_s: float
) -> list[Inventory]:
    """Return the inventories with the departed that nobody lists any more."""
    listed = {device.key for inventory in inventories for device in inventory.devices}
    removed = [one for one in departed if one.until_s > now_s and one.device.key not in listed]
    return [
        replace(inventory, devices=(*inventory.devices, *back))
        if (back := [one.device for one in removed if one.vendor == inventory.vendor])
        else inventory
        for inventory in inventories
    ]
