"""Joins the devices of all vendors with their places into one view, from the snapshot alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.config.settings import Settings
from agent.devices.minors import MinorRecords, assign_minors, renew_records, retain_records
from agent.devices.presence import with_removed_devices, without_unplaced
from agent.devices.published_minors import PublishedMinorStore
from agent.errors import BadConfig, ParseError
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.device import Device, DeviceKind, DeviceLink, VendorDevice, pci_address_of
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.node import DeviceView, NodeSnapshot, SnapshotStore, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import NumaOverride, PciTree, address_sort_key
from agent.topology.gpudirect import check_pairs
from agent.topology.placement import (
    NO_PLACEMENT_SETTINGS,
    DevicePlacer,
    PlacementRules,
    PlacementSettings,
    placement_problems,
    restrict_topology_file,
)

TOPOLOGY_VENDOR = "topology"  # vendor of problems of places

HostProblem = tuple[str, Problem]


class JoinedDevices(msgspec.Struct, frozen=True):
    """The devices with their places, and whether a new device waits for its place."""

    view: DeviceView
    has_unplaced: bool


class DeviceJoiner:
    """Joins devices with their places, on the devices thread; it reads no file.

    It stores the published minors, and whether every vendor has answered once.
    """

    def __init__(self, settings: Settings, minors: PublishedMinorStore | None = None) -> None:
        """Read published minors from `minors`; without it they last as long as this object.

        Raises `BadConfig`.
        """
        self._overrides = numa_overrides(settings)
        self._pcie_scope = settings.publish.pcie_scope
        self._minors = minors or PublishedMinorStore()
        # every vendor of the start has answered or failed
        self._all_vendors_answered = False

    def adopt_minors(self, body: object) -> None:
        """Use the minors of the published Device object; `None` if there is none."""
        self._minors.adopt(body)

    def update(self, store: SnapshotStore, now_s: float) -> JoinedDevices:
        """Replace the snapshot's devices; an equal view stays the same object.

        An answer of a vendor that arrives meanwhile is joined at the next call.
        """
        snapshot = store.current  # outside the store's lock, because joining takes too long
        joined = self.join(snapshot, now_s)
        view = joined.view
        if view == snapshot.devices.value:
            view = snapshot.devices.value
        store.put(devices=SnapshotPart(view, now_s))
        return joined

    def join(self, snapshot: NodeSnapshot, now_s: float) -> JoinedDevices:
        """Return the devices of all vendors with their places."""
        starting_vendors = {item.vendor for item in snapshot.vendors if item.state == "starting"}
        # published devices are not withdrawn to wait for a late vendor
        late_vendors = starting_vendors if self._all_vendors_answered else set()
        awaited = tuple(sorted(starting_vendors - late_vendors))
        answered = [item for item in snapshot.vendors if item.vendor not in late_vendors]
        placed_inventories, has_unplaced = self._placed_inventories(answered, snapshot, now_s)
        self._all_vendors_answered = not awaited
        inventories = with_removed_devices(placed_inventories, snapshot.removed_devices, now_s)
        published, is_complete = self._minors.current()
        records = retain_records(published, inventories, snapshot)
        view = build_device_view(
            inventories,
            snapshot.pci.value,
            snapshot.cpus.value,
            snapshot.numa.value,
            self._placement_settings(snapshot),
            records,
        )
        # the first vendor that answers must not decide about the minors of the others
        if is_complete and not awaited:
            infos = [device.info for device in view.devices]
            vendors = {device.key: item.vendor for item in inventories for device in item.devices}
            self._minors.save(renew_records(infos, vendors, records))
        view = replace(
            view,
            awaited=awaited,
            problems=(*view.problems, *_host_problems(snapshot)),
            provisional_minors=not is_complete,
        )
        return JoinedDevices(_with_gpudirect(view, snapshot), has_unplaced)

    def _placement_settings(self, snapshot: NodeSnapshot) -> PlacementSettings:
        file = snapshot.topology_file
        return PlacementSettings(
            rules=PlacementRules(overrides=self._overrides, file=file.value),
            pcie_scope=self._pcie_scope,
            slow_links=snapshot.slow_links,
            file_refusal=file.error,
        )

    def _placed_inventories(
        self, vendors: Iterable[VendorState], snapshot: NodeSnapshot, now_s: float
    ) -> tuple[list[Inventory], bool]:
        """Return the answers without new devices that wait for a place, and if there are any."""
        listed = {device.key for device in snapshot.devices.value.devices}
        has_unplaced = False
        inventories: list[Inventory] = []
        for vendor in vendors:
            inventory = vendor.inventory.value
            if inventory is not None and self._all_vendors_answered:
                inventory = without_unplaced(vendor.inventory, snapshot.pci, listed, now_s)
                has_unplaced = has_unplaced or inventory is not vendor.inventory.value
            if inventory is not None:
                inventories.append(inventory)
        return inventories, has_unplaced


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


def _host_problems(snapshot: NodeSnapshot) -> tuple[HostProblem, ...]:
    """Return the warnings of the host's readers, and a problem if there are no uevents."""
    warnings = (
        *snapshot.cpus.value.warnings,
        *snapshot.numa.value.warnings,
        *snapshot.pci.value.warnings,
    )
    problems = tuple(("host", _warning_problem(warning)) for warning in warnings)
    error = snapshot.hotplug.problem
    if not error:
        return problems
    message = f"{error}; every half minute is looked instead"
    return (*problems, ("host", Problem(reason="UeventsUnavailable", message=message)))


def _warning_problem(warning: str) -> Problem:
    """Return a reader's warning, `pci_limit: message`, as a problem with the reason `PciLimit`."""
    kind, _, message = warning.partition(": ")
    return Problem(reason="".join(map(str.capitalize, kind.split("_"))), message=message)


def _with_gpudirect(view: DeviceView, snapshot: NodeSnapshot) -> DeviceView:
    """Add the pairs of GPUs and NICs that reach each other without the host's memory."""
    kinds = {device.info.kind for device in view.devices}
    if not kinds >= {DeviceKind.GPU, DeviceKind.RDMA}:
        return view

    pairs = check_pairs(view, snapshot.pci.value, snapshot.gpudirect_host)
    return replace(view, direct=pairs)


def numa_overrides(settings: Settings) -> tuple[NumaOverride, ...]:
    """Decode the NUMA overrides; raises `BadConfig`."""
    return tuple(_decode_override(row) for row in settings.discovery.numa_overrides)


def _decode_override(row: Mapping[str, object]) -> NumaOverride:
    match, node = row.get("match"), row.get("node")
    if set(row) != {"match", "node"} or not isinstance(match, str) or type(node) is not int:
        raise BadConfig("discovery.numa_overrides: each entry has `match` (text) and `node`")
    try:
        return NumaOverride(match, node)
    except ParseError as error:
        raise BadConfig(f"discovery.numa_overrides: {error}") from error
