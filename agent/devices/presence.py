"""Which devices are really absent: empty nodes, removed functions, incomplete functions.

A device whose function the kernel removed stays listed as failed for a while, because pods may
still use it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from msgspec.structs import replace

from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice, pci_address_of
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeSnapshot, RemovedDevice, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciFunction, PciTree

HOST_VENDOR = "host"  # vendor of problems of the machine's own files

READY_STATE = "ready"

# a device may be missing from the PCI tree
INCOMPLETE_PCI_REASONS = ("PciLimit", "PciUnreadable", "PciVanished")


def has_devices(snapshot: NodeSnapshot) -> bool:
    """Return whether the Device object of the node has to list a device.

    Healthy NICs without RDMA are Ethernet NICs, which every node has. A card bound to another
    driver is listed.
    """
    return any(
        device.info.kind is not DeviceKind.RDMA
        or device.info.managed
        or not device.info.health.is_in_service
        for device in snapshot.devices.value.devices
    )


def has_no_devices(snapshot: NodeSnapshot) -> bool:
    """Return whether it is certain that there is no device; any doubt means no.

    A card that was removed is listed for ten more minutes. A vendor that is disabled by a setting
    does not count.
    """
    return not has_devices(snapshot) and is_inventory_complete(snapshot)


def is_inventory_complete(snapshot: NodeSnapshot) -> bool:
    """Return whether the list of devices is certainly complete.

    It is if the PCI functions were read, and every vendor with devices here answers and reports no
    problem. A driver that is being replaced, a missing library, or a worker that hangs or was
    released proves nothing.
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
    """Return whether the vendor is ready and its last answer is valid."""
    inventory = vendor.inventory
    return vendor.state == READY_STATE and inventory.value is not None and not inventory.error


PLACE_WAIT_S = 5.0  # for the place of a new device
_DISPLAY, _PROCESSING, _COPROCESSOR = 0x03, 0x12, 0x0B40
_INFINIBAND = 0x0207


def missing_parts(snapshot: NodeSnapshot, address: str) -> tuple[str, ...]:
    """Return what a function lacks: driver, infiniband, uverbs, ports; empty if it is complete.

    A function of another kind, one that was removed, and a virtual function, whose owner may leave
    it without a driver, lack nothing.
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
    return tuple(sorted({part for device in devices for part in _missing_rdma_parts(device)}))


def without_unplaced(
    answer: SnapshotPart[Inventory | None],
    pci: SnapshotPart[PciTree],
    listed: Container[str],
    now_s: float,
) -> Inventory | None:
    """Return an inventory without new devices whose PCI function was not read yet.

    A vendor may report a new card before the PCI tree is read again, and the card would be
    published without a place. A device waits for `PLACE_WAIT_S` at most; a `listed` device does not
    wait.
    """
    inventory = answer.value
    if inventory is None or answer.taken_s is None or pci.taken_s is None:
        return inventory
    if pci.taken_s >= answer.taken_s or now_s - answer.taken_s >= PLACE_WAIT_S:
        return inventory
    waiting_keys = {
        device.key for device in inventory.devices if _awaits_place(device, pci.value, listed)
    }
    if not waiting_keys:
        return inventory
    return replace(
        inventory,
        devices=tuple(device for device in inventory.devices if device.key not in waiting_keys),
        links=tuple(link for link in inventory.links if not waiting_keys & {link.a, link.b}),
        groups=tuple(group for group in inventory.groups if not waiting_keys & set(group.keys)),
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


REMOVED_SHOWN_S = 600.0  # after the function was removed; a vendor may list a removed card longer
MAX_REMOVED = 256
GONE_REASON = "DeviceGone"
GONE_MESSAGE = "the kernel removed its PCI function"


def add_removed(
    removed: Iterable[RemovedDevice], vendor: str, device: VendorDevice, now_s: float, wall_s: float
) -> tuple[RemovedDevice, ...]:
    """Return the removed devices with a new one; entries whose time has passed are dropped."""
    other_entries = [
        entry for entry in removed if entry.until_s > now_s and entry.device.key != device.key
    ]
    health = Health(
        state=HealthState.FAILED, reason=GONE_REASON, message=GONE_MESSAGE, since_s=wall_s
    )
    new_entry = RemovedDevice(
        vendor=vendor, device=replace(device, health=health), until_s=now_s + REMOVED_SHOWN_S
    )
    return (*other_entries[-MAX_REMOVED + 1 :], new_entry)


def drop_returned(
    removed: Iterable[RemovedDevice], pci: PciTree, read_s: float
) -> tuple[RemovedDevice, ...]:
    """Return the removed devices whose function has not come back.

    `read_s` is when the reading of the tree began; functions removed since may still be in it.
    """
    return tuple(
        entry
        for entry in removed
        if entry.until_s - REMOVED_SHOWN_S >= read_s
        or pci.get(pci_address_of(entry.device)) is None
    )


def with_removed_devices(
    inventories: Sequence[Inventory], removed_devices: Iterable[RemovedDevice], now_s: float
) -> list[Inventory]:
    """Return the inventories with the removed devices that no vendor lists."""
    listed = {device.key for inventory in inventories for device in inventory.devices}
    removed = [
        entry
        for entry in removed_devices
        if entry.until_s > now_s and entry.device.key not in listed
    ]
    return [
        replace(inventory, devices=(*inventory.devices, *entries))
        if (entries := [entry.device for entry in removed if entry.vendor == inventory.vendor])
        else inventory
        for inventory in inventories
    ]
