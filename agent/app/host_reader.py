"""Reads CPUs, memory nodes and PCI into the snapshot, and joins devices with their places."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from agent.clock import Clock
from agent.config.settings import Settings
from agent.devices.minors import renew_records, retain_records
from agent.devices.presence import with_removed_devices, without_unplaced
from agent.devices.published_minors import PublishedMinorStore
from agent.devices.view import build_device_view
from agent.errors import AgentError, BadConfig, HostFileError, ParseError
from agent.host.cpu import read_cpu_numa
from agent.host.files import CountingHostFiles
from agent.host.kernel import read_gpudirect_host, read_identity
from agent.host.pci import read_pci
from agent.recording.host_source import HostSource
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.device import DeviceKind
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.node import DeviceView, NodeSnapshot, SnapshotStore, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import NumaOverride, PciTree
from agent.topology.gpudirect import check_pairs
from agent.topology.pcie_link import SlowLinkRecord, observe_links, persistently_slow
from agent.topology.placement import PlacementRules, PlacementSettings, TopologyFile
from agent.topology.topology_file import MAX_BYTES, parse_topology_file

log = logging.getLogger(__name__)
T = TypeVar("T")


def _decode_override(row: Mapping[str, object]) -> NumaOverride:
    match, node = row.get("match"), row.get("node")
    if set(row) != {"match", "node"} or not isinstance(match, str) or type(node) is not int:
        raise BadConfig("discovery.numa_overrides: each entry has `match` (text) and `node`")
    try:
        return NumaOverride(match, node)
    except ParseError as error:
        raise BadConfig(f"discovery.numa_overrides: {error}") from error


def numa_overrides(settings: Settings) -> tuple[NumaOverride, ...]:
    """Decode the NUMA overrides; raise `BadConfig`."""
    return tuple(_decode_override(row) for row in settings.discovery.numa_overrides)


def read_topology_file(files: HostFiles, path: str) -> TopologyFile | None:
    """Return the provider's topology of a virtual machine; `None` if there is none."""
    if not path or not files.exists(path):
        return None  # the default path names a file that few machines have

    try:
        data = files.read(path, MAX_BYTES + 1)
    except HostFileError as error:
        raise ParseError("topology file: unreadable", str(error)) from error
    return parse_topology_file(data, path.rpartition("/")[2])


def _warning_problem(warning: str) -> Problem:
    """Return a reader's warning, `pci_limit: what`, as a problem with the reason `PciLimit`."""
    kind, _, message = warning.partition(": ")
    return Problem(reason="".join(map(str.capitalize, kind.split("_"))), message=message)


def _uevent_problem(snapshot: NodeSnapshot) -> tuple[tuple[str, Problem], ...]:
    """Return the problem that the kernel does not tell of devices that come and go, if so."""
    why = snapshot.hotplug.problem
    told = f"{why}; every half minute is looked instead"
    return (("host", Problem(reason="UeventsUnavailable", message=told)),) if why else ()


def links_to_check(snapshot: NodeSnapshot) -> tuple[set[str], frozenset[str]]:
    """Return the functions whose link speed is judged now, and those of them that are busy.

    An accelerator lets its link fall to the lowest speed when it is idle: only while it works
    does a low speed say something.
    """
    working = {
        sample.key
        for vendor in snapshot.vendors
        for sample in vendor.samples.value
        if sample.core_percent
    }
    functions = {
        device.info.bus_id: device.info.kind is DeviceKind.RDMA or device.key in working
        for device in snapshot.devices.value.devices
        if device.info.bus_id is not None
    }
    watched = {address for address, judged in functions.items() if judged}
    return watched, frozenset(watched & working)


class HostReader:
    """Reads the host's facts into the snapshot; a part that fails keeps what it had.

    `read` and `join` may each have a thread: of what they share each value is replaced whole.
    """

    def __init__(
        self,
        opened: HostSource,
        settings: Settings,
        store: SnapshotStore,
        clock: Clock,
        minors: PublishedMinorStore | None = None,
    ) -> None:
        """Take published minors from `minors`; without it they last as long as this object."""
        self._host_files = opened.files  # of `join`
        self._counting_files = CountingHostFiles(opened.files)  # of `read`
        self._settings = settings
        self._overrides = numa_overrides(settings)
        self._store = store
        self._clock = clock
        self._minors = minors or PublishedMinorStore()
        self.on_unplaced: Callable[[], object] = lambda: None  # a device waits for `read`
        self._all_vendors_answered = (
            False  # of `join`: every vendor of the start has answered, or failed to
        )
        self._slow_links: dict[str, SlowLinkRecord] = {}  # by address, of links below their speed

    def read_host(self) -> None:
        """Read who the node is, CPUs and memory nodes, and PCI."""
        node = self._store.current.node
        found = read_identity(self._counting_files, node.name, node.source)

        def known(now: NodeSnapshot) -> NodeSnapshot:
            # the uid is the cluster's to tell, and it may have told it meanwhile
            node = msgspec.structs.replace(found, uid=now.node.uid)
            return msgspec.structs.replace(now, node=node)

        self._store.change(known)
        cpus_numa = self._read_part(self._cpu_numa, "cpus", "numa")
        if cpus_numa is not None:
            now_s = self._clock.monotonic()
            self._store.put(
                cpus=SnapshotPart(cpus_numa[0], now_s), numa=SnapshotPart(cpus_numa[1], now_s)
            )
        pci = self._read_part(self._pci, "pci")
        if pci is not None:
            now_s = self._clock.monotonic()
            snapshot = self._store.put(pci=SnapshotPart(pci, now_s))
            addresses, busy = links_to_check(snapshot)
            self._slow_links = observe_links(self._slow_links, pci, addresses, now_s, busy)
        self._store.put(refused=self._counting_files.error_counts)

    def _cpu_numa(self) -> tuple[CpuTopology, NumaTopology]:
        cpus, numa = read_cpu_numa(self._counting_files)
        if not cpus.usable and self._store.current.cpus.value.usable:
            raise HostFileError("/sys/devices/system/cpu", errno.ENODATA)  # they are not all gone
        return cpus, numa

    def _pci(self) -> PciTree:
        tree = read_pci(self._counting_files)
        if not tree.functions and (tree.warnings or self._store.current.pci.value.functions):
            raise HostFileError("/sys/bus/pci/devices", errno.ENODATA)
        return tree

    def join_devices(self) -> None:
        """Join what the vendors said with the places; an equal view stays the same object.

        An answer that comes meanwhile is joined next time: who hears of it asks for that.
        """
        file, refusal = self._topology_file()
        settings = PlacementSettings(
            rules=PlacementRules(overrides=self._overrides, file=file),
            pcie_scope=self._settings.publish.pcie_scope,
            slow_links=persistently_slow(self._slow_links),
            file_refusal=refusal,
        )

        # not within the store's lock: the loop thread takes it too, and this may take long
        now = self._store.current
        starting = {v.vendor for v in now.vendors if v.state == "starting"}
        late = (
            starting if self._all_vendors_answered else set()
        )  # nothing is taken back to wait for them
        awaited = tuple(sorted(starting - late))
        told = self._placed_inventories([v for v in now.vendors if v.vendor not in late], now)
        self._all_vendors_answered = not awaited
        inventories = with_removed_devices(told, now.removed_devices, self._clock.monotonic())
        places = (now.pci.value, now.cpus.value, now.numa.value)
        published, final = self._minors.current()
        records = retain_records(published, inventories, now)
        view = build_device_view(inventories, *places, settings, records)
        odd = (*now.cpus.value.warnings, *now.numa.value.warnings, *now.pci.value.warnings)
        problems = (*view.problems, *(("host", _warning_problem(warning)) for warning in odd))
        problems += _uevent_problem(now)
        if final and not awaited:  # before, who answers first must not decide about numbers
            infos = [device.info for device in view.devices]
            plugins = {device.key: one.vendor for one in inventories for device in one.devices}
            self._minors.save(renew_records(infos, plugins, records))
        view = msgspec.structs.replace(
            view, awaited=awaited, problems=problems, provisional_minors=not final
        )
        view = self._with_gpudirect(view, now.pci.value)
        if view == now.devices.value:
            view = now.devices.value
        self._store.put(devices=SnapshotPart(view, self._clock.monotonic()))

    def _placed_inventories(
        self, vendors: Iterable[VendorState], now: NodeSnapshot
    ) -> list[Inventory]:
        """Return the vendors' answers without new devices that wait for their place."""
        listed = {device.key for device in now.devices.value.devices}
        now_s, unplaced = self._clock.monotonic(), False
        found: list[Inventory] = []
        for vendor in vendors:
            inventory = vendor.inventory.value
            if inventory is not None and self._all_vendors_answered:
                inventory = without_unplaced(vendor.inventory, now.pci, listed, now_s)
                unplaced = unplaced or inventory is not vendor.inventory.value
            if inventory is not None:
                found.append(inventory)
        if unplaced:
            self.on_unplaced()
        return found

    def _with_gpudirect(self, view: DeviceView, pci: PciTree) -> DeviceView:
        """Add which GPUs and NICs reach each other without the host's memory."""
        kinds = {device.info.kind for device in view.devices}
        if not kinds >= {DeviceKind.GPU, DeviceKind.RDMA}:
            return view

        return msgspec.structs.replace(
            view, direct=check_pairs(view, pci, read_gpudirect_host(self._host_files))
        )

    def _topology_file(self) -> tuple[TopologyFile | None, str]:
        """Return the file's content, or why it was refused."""
        try:
            return read_topology_file(self._host_files, self._settings.discovery.topology_file), ""
        except ParseError as error:
            return None, str(error)

    def _read_part(self, read: Callable[[], T], *parts: str) -> T | None:
        try:
            return read()
        except AgentError as error:
            message = str(error)
            if message != getattr(self._store.current, parts[0]).error:
                log.warning("host_read_failed", extra={"parts": parts, "error": message})

            def change(snapshot: NodeSnapshot) -> NodeSnapshot:
                failed = {
                    name: msgspec.structs.replace(getattr(snapshot, name), error=message)
                    for name in parts
                }
                return msgspec.structs.replace(snapshot, **failed)

            self._store.change(change)
            return None
