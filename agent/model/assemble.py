"""Devices of all vendors and their places, joined into one view of the node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.errors import ParseError
from agent.model.device import Device, DeviceKind, DeviceLink, Placement, VendorDevice
from agent.model.foreign.device_info import FILE_FACT, NODE_FACT, ROOT_FACT
from agent.model.inventory import Inventory, Problem
from agent.model.minor_records import Records
from agent.model.minors import unique_minors
from agent.model.snapshot import DeviceView
from agent.topology.address import parse_address, sort_key
from agent.topology.cpu import CpuTopology
from agent.topology.distance import near_disks, nvme_seats, seat_of
from agent.topology.link import degraded
from agent.topology.numa import UNKNOWN, NumaTopology
from agent.topology.pci import PciFunction, PciTree
from agent.topology.placement import (
    NO_RULES,
    FilePlace,
    PlacementRules,
    Placer,
    override_problems,
)
from agent.topology.switches import chips, switches

PARENT_FACT = "parent_bus_id"  # of a device that is not on PCI itself (soft-RoCE)
LIBRARY = "library"  # source of a memory node that the maker's library told, if no file did
TOPOLOGY = "topology"  # whose problems those of places are


class PlaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What people decide about places."""

    rules: PlacementRules = NO_RULES
    pcie_scope: str = "root"  # or switch
    slow_links: frozenset[str] = frozenset()  # addresses whose low speed lasts (lasting_slow)
    file_refusal: str = ""  # why the topology file could not be parsed


NO_SETTINGS = PlaceSettings()


def assemble(
    inventories: Sequence[Inventory],
    pci: PciTree,
    cpus: CpuTopology,
    numa: NumaTopology,
    settings: PlaceSettings = NO_SETTINGS,
    records: Records = (),
) -> DeviceView:
    """Join what vendors say of their devices with where sysfs says that they are.

    Equal input gives an equal view, in whatever order the inventories come. Problems of places
    are added to those of the vendors. Devices with a record have its minor.
    """
    rules, file_problems = _file_on(settings, pci)
    desk = _Desk(pci, cpus, numa, replace(settings, rules=rules))
    ordered = sorted(inventories, key=lambda inventory: inventory.vendor)
    told = [(inventory.vendor, device) for inventory in ordered for device in inventory.devices]
    infos, minor_problems = unique_minors(one_each(told), parent_of, records)
    devices = tuple(sorted((desk.device(info) for info in infos), key=_order))
    problems = [(i.vendor, problem) for i in ordered for problem in i.problems]
    problems += minor_problems
    problems += [(TOPOLOGY, p) for p in file_problems + _place_problems(devices, desk)]
    return DeviceView(
        devices=devices,
        links=_links(ordered),
        groups=tuple(group for inventory in ordered for group in inventory.groups),
        group_policy=next((i.group_policy for i in ordered if i.group_policy), None),
        problems=tuple(problems),
        topology_file=rules.file.label if rules.file is not None and rules.file.places else None,
        numa_overrides=rules.overrides,
    )


def parent_of(info: VendorDevice) -> str | None:
    """Return the PCI function a device is or stands on; `None` if there is none."""
    text = info.bus_id or dict(info.facts).get(PARENT_FACT)
    try:
        return parse_address(text) if text else None
    except ParseError:
        return None


def one_each(told: Sequence[tuple[str, VendorDevice]]) -> list[tuple[str, VendorDevice]]:
    """Keep one device for each PCI function that several vendors list, in the order given.

    The one that is managed, else can be granted, else has more facts; of equal ones the first.
    What one vendor lists twice is its own affair.
    """
    best: dict[str, tuple[tuple[bool, bool, bool, int], str]] = {}  # rank and vendor by function
    for vendor, device in told:
        function = _function_of(device)
        if function is not None and (function not in best or best[function][0] < _rank(device)):
            best[function] = (_rank(device), vendor)
    return [
        (vendor, device)
        for vendor, device in told
        if (function := _function_of(device)) is None or best[function][1] == vendor
    ]


def _function_of(device: VendorDevice) -> str | None:
    return parent_of(device) if device.bus_id else None


def _rank(device: VendorDevice) -> tuple[bool, bool, bool, int]:
    return device.managed, device.minor is not None, bool(device.resources), len(device.facts)


def pcie_scope_id(place: Placement, scope: str) -> str:
    """Return `pcieID`: the root, or with scope `switch` the chip below which the device sits.

    A device whose switch only the topology file knows is named by the file: devices of one
    virtual switch then match although each has a root of its own here.
    """
    if scope == "switch" and place.virtual[1:]:
        return "/".join(place.virtual[:2])
    if scope == "switch" and place.root and place.chip:
        return f"{place.root}/{place.chip}"
    return place.root or ""


class _Desk:
    """Looks up places; the tables behind the rules are made once for all devices."""

    def __init__(
        self, pci: PciTree, cpus: CpuTopology, numa: NumaTopology, settings: PlaceSettings
    ) -> None:
        self.pci = pci
        self.numa = numa
        self.settings = settings
        self._packages = {package.socket: package.package_id for package in cpus.packages}
        self._placer = Placer(pci, numa, settings.rules)
        self._disks = nvme_seats(pci)

    def device(self, info: VendorDevice) -> Device:
        address = parent_of(info)
        place = Placement()
        if address is not None:
            function = self.pci.get(address) or PciFunction(address=address)
            place = self.place(function)
            if info.kind is not DeviceKind.RDMA and self._disks:
                seat = seat_of(self.pci, function, place.numa_node)
                near = near_disks(seat, self._disks, self.pci.switch_links)
                place = replace(place, near_disks=near)
        place = self._told(place, dict(info.facts))
        return Device(
            info=info, place=place, pcie_scope_id=pcie_scope_id(place, self.settings.pcie_scope)
        )

    def _told(self, place: Placement, facts: Mapping[str, str]) -> Placement:
        """Fill in what a device-info file or a maker's library knows and sysfs does not."""
        node, root = facts.get(NODE_FACT, ""), facts.get(ROOT_FACT)
        if (
            place.numa_node == UNKNOWN
            and node.isdecimal()
            and len(node) < 6
            and self._can_be(int(node))
        ):
            source = FILE_FACT if FILE_FACT in facts else LIBRARY
            place = replace(place, numa_node=int(node), numa_source=source)
        return replace(place, root=root) if place.root is None and root else place

    def _can_be(self, node: int) -> bool:
        return not self.numa.nodes or self.numa.node(node) is not None

    def place(self, function: PciFunction) -> Placement:
        answer = self._placer.numa_node(function)
        node = self.numa.node(answer.node)
        socket = node.socket if node is not None else UNKNOWN
        above = switches(self.pci, function)
        file_place = self._file_place(function) if not above else None
        merged = chips(self.pci, above)
        port = self.pci.get(function.bridges[-1]) if function.bridges else None
        slow = function.address in self.settings.slow_links
        return Placement(
            numa_node=answer.node,
            numa_source=answer.source,
            socket=socket,
            package_id=self._packages.get(socket, UNKNOWN),
            root=function.root,
            path=function.path,
            switch=above[-1] if above else None,
            chip=merged[-1] if merged else None,
            link=function.link,
            link_degraded=degraded(function.link, port.link if port else None, slow_for_long=slow),
            acs=self._acs(function),
            virtual=file_place.hierarchy if file_place is not None else (),
        )

    def _file_place(self, function: PciFunction) -> FilePlace | None:
        file = self.settings.rules.file
        physical = self.pci.physical(function) or function
        return file.places.get(physical.address) if file is not None else None

    def _acs(self, function: PciFunction) -> tuple[int | None, ...] | None:
        bridges = [self.pci.get(address) for address in function.bridges]
        readable = any(bridge is not None and bridge.port_type is not None for bridge in bridges)
        return (
            tuple(b.acs_control if b is not None else None for b in bridges) if readable else None
        )


def _file_on(settings: PlaceSettings, pci: PciTree) -> tuple[PlacementRules, list[Problem]]:
    """Keep what the topology file says of functions that are here; refuse it if it is absurd."""
    rules, refusal = settings.rules, settings.file_refusal
    file = None
    try:
        file = rules.file.on(pci) if rules.file is not None else None
    except ParseError as error:
        refusal = str(error)
    problems = [Problem(reason="TopologyFileRefused", message=refusal)] if refusal else []
    for warning in file.warnings if file is not None else ():
        problems.append(Problem(reason="TopologyFileOdd", message=warning))
    return replace(rules, file=file), problems


def _place_problems(devices: Iterable[Device], desk: _Desk) -> list[Problem]:
    rules = desk.settings.rules
    found = [
        Problem(reason="NumaOverrideUnused", message=text)
        for text in override_problems(rules, desk.pci, desk.numa)
    ]
    cards = [d for d in devices if d.info.kind is not DeviceKind.RDMA and d.place.path]
    roots = {card.place.root for card in cards}
    hidden = all(not card.place.switch and not card.place.virtual[1:] for card in cards)
    if len(cards) >= 2 and len(roots) == 1 and None not in roots and hidden:
        found.append(Problem(reason="FlatPCITopology", message=_flat(roots.pop(), len(cards))))
    unknown: dict[str, list[Device]] = {}
    for device in devices:
        if device.place.path and device.place.numa_node == UNKNOWN:
            unknown.setdefault(device.place.root or "no root", []).append(device)
        function = desk.pci.get(parent_of(device.info))
        if function is not None and _names_no_node(function, desk.numa):
            found.append(Problem(reason="NumaNodeMissing", message=_missing(function)))
    return found + [
        Problem(reason="UnknownNumaNode", message=_unknown(root, lost))
        for root, lost in sorted(unknown.items())
    ]


def _names_no_node(function: PciFunction, numa: NumaTopology) -> bool:
    node = function.numa_node
    return node is not None and node >= 0 and numa.node(node) is None


def _missing(function: PciFunction) -> str:
    return (
        f"{function.address}: firmware names memory node {function.numa_node}, which is not there;"
        " set discovery.numa_overrides"
    )


def _flat(root: str | None, count: int) -> str:
    return (
        f"all {count} accelerators are below {root or 'no root'} without a switch: distances mean"
        " nothing here; set discovery.topology_file"
    )


def _unknown(root: str, lost: Sequence[Device]) -> str:
    return (
        f"{root}: the memory node of {len(lost)} devices is unknown, first"
        f" {lost[0].place.path[-1]}; set discovery.numa_overrides"
    )


def _links(inventories: Iterable[Inventory]) -> tuple[DeviceLink, ...]:
    links = {link for inventory in inventories for link in inventory.links}
    return tuple(sorted(links, key=lambda link: (link.a, link.b, link.type, link.count)))


def _order(device: Device) -> tuple[str, bool, int, tuple[int, ...], str]:
    info = device.info
    address = parent_of(info)
    return (
        info.kind.wire_type,
        info.minor is None,
        info.minor if info.minor is not None else 0,
        sort_key(address) if address is not None else (),
        info.key,
    )
