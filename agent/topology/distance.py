"""The distance of two devices, in the terms of NVML, nvidia-smi and NCCL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Protocol

import msgspec

from agent.snapshot.cpu import UNKNOWN_NODE
from agent.snapshot.device import Device
from agent.snapshot.node import DeviceView
from agent.snapshot.pci import PciFunction, PciTree, address_sort_key, slot_of
from agent.topology.switches import switch_chips, switches_above

SELF = "X"

PIX = "PIX"  # one switch between them

PXB = "PXB"  # several switches, no host bridge

PHB = "PHB"  # the host bridge

NODE = "NODE"  # several host bridges of one memory node

SYS = "SYS"  # memory nodes, or not known

NVB = "NVB"  # over one more GPU

# Direct links by type, nearest first, and how a count of them is written.
_LINK_FORMATS = {"NVLink": "NV{}", "C2C": "C2C", "HCCS": "HCCS", "MLULink": "ML{}"}

_NVME = 0x0108  # class of NVMe controllers

MAX_DISKS = 256

_NVLINK = "NVLink"

_NVSWITCH = "NVSwitch"

SwitchLinks = frozenset[tuple[str, str]]


class DirectLink(Protocol):
    """Links between two devices as a vendor counts them."""

    @property
    def a(self) -> str:
        """Bus id of one end."""
        ...

    @property
    def b(self) -> str:
        """Bus id of the other end."""
        ...

    @property
    def type(self) -> str:
        """NVLink, NVSwitch, C2C, HCCS, MLULink."""
        ...

    @property
    def count(self) -> int:
        """Active links."""
        ...


class PciPosition(msgspec.Struct, frozen=True, kw_only=True):
    """What the distance of a function to others depends on."""

    address: str
    card: str  # its slot; of a virtual function that of the physical one
    root: str | None = None
    bridges: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    node: int = UNKNOWN_NODE
    virtual: tuple[str, ...] = ()  # root and switches of the topology file, if sysfs has no switch


def position_of(
    tree: PciTree, function: PciFunction, node: int, virtual: tuple[str, ...] = ()
) -> PciPosition:
    """Gather a function's seat once, so that each pair costs a comparison only."""
    above = switches_above(tree, function)
    physical = tree.physical(function) or function
    return PciPosition(
        address=function.address,
        card=slot_of(physical.address),
        root=function.root,
        bridges=function.bridges,
        switches=above,
        chips=switch_chips(tree, above),
        node=node,
        virtual=() if above else virtual,
    )


def pci_level(
    a: PciPosition, b: PciPosition, linked: SwitchLinks = frozenset(), *, by_chip: bool = False
) -> str:
    """Return X, PIX, PXB, PHB, NODE or SYS; the first that holds, the same both ways.

    `linked` are switches cabled to each other, each pair in both orders or smaller first.
    `by_chip` takes two levels of one switch chip for one, as NCCL does to plan rings.
    """
    if a.address == b.address:
        return SELF
    if a.card == b.card:
        return PIX
    root, switch_level = _switch_level(a, b, by_chip=by_chip)
    if switch_level is not None:
        return switch_level
    if any((x, y) in linked or (y, x) in linked for x in a.switches for y in b.switches):
        return PXB
    if root:
        return PHB
    return NODE if a.node == b.node != UNKNOWN_NODE else SYS


def _switch_level(a: PciPosition, b: PciPosition, *, by_chip: bool) -> tuple[bool, str | None]:
    """Say whether two seats share their root, and the level if a switch or a bus joins them."""
    if a.virtual and b.virtual:
        same_root, above_a, above_b = a.virtual[0] == b.virtual[0], a.virtual[1:], b.virtual[1:]
    else:
        same_root = a.root == b.root is not None
        above_a, above_b = (s.chips if by_chip else s.switches for s in (a, b))
    if not same_root:
        return False, None
    if above_a and above_b and above_a[-1] == above_b[-1]:
        return True, PIX
    if a.bridges and a.bridges == b.bridges:  # two functions on one secondary bus
        return True, PIX
    return True, PXB if set(above_a) & set(above_b) else None


class LinkTable:
    """Direct links of all devices, summed up once for any number of questions.

    An NVSwitch link between two of `devices` counts for these two; one to anything else leads
    to a switch, and joins all devices that have links to it.
    """

    def __init__(self, links: Iterable[DirectLink], devices: Iterable[str] = ()) -> None:
        self._devices = frozenset(devices)
        self._between: dict[str, dict[str, Counter[str]]] = {}  # one end, other end, type: count
        for link in links:
            if link.count > 0 and link.a != link.b:
                for end, other in ((link.a, link.b), (link.b, link.a)):
                    kinds = self._between.setdefault(end, {}).setdefault(other, Counter())
                    kinds[link.type] += link.count

    def level(self, a: str, b: str) -> str | None:
        """Return NV#, C2C, HCCS, ML#, NVB, or `None` when no link leads from one to the other.

        Through NVSwitch the number is the smaller of both devices' links to the switches.
        """
        direct = self._between.get(a, {}).get(b, Counter())
        nvlinks = direct[_NVLINK] + (direct[_NVSWITCH] or self._switched(a, b))
        counts = {**direct, _NVLINK: nvlinks}
        for kind, written in _LINK_FORMATS.items():
            if counts.get(kind):
                return written.format(counts[kind])
        others = sorted(kind for kind in direct if kind != _NVSWITCH)
        if others:
            return others[0]
        return NVB if self._reached(a, _NVLINK) & self._reached(b, _NVLINK) else None

    def _reached(self, end: str, kind: str) -> frozenset[str]:
        others = self._between.get(end, {})
        return frozenset(other for other, kinds in others.items() if kinds[kind])

    def _switched(self, a: str, b: str) -> int:
        ours, theirs = (self._reached(end, _NVSWITCH) - self._devices for end in (a, b))
        if not ours & theirs:
            return 0
        totals = [
            sum(self._between[end][switch][_NVSWITCH] for switch in reached)
            for end, reached in ((a, ours), (b, theirs))
        ]
        return min(totals)


def ordered_pair(a: str, b: str) -> tuple[str, str]:
    """Return two addresses, the smaller by number first."""
    return (a, b) if address_sort_key(a) <= address_sort_key(b) else (b, a)


def pair_levels(
    seats: Sequence[PciPosition],
    links: Iterable[DirectLink] = (),
    linked: SwitchLinks = frozenset(),
) -> dict[tuple[str, str], str]:
    """Return the level of each pair of seats, smaller address first, in order of address."""
    table = LinkTable(links, [s.address for s in seats])
    ordered = sorted(
        {s.address: s for s in seats}.values(), key=lambda s: address_sort_key(s.address)
    )
    return {
        (a.address, b.address): table.level(a.address, b.address) or pci_level(a, b, linked)
        for a, b in combinations(ordered, 2)
    }


def nvme_positions(tree: PciTree) -> tuple[PciPosition, ...]:
    """Return the seats of NVMe controllers, without virtual functions and what fell off."""
    disks = (f for f in tree.functions.values() if f.base_class == _NVME and not f.gone)
    positions = [position_of(tree, disk, UNKNOWN_NODE) for disk in disks if disk.physfn is None]
    return tuple(positions[:MAX_DISKS])


def near_disks(
    seat: PciPosition, disks: Iterable[PciPosition], linked: SwitchLinks = frozenset()
) -> tuple[str, ...]:
    """Return the disks that only switches are between: what GPUDirect Storage is worth it for."""
    return tuple(disk.address for disk in disks if pci_level(seat, disk, linked) in (PIX, PXB))


LevelByPair = dict[tuple[str, str], str]


def function_address(device: Device) -> str | None:
    """Return the function a device is on; of soft-RoCE its parent's; `None` without a place."""
    return device.place.path[-1] if device.place.path else None


def device_levels(view: DeviceView, tree: PciTree) -> LevelByPair:
    """Return the level of each pair of functions with devices, smaller address first.

    The work on the tree is one look for each device; a pair costs a comparison.
    """
    seats = [device_position(device, tree) for device in view.devices if device.place.path]
    return pair_levels(seats, view.links, tree.switch_links)


def level_between(a: Device, b: Device, levels: LevelByPair) -> str | None:
    """Look two devices up; `None` if one of them has no place."""
    if a.key == b.key:
        return SELF
    first, second = function_address(a), function_address(b)
    if first is None or second is None:
        return None
    return PIX if first == second else levels.get(ordered_pair(first, second))


def device_position(device: Device, tree: PciTree) -> PciPosition:
    """Return where a device sits in the PCIe tree and in which NUMA node."""
    place = device.place
    address = place.path[-1]
    bridges = place.path[1:-1] if place.root else place.path[:-1]
    function = tree.get(address) or PciFunction(address=address, root=place.root, bridges=bridges)
    return position_of(tree, function, place.numa_node, place.virtual)
