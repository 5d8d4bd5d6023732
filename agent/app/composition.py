"""Builds the objects of one run from settings, a host and a clock.

Only this module, `application`, `services`, `oneshot` and the builder of the services for
containers know all inputs; every object that they build receives what it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from agent.app.host_reader import HostReader
from agent.app.identity import node_name
from agent.app.lock import NodeLock
from agent.app.pipeline import DevicePipeline
from agent.app.publishing import PublishSink
from agent.cgroup.layout import LayoutLocator
from agent.clock import Clock
from agent.config.address import ListenAddress
from agent.config.cluster import KubeletSettings
from agent.config.settings import Settings
from agent.devices.health_file import HealthFile
from agent.devices.joiner import DeviceJoiner
from agent.devices.published_minors import PublishedMinorStore
from agent.host.kernel import read_identity
from agent.kube.endpoint import ApiTarget
from agent.kubelet.pod_list_file import PodListFile
from agent.messages import MessageQueue
from agent.recording.directory import DirectoryFiles
from agent.recording.host_source import HostSource
from agent.runbook.runbook import Runbook
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import MetricFamily
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.vendor import AliasTable, DeviceVendor
from agent.state_writer import NO_STATE_FOLDER, RECORDED_HOST, StateWriter
from agent.workers.abilities import build_runbook
from agent.workers.load import load_enabled_vendors
from agent.workers.manager import VendorManager

if TYPE_CHECKING:
    from agent.access.rules import AccessFiles  # ssl and bcrypt: loaded where they are used


class AgentInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a run of the agent, or of a command that inspects a host."""

    settings: Settings
    host_source: HostSource
    clock: Clock
    vendors: Mapping[str, DeviceVendor]
    store: SnapshotStore
    origins: Mapping[str, str] = MappingProxyType({})  # of settings that are not defaults
    pod_file: PodListFile | None = None  # of `--pods`; None: the pods are those of the cluster
    state_writer: StateWriter = msgspec.field(default_factory=StateWriter)  # of `node.state_dir`

    @property
    def is_live(self) -> bool:
        """Return whether the host is this machine, and not a recording."""
        return self.host_source.spec is None

    @property
    def node_files(self) -> HostFiles:
        """Return the files of the host as its drivers and runtimes see them.

        In a container these files are below `node.host_root`.
        """
        root = self.settings.node.host_root
        if not root or not self.is_live:
            return self.host_source.files
        return DirectoryFiles(Path(root))  # an absolute link of the host stays on the host

    @property
    def runbook(self) -> Runbook:
        """Return the entries of the agent and of these vendors."""
        return build_runbook(self.vendors)


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses, the output and the cluster of a run that serves."""

    listen: tuple[ListenAddress, ...]
    out: str  # folder of the objects in standalone mode, and of the admin socket
    notice: str
    cluster: ApiTarget | None = None  # `None`: standalone mode
    lock: NodeLock | None = None
    access: AccessFiles | None = None  # who may read the metrics; `None`: everybody


class DeviceServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services that publish devices; they run from the start on."""

    messages: MessageQueue
    vendors: VendorManager
    minors: PublishedMinorStore
    health_file: HealthFile
    host_reader: HostReader
    sink: PublishSink
    pipeline: DevicePipeline


def create_inputs(
    settings: Settings,
    host_source: HostSource,
    clock: Clock,
    pod_file: PodListFile | None = None,
    vendors: Mapping[str, DeviceVendor] | None = None,
    origins: Mapping[str, str] = MappingProxyType({}),
) -> AgentInputs:
    """Return the inputs of a run with an empty snapshot. Raises `BadConfig`.

    `origins` are those of the settings, for people.
    """
    name = node_name(host_source, settings)
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name=name, source=host_source.source)))
    return AgentInputs(
        settings=settings,
        host_source=host_source,
        clock=clock,
        vendors=load_enabled_vendors(settings) if vendors is None else vendors,
        store=store,
        origins=origins,
        pod_file=pod_file,
    )


def build_host_reader(inputs: AgentInputs) -> HostReader:
    """Return the reader of the host's facts."""
    return HostReader(inputs.host_source, inputs.settings, inputs.store, inputs.clock)


def build_device_joiner(
    inputs: AgentInputs, minors: PublishedMinorStore | None = None
) -> DeviceJoiner:
    """Return the joiner of devices with their places; raise `BadConfig`.

    Without `minors` devices get the minors of the state directory, which is only read.
    """
    return DeviceJoiner(inputs.settings, build_minor_store(inputs) if minors is None else minors)


def build_minor_store(
    inputs: AgentInputs, *, stores: bool = False, adopts: bool = False
) -> PublishedMinorStore:
    """Return the store of published minors; it is empty for a recorded host."""
    if not inputs.is_live:
        return PublishedMinorStore(absent_because=RECORDED_HOST)
    folder = inputs.settings.node.state_dir
    return PublishedMinorStore(folder, inputs.state_writer, stores=stores, adopts=adopts)


def build_health_file(inputs: AgentInputs) -> HealthFile:
    """Return the file that stores health; without a state directory or on a recording, no file."""
    if not inputs.is_live:
        return HealthFile("", "", inputs.state_writer, absent_because=RECORDED_HOST)
    folder = inputs.settings.node.state_dir
    boot_id = read_identity(inputs.host_source.files, "", "").boot_id if folder else ""
    return HealthFile(folder, boot_id, inputs.state_writer, absent_because=NO_STATE_FOLDER)


def build_layout_locator(inputs: AgentInputs, files: HostFiles) -> LayoutLocator:
    """Return a locator of the cgroups in `files`, which are the host's."""
    return LayoutLocator(
        files, partial(_kubelet_cgroup_root, inputs.settings.kubelet, inputs.store)
    )


def _kubelet_cgroup_root(settings: KubeletSettings, store: SnapshotStore) -> str:
    """Return the setting, else the value of the kubelet's `/configz`, else an empty text."""
    kubelet = store.current.cluster.kubelet.value
    served = kubelet.cgroup_root if kubelet is not None else None
    return settings.cgroup_root or served or ""


def metric_families(vendors: Mapping[str, DeviceVendor]) -> dict[str, tuple[MetricFamily, ...]]:
    """Return the metric families of each vendor."""
    return {name: vendor.description.families for name, vendor in vendors.items()}


def alias_tables(vendors: Mapping[str, DeviceVendor]) -> tuple[AliasTable, ...]:
    """Return the tables of other exporters' names that the vendors declare."""
    return tuple(table for vendor in vendors.values() for table in vendor.description.aliases)
