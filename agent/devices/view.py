"""Joins the devices of all vendors with their places into one view of the node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from agent.devices.minors import MinorRecords, assign_minors
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.device import (
    Device,
    DeviceLink,
    VendorDevice,
    pci_address_of,
)
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView
from agent.snapshot.pci import PciTree, address_sort_key
from agent.topology.placement import (
    NO_PLACEMENT_SETTINGS,
    DevicePlacer,
    PlacementSettings,
    placement_problems,
    restrict_topology_file,
)

TOPOLOGY_VENDOR = "topology"  # vendor of problems of places


def build_device_view(
    inventories: Sequence[Inventory],
    pci: PciTree,
    cpus: CpuTopology,
    numa: NumaTopology,
    settings: PlacementSettings = NO_PLACEMENT_SETTINGS,
    records: MinorRecords = (),
) -> DeviceView:
    """Join the devices of all vendors with their places in sysfs.

    Equal input gives an equal view, in any order of the inventories. Problems of places are added
    to those of the vendors. Devices with a record have its minor.
    """
    rules, file_problems = restrict_topology_file(settings, pci)
    placer = DevicePlacer(pci, cpus, numa, replace(settings, rules=rules))
    ordered = sorted(inventories, key=lambda inventory: inventory.vendor)
    reported = [(inventory.vendor, device) for inventory in ordered for device in inventory.devices]
    infos, minor_problems = assign_minors(drop_duplicate_devices(reported), pci_address_of, records)
    devices = tuple(sorted((placer.device(info) for info in infos), key=_device_order))
    problems = [(i.vendor, problem) for i in ordered for problem in i.problems]
    problems += minor_problems
    problems += [(TOPOLOGY_VENDOR, p) for p in file_problems + placement_problems(devices, placer)]
    return DeviceView(
        devices=devices,
        links=_all_links(ordered),
        groups=tuple(group for inventory in ordered for group in inventory.groups),
        group_policy=next((i.group_policy for i in ordered if i.group_policy), None),
        problems=tuple(problems),
        topology_file=rules.file.label if rules.file is not None and rules.file.places else None,
        numa_overrides=rules.overrides,
    )


def drop_duplicate_devices(
    reported: Sequence[tuple[str, VendorDevice]],
) -> list[tuple[str, VendorDevice]]:
    """Return one device for each PCI function that several vendors list, in the given order.

    A managed device wins, then one that can be allocated, then the one with more facts; of equal
    ones the first. Duplicates within one vendor stay.
    """
    best: dict[str, tuple[tuple[bool, bool, bool, int], str]] = {}  # rank and vendor by function
    for vendor, device in reported:
        function = _function_of(device)
        if function is not None and (function not in best or best[function][0] < _rank(device)):
            best[function] = (_rank(device), vendor)
    return [
        (vendor, device)
        for vendor, device in reported
        if (function := _function_of(device)) is None or best[function][1] == vendor
    ]


def _function_of(device: VendorDevice) -> str | None:
    return pci_address_of(device) if device.bus_id else None


def _rank(device: VendorDevice) -> tuple[bool, bool, bool, int]:
    return device.managed, device.minor is not None, bool(device.resources), len(device.facts)


def _all_links(inventories: Iterable[Inventory]) -> tuple[DeviceLink, ...]:
    links = {link for inventory in inventories for link in inventory.links}
    return tuple(sorted(links, key=lambda link: (link.a, link.b, link.type, link.count)))


def _device_order(device: Device) -> tuple[str, bool, int, tuple[int, ...], str]:
    info = device.info
    address = pci_address_of(info)
    return (
        info.kind.wire_type,
        info.minor is None,
        info.minor if info.minor is not None else 0,
        address_sort_key(address) if address is not None else (),
        info.key,
    )
