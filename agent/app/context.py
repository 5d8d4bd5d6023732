"""What one run of the agent consists of before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from agent.app.host_reader import HostReader
from agent.app.identity import node_name
from agent.app.lock import NodeLock
from agent.app.pipeline import DevicePipeline
from agent.app.publishing import PublishSink
from agent.clock import Clock
from agent.config.address import ListenAddress
from agent.config.settings import Settings
from agent.devices.health_file import HealthFile
from agent.devices.joiner import DeviceJoiner
from agent.devices.published_minors import PublishedMinorStore
from agent.host.kernel import read_identity
from agent.kube.endpoint import ApiTarget
from agent.messages import MessageQueue
from agent.recording.directory import DirectoryFiles
from agent.recording.host_source import HostSource
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import MetricFamily
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.pod import PodView
from agent.snapshot.vendor import DeviceVendor
from agent.state_writer import NO_STATE_FOLDER, RECORDED_HOST, StateWriter
from agent.workers.load import load_enabled_vendors
from agent.workers.manager import VendorManager


class AppContext(msgspec.Struct, frozen=True, kw_only=True):
    """Built from settings and a host; used by the daemon and by commands that look once."""

    settings: Settings
    host_source: HostSource
    clock: Clock
    vendors: Mapping[str, DeviceVendor]
    store: SnapshotStore
    list_pods: Callable[[], tuple[PodView, ...]]
    state_writer: StateWriter = msgspec.field(default_factory=StateWriter)  # of `node.state_dir`

    def host_files(self) -> HostFiles:
        """Return the files of the host as the host sees them: those of drivers and runtimes, too.

        In a container they are not where the host has them; see `node.host_root`.
        """
        root = self.settings.node.host_root
        if not root or self.host_source.spec is not None:
            return self.host_source.files

        return DirectoryFiles(Path(root))  # an absolute link of the host's stays on the host

    def kubelet_root(self) -> str:
        """Return the kubelet's `--cgroup-root`: by the setting, else by `/configz`, else empty."""
        kubelet = self.store.current.cluster.kubelet.value
        told = kubelet.cgroup_root if kubelet is not None else None
        return self.settings.kubelet.cgroup_root or told or ""

    def host_reader(self) -> HostReader:
        """Build the reader of the host's facts."""
        return HostReader(self.host_source, self.settings, self.store, self.clock)

    def device_joiner(self, minors: PublishedMinorStore | None = None) -> DeviceJoiner:
        """Build what joins devices with their places; raise `BadConfig`.

        Without `minors` devices get the minors of the state directory, which is only read.
        """
        if minors is None:
            minors = self.published_minors()
        return DeviceJoiner(self.settings, minors)

    def published_minors(
        self, *, stores: bool = False, adopts: bool = False
    ) -> PublishedMinorStore:
        """Return the minors that the agent published before; of a recorded host none are kept."""
        if self.host_source.spec is not None:
            return PublishedMinorStore(absent_because=RECORDED_HOST)
        folder = self.settings.node.state_dir
        return PublishedMinorStore(folder, self.state_writer, stores=stores, adopts=adopts)

    def health_file(self) -> HealthFile:
        """Return where health outlives the agent: nowhere without a folder, or on a recording."""
        folder = self.settings.node.state_dir if self.host_source.spec is None else ""
        node = read_identity(self.host_source.files, "", "") if folder else None
        why = NO_STATE_FOLDER if self.host_source.spec is None else RECORDED_HOST
        boot_id = node.boot_id if node is not None else ""
        return HealthFile(folder, boot_id, self.state_writer, absent_because=why)

    def metric_families(self) -> dict[str, tuple[MetricFamily, ...]]:
        """Return the metric families of each vendor."""
        return {name: vendor.description.families for name, vendor in self.vendors.items()}


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve."""

    listen: tuple[ListenAddress, ...]
    out: str  # folder of the objects in standalone mode, and of the admin socket
    notice: str
    cluster: ApiTarget | None = None  # `None`: standalone mode
    lock: NodeLock | None = None


class DeviceServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services that publish devices; they run from the start on."""

    messages: MessageQueue
    vendors: VendorManager
    minors: PublishedMinorStore
    health_file: HealthFile
    host_reader: HostReader
    sink: PublishSink
    pipeline: DevicePipeline


def build_context(
    settings: Settings,
    opened: HostSource,
    clock: Clock,
    known_pods: Callable[[], tuple[PodView, ...]] | None = None,
    vendors: Mapping[str, DeviceVendor] | None = None,
) -> AppContext:
    """Build the parts; of the host nothing is read yet. Raises `BadConfig`.

    Without `known_pods` those are known that the cluster tells of: none, in standalone mode.
    """
    store = SnapshotStore(
        NodeSnapshot(node=NodeIdentity(name=node_name(opened, settings), source=opened.source))
    )
    return AppContext(
        settings=settings,
        host_source=opened,
        clock=clock,
        vendors=load_enabled_vendors(settings) if vendors is None else vendors,
        store=store,
        list_pods=known_pods or (lambda: store.current.cluster.pods),
    )
