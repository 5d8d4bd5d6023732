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
NODE = "NODE"  # several host bridges of one NUMA node
SYS = "SYS"  # different NUMA nodes, or unknown
NVB = "NVB"  # through one more GPU

# direct links by type, nearest first, with the text for their number
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
    """The facts that the distance of a function to others depends on."""

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
    """Collect a function's position once, so that each pair costs only a comparison."""
    switches = switches_above(tree, function)
    physical = tree.physical(function) or function
    return PciPosition(
        address=function.address,
        card=slot_of(physical.address),
        root=function.root,
        bridges=function.bridges,
        switches=switches,
        chips=switch_chips(tree, switches),
        node=node,
        virtual=() if switches else virtual,
    )


def pci_level(
    a: PciPosition, b: PciPosition, linked: SwitchLinks = frozenset(), *, by_chip: bool = False
) -> str:
    """Return X, PIX, PXB, PHB, NODE or SYS: the first that applies; symmetric.

    `linked` are switches cabled to each other, each pair in both orders or smaller first. `by_chip`
    treats two levels of one switch chip as one, as NCCL does to plan rings.
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
    """Return whether two positions share their root, and the level if a switch joins them."""
    if a.virtual and b.virtual:
        same_root, switches_a, switches_b = (
            a.virtual[0] == b.virtual[0],
            a.virtual[1:],
            b.virtual[1:],
        )
    else:
        same_root = a.root == b.root is not None
        switches_a, switches_b = (s.chips if by_chip else s.switches for s in (a, b))
    if not same_root:
        return False, None
    if switches_a and switches_b and switches_a[-1] == switches_b[-1]:
        return True, PIX
    if a.bridges and a.bridges == b.bridges:  # two functions on one secondary bus
        return True, PIX
    return True, PXB if set(switches_a) & set(switches_b) else None


class LinkTable:
    """Direct links of all devices, summed up once for many look-ups.

    An NVSwitch link between two of `devices` counts for these two; any other one leads to a switch,
    and joins all devices that have links to it.
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
        """Return NV#, C2C, HCCS, ML#, NVB, or `None` without a link between them.

        Through NVSwitch the number is the smaller of both devices' links to the switches.
        """
        direct = self._between.get(a, {}).get(b, Counter())
        nvlinks = direct[_NVLINK] + (direct[_NVSWITCH] or self._links_through_switches(a, b))
        counts = {**direct, _NVLINK: nvlinks}
        for kind, text_format in _LINK_FORMATS.items():
            if counts.get(kind):
                return text_format.format(counts[kind])
        other_types = sorted(kind for kind in direct if kind != _NVSWITCH)
        if other_types:
            return other_types[0]
        return NVB if self._linked_ends(a, _NVLINK) & self._linked_ends(b, _NVLINK) else None

    def _linked_ends(self, end: str, kind: str) -> frozenset[str]:
        links = self._between.get(end, {})
        return frozenset(other for other, kinds in links.items() if kinds[kind])

    def _links_through_switches(self, a: str, b: str) -> int:
        switches_a, switches_b = (
            self._linked_ends(end, _NVSWITCH) - self._devices for end in (a, b)
        )
        if not switches_a & switches_b:
            return 0
        totals = [
            sum(self._between[end][switch][_NVSWITCH] for switch in switches)
            for end, switches in ((a, switches_a), (b, switches_b))
        ]
        return min(totals)


def ordered_pair(a: str, b: str) -> tuple[str, str]:
    """Return two addresses, the numerically smaller one first."""
    return (a, b) if address_sort_key(a) <= address_sort_key(b) else (b, a)


def pair_levels(
    positions: Sequence[PciPosition],
    links: Iterable[DirectLink] = (),
    linked: SwitchLinks = frozenset(),
) -> dict[tuple[str, str], str]:
    """Return the level of each pair of positions, smaller address first, in order of address."""
    table = LinkTable(links, [s.address for s in positions])
    ordered = sorted(
        {s.address: s for s in positions}.values(), key=lambda s: address_sort_key(s.address)
    )
    return {
        (a.address, b.address): table.level(a.address, b.address) or pci_level(a, b, linked)
        for a, b in combinations(ordered, 2)
    }


def nvme_positions(tree: PciTree) -> tuple[PciPosition, ...]:
    """Return the positions of NVMe controllers, without virtual and removed functions."""
    disks = (f for f in tree.functions.values() if f.base_class == _NVME and not f.gone)
    positions = [position_of(tree, disk, UNKNOWN_NODE) for disk in disks if disk.physfn is None]
    return tuple(positions[:MAX_DISKS])


def near_disks(
    position: PciPosition, disks: Iterable[PciPosition], linked: SwitchLinks = frozenset()
) -> tuple[str, ...]:
    """Return the disks behind switches only, for which GPUDirect Storage is worthwhile."""
    return tuple(disk.address for disk in disks if pci_level(position, disk, linked) in (PIX, PXB))


LevelByPair = dict[tuple[str, str], str]


def function_address(device: Device) -> str | None:
    """Return the function of a device; for soft-RoCE its parent's; `None` without a place."""
    return device.place.path[-1] if device.place.path else None


def device_levels(view: DeviceView, tree: PciTree) -> LevelByPair:
    """Return the level of each pair of functions with devices, smaller address first.

    The tree is read once for each device; a pair costs a comparison.
    """
    positions = [device_position(device, tree) for device in view.devices if device.place.path]
    return pair_levels(positions, view.links, tree.switch_links)


def level_between(a: Device, b: Device, levels: LevelByPair) -> str | None:
    """Return the level of two devices; `None` if one of them has no place."""
    if a.key == b.key:
        return SELF
    first, second = function_address(a), function_address(b)
    if first is None or second is None:
        return None
    return PIX if first == second else levels.get(ordered_pair(first, second))


def device_position(device: Device, tree: PciTree) -> PciPosition:
    """Return a device's position in the PCIe tree, with its NUMA node."""
    place = device.place
    address = place.path[-1]
    bridges = place.path[1:-1] if place.root else place.path[:-1]
    function = tree.get(address) or PciFunction(address=address, root=place.root, bridges=bridges)
    return position_of(tree, function, place.numa_node, place.virtual)
