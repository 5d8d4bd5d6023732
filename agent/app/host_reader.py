"""Reads the host's facts into the snapshot: identity, CPUs, memory nodes, PCI, topology file."""

from __future__ import annotations

import errno
import logging

import msgspec

from agent.clock import Clock
from agent.config.settings import Settings
from agent.errors import AgentError, HostFileError, ParseError
from agent.host.cpu import read_cpu_numa
from agent.host.files import CountingHostFiles
from agent.host.kernel import read_gpudirect_host, read_identity
from agent.host.pci import read_pci
from agent.recording.host_source import HostSource
from agent.snapshot.device import DeviceKind
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree, TopologyFile
from agent.topology.pcie_link import SlowLinkRecord, observe_links, persistently_slow
from agent.topology.topology_file import MAX_BYTES, parse_topology_file

log = logging.getLogger(__name__)


def read_topology_file(files: HostFiles, path: str) -> TopologyFile | None:
    """Return the provider's topology of a virtual machine; `None` if there is none."""
    if not path or not files.exists(path):
        return None  # the default path names a file that few machines have

    try:
        data = files.read(path, MAX_BYTES + 1)
    except HostFileError as error:
        raise ParseError("topology file: unreadable", str(error)) from error
    return parse_topology_file(data, path.rpartition("/")[2])


def links_to_check(snapshot: NodeSnapshot) -> tuple[set[str], frozenset[str]]:
    """Return the functions whose link speed is checked now, and those of them that are busy.

    An accelerator lowers the speed of its link while it is idle: its speed is checked only while
    it works.
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
    watched = {address for address, is_checked in functions.items() if is_checked}
    return watched, frozenset(watched & working)


class HostReader:
    """Reads the host's facts into the snapshot. Belongs to one thread, which a read may hang.

    A part that cannot be read keeps its last value and gets the error.
    """

    def __init__(
        self, source: HostSource, settings: Settings, store: SnapshotStore, clock: Clock
    ) -> None:
        """Read nothing yet."""
        self._host_files = source.files
        self._counting_files = CountingHostFiles(source.files)
        self._settings = settings
        self._store = store
        self._clock = clock
        self._slow_links: dict[str, SlowLinkRecord] = {}  # by address, of links below their speed

    def read_host(self) -> None:
        """Read the node's identity, CPUs and memory nodes, PCI, and what places depend on."""
        node = self._store.current.node
        identity = read_identity(self._counting_files, node.name, node.source)

        def put_identity(snapshot: NodeSnapshot) -> NodeSnapshot:
            # the uid comes from the cluster, and may have arrived during the read
            node = msgspec.structs.replace(identity, uid=snapshot.node.uid)
            return msgspec.structs.replace(snapshot, node=node)

        self._store.change(put_identity)
        self._read_cpus()
        self._read_pci()
        self._store.put(
            topology_file=self._read_topology_file(),
            gpudirect_host=read_gpudirect_host(self._host_files),
            refused=self._counting_files.error_counts,
        )

    def _read_cpus(self) -> None:
        try:
            cpus, numa = read_cpu_numa(self._counting_files)
            if not cpus.usable and self._store.current.cpus.value.usable:
                # not all CPUs can be gone
                raise HostFileError("/sys/devices/system/cpu", errno.ENODATA)
        except AgentError as error:
            self._record_error(error, "cpus", "numa")
            return
        now_s = self._clock.monotonic()
        self._store.put(cpus=SnapshotPart(cpus, now_s), numa=SnapshotPart(numa, now_s))

    def _read_pci(self) -> None:
        try:
            tree = self._read_pci_tree()
        except AgentError as error:
            self._record_error(error, "pci")
            return
        now_s = self._clock.monotonic()
        snapshot = self._store.put(pci=SnapshotPart(tree, now_s))
        addresses, busy = links_to_check(snapshot)
        self._slow_links = observe_links(self._slow_links, tree, addresses, now_s, busy)
        self._store.put(slow_links=persistently_slow(self._slow_links))

    def _read_pci_tree(self) -> PciTree:
        tree = read_pci(self._counting_files)
        if not tree.functions and (tree.warnings or self._store.current.pci.value.functions):
            raise HostFileError("/sys/bus/pci/devices", errno.ENODATA)
        return tree

    def _read_topology_file(self) -> SnapshotPart[TopologyFile | None]:
        """Return the file's content, or why it was refused."""
        path, now_s = self._settings.discovery.topology_file, self._clock.monotonic()
        try:
            return SnapshotPart(read_topology_file(self._host_files, path), now_s)
        except ParseError as error:
            return SnapshotPart(None, now_s, str(error))

    def _record_error(self, error: AgentError, *parts: str) -> None:
        message = str(error)
        if message != getattr(self._store.current, parts[0]).error:
            log.warning("host_read_failed", extra={"parts": parts, "error": message})

        def put_error(snapshot: NodeSnapshot) -> NodeSnapshot:
            failed = {
                name: msgspec.structs.replace(getattr(snapshot, name), error=message)
                for name in parts
            }
            return msgspec.structs.replace(snapshot, **failed)

        self._store.change(put_error)
