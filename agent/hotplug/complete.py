"""What a function that came still lacks to be usable, judged from the snapshot alone."""

from __future__ import annotations

from collections.abc import Container, Iterator

from msgspec.structs import replace

from agent.model.assemble import parent_of
from agent.model.device import DeviceKind, VendorDevice
from agent.model.inventory import Inventory
from agent.model.part import Part
from agent.model.snapshot import NodeSnapshot
from agent.topology.pci import PciFunction, PciTree

PLACE_S = 5.0  # that a new device waits for its place

_DISPLAY, _PROCESSING, _COPROCESSOR = 0x03, 0x12, 0x0B40
_INFINIBAND = 0x0207


def missing(snapshot: NodeSnapshot, address: str) -> tuple[str, ...]:
    """Name what a function lacks: driver, infiniband, uverbs, ports; empty if it is complete.

    A function that is of no use to us, that has left again, or that is a virtual one, which its
    owner may leave without a driver, lacks nothing.
    """
    function = snapshot.pci.value.get(address)
    if function is None or function.physfn is not None:
        return ()
    devices = [d.info for d in snapshot.devices.value.devices if parent_of(d.info) == address]
    if not devices and not _ours(function):
        return ()
    if function.driver is None:
        return ("driver",)
    if not devices and function.base_class == _INFINIBAND:
        return ("infiniband",)
    return tuple(sorted({what for device in devices for what in _lacks(device)}))


def without_unplaced(
    answer: Part[Inventory | None], pci: Part[PciTree], listed: Container[str], now_s: float
) -> Inventory | None:
    """Return an inventory without new devices whose PCI function the host has not shown yet.

    A vendor may see a new card before the PCI tree is read again, and the card would be published
    without a place. A device waits for `PLACE_S` at most; one that is `listed` does not wait.
    """
    inventory = answer.value
    if inventory is None or answer.taken_s is None or pci.taken_s is None:
        return inventory
    if pci.taken_s >= answer.taken_s or now_s - answer.taken_s >= PLACE_S:
        return inventory
    waiting = {device.key for device in inventory.devices if _waits(device, pci.value, listed)}
    if not waiting:
        return inventory
    return replace(
        inventory,
        devices=tuple(device for device in inventory.devices if device.key not in waiting),
        links=tuple(link for link in inventory.links if not waiting & {link.a, link.b}),
        groups=tuple(group for group in inventory.groups if not waiting & set(group.keys)),
    )


def _waits(device: VendorDevice, pci: PciTree, listed: Container[str]) -> bool:
    address = parent_of(device)
    return address is not None and device.key not in listed and pci.get(address) is None


def _ours(function: PciFunction) -> bool:
    kind = function.base_class
    if kind is None:
        return False
    return kind in (_INFINIBAND, _COPROCESSOR) or kind >> 8 in (_DISPLAY, _PROCESSING)


def _lacks(device: VendorDevice) -> Iterator[str]:
    if device.kind is not DeviceKind.RDMA:
        return
    if not device.nodes:
        yield "uverbs"
    if not device.ports:
        yield "ports"
