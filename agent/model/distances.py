"""How far the devices of a view are from each other."""

from __future__ import annotations

from agent.model.device import Device
from agent.model.snapshot import DeviceView
from agent.topology.distance import PIX, SELF, Seat, levels, pair, seat_of
from agent.topology.pci import PciFunction, PciTree

Levels = dict[tuple[str, str], str]


def address_of(device: Device) -> str | None:
    """Return the function a device is on; of soft-RoCE its parent's; `None` without a place."""
    return device.place.path[-1] if device.place.path else None


def device_levels(view: DeviceView, tree: PciTree) -> Levels:
    """Return the level of each pair of functions with devices, smaller address first.

    The work on the tree is one look for each device; a pair costs a comparison.
    """
    seats = [_seat(device, tree) for device in view.devices if device.place.path]
    return levels(seats, view.links, tree.switch_links)


def level_of(a: Device, b: Device, found: Levels) -> str | None:
    """Look two devices up; `None` if one of them has no place."""
    if a.key == b.key:
        return SELF
    first, second = address_of(a), address_of(b)
    if first is None or second is None:
        return None
    return PIX if first == second else found.get(pair(first, second))


def _seat(device: Device, tree: PciTree) -> Seat:
    place = device.place
    address = place.path[-1]
    bridges = place.path[1:-1] if place.root else place.path[:-1]
    function = tree.get(address) or PciFunction(address=address, root=place.root, bridges=bridges)
    return seat_of(tree, function, place.numa_node, place.virtual)
