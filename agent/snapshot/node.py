"""The snapshot of the node that every request and publisher reads, and the store that holds it.

A snapshot is immutable and replaced by reference; tasks subscribe to values of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_
from typing import Generic, TypeVar

import msgspec

from agent.snapshot.allocation import AllocationView, VerificationView
from agent.snapshot.cluster import ClusterServiceStatus, ClusterView
from agent.snapshot.container import ContainerServiceStatus, RuntimeView
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.device import Device, DeviceLink, VendorDevice
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.host_devices import HostDevicesView
from agent.snapshot.inventory import (
    DeviceGroup,
    DeviceSample,
    Inventory,
    Problem,
    RejectionCount,
)
from agent.snapshot.part import Counts, SnapshotPart
from agent.snapshot.pci import NumaOverride, PciTree, TopologyFile
from agent.snapshot.pod import PodView
from agent.snapshot.publications import AuditRecord, EventLine, Publication, PublisherStatus
from agent.snapshot.self_check import (
    DesiredFiles,
    EnforcementView,
    LoopStatus,
    ResctrlView,
    SelfCheck,
)
from agent.snapshot.usage import (
    PressureWatch,
    SharingView,
    TrendView,
    UsageReport,
    UsageSample,
)

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


def are_same_objects(values: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether both hold the same objects in the same order, compared by identity."""
    return len(values) == len(others) and all(map(is_, values, others))


class IdentityMemo(Generic[T]):
    """The last result of a computation, reused while all its inputs are the same objects.

    Any thread may call it: each takes one reference, and the work is at worst done twice.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], T] | None = None

    def get(self, inputs: tuple[object, ...], compute: Callable[[], T]) -> T:
        """Return the result of the computation for these inputs."""
        last = self._last
        if last is not None and are_same_objects(last[0], inputs):
            return last[1]
        value = compute()
        self._last = (inputs, value)
        return value


class ItemMemo(Generic[I, T]):
    """A function of single items, called only for items that the last call did not have.

    Items are frozen and compared by identity. For one thread.
    """

    def __init__(self, compute: Callable[[I], T]) -> None:
        self._compute = compute
        self._results: dict[int, tuple[I, T]] = {}  # by id of the item, which is held with it

    def map(self, items: Iterable[I]) -> list[T]:
        """Return the result for each item, in order."""
        previous, compute = self._results, self._compute
        rows = [previous.get(id(item)) or (item, compute(item)) for item in items]
        self._results = {id(row[0]): row for row in rows}
        return [row[1] for row in rows]


class SnapshotMemo(Generic[T]):
    """A function of a few parts of the snapshot, called only when one of them is another object.

    Parts are frozen and replaced whole, so identity is enough. May be called from several threads:
    each takes one reference, and the work is at worst done twice.
    """

    def __init__(
        self,
        parts: Callable[[NodeSnapshot], tuple[object, ...]],
        compute: Callable[[NodeSnapshot], T],
    ) -> None:
        self._parts = parts
        self._compute = compute
        self._memo = IdentityMemo[T]()

    def __call__(self, snapshot: NodeSnapshot) -> T:
        """Return the value for this snapshot."""
        return self._memo.get(self._parts(snapshot), partial(self._compute, snapshot))


class Subscription:
    """Wakes one task of the loop thread when a value of the snapshot is another object.

    Values are compared by identity. A path such as `devices.value` leaves ages out, so that a
    value that was only confirmed wakes nobody.
    """

    def __init__(self, store: SnapshotStore, paths: tuple[str, ...]) -> None:
        self._store = store
        self._readers = tuple(attrgetter(path) for path in paths)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def compare(self, old: NodeSnapshot, new: NodeSnapshot) -> None:
        """Wake the task if a value differs; for the store, on any thread."""
        if any(read(old) is not read(new) for read in self._readers):
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._changed.set)

    async def wait(self) -> None:
        """Wait for the next change; one since the last call counts."""
        await self._changed.wait()
        self._changed.clear()

    def __enter__(self) -> Subscription:
        """Return the subscription, which ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the subscription."""
        self._store.unsubscribe(self)


class SnapshotStore:
    """Holds one reference. Readers take it without a lock; writers replace it one at a time."""

    def __init__(self, first: NodeSnapshot) -> None:
        self._lock = threading.Lock()
        self._subscriptions: tuple[Subscription, ...] = ()
        self.current = first

    def change(self, make: SnapshotChange) -> NodeSnapshot:
        """Replace the snapshot by what `make` makes of it; keep `make` short, it holds the lock."""
        with self._lock:
            old, self.current = self.current, make(self.current)
            for subscription in self._subscriptions:
                subscription.compare(old, self.current)
            return self.current

    def subscribe(self, *paths: str) -> Subscription:
        """Return a subscription to values such as `devices.value`; belongs to the loop thread."""
        subscription = Subscription(self, paths)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        with self._lock:
            self._subscriptions = tuple(
                one for one in self._subscriptions if one is not subscription
            )

    def put(self, **parts: object) -> NodeSnapshot:
        """Replace parts by name."""
        return self.change(lambda now: msgspec.structs.replace(now, **parts))


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of this node, and the source of its facts."""

    name: str
    uid: str = ""  # uid of the Node object; empty without a cluster
    boot_id: str = ""
    boot_time_s: float = 0.0  # wall clock
    kernel: str = ""
    architecture: str = ""
    source: str = "this machine"  # "this machine", or the name of the recording


class VendorState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one vendor: of its worker, and the worker's last answer."""

    vendor: str
    state: str = "starting"  # starting, ready, stalled, restarting, quarantined, released
    reason: str = ""  # CamelCase reason why it is not ready
    message: str = ""
    restarts: int = 0
    recycles: int = 0  # processes that were replaced without a failure: memory, an upgraded library
    pid: int | None = None
    inventory: SnapshotPart[Inventory | None] = SnapshotPart(None)
    samples: SnapshotPart[tuple[DeviceSample, ...]] = SnapshotPart(())
    # implausible readings, which no sample contains, by family
    rejections: tuple[RejectionCount, ...] = ()


class GpuDirectHost(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the host that GPUDirect RDMA depends on; `None` if the host does not show it."""

    peer_memory: str | None = None  # module that registers GPU memory with RDMA drivers
    driver: bool = False  # NVIDIA's kernel module is loaded
    open_modules: bool = False  # the module is the open one, which exports dma-buf
    driver_major: int | None = None
    kernel: tuple[int, int] | None = None


class GpuDirectCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a GPU and a NIC exchange data slower than they could; `verdict` as below."""

    name: str  # CamelCase
    verdict: str
    detail: str  # names the port, module or group


class GpuDirectPair(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a GPU and a NIC can exchange data without the host's memory (GPUDirect RDMA)."""

    gpu: str  # Device.key
    nic: str
    level: str  # distance; two levels of one switch chip count as one
    verdict: str  # ok, slow, no, unknown
    checks: tuple[GpuDirectCheck, ...] = ()  # those that are not ok


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """All devices of all vendors with their places; by kind, then minor, then bus id."""

    devices: tuple[Device, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    groups: tuple[DeviceGroup, ...] = ()  # of all vendors, by size, then members
    group_policy: str | None = None
    problems: tuple[tuple[str, Problem], ...] = ()  # (vendor, problem)
    topology_file: str | None = None  # name and SHA-256 prefix of a file that filled gaps
    awaited: tuple[str, ...] = ()  # vendors of which the view has only what sysfs shows so far
    # The minors published by an earlier agent are not read yet: these may differ from them.
    provisional_minors: bool = False
    direct: tuple[GpuDirectPair, ...] = ()  # each GPU with each NIC, in the order of devices
    numa_overrides: tuple[NumaOverride, ...] = ()  # overrides that were applied

    @property
    def is_final(self) -> bool:
        """Return whether every vendor has answered or failed, and minors change no more."""
        return not (self.awaited or self.provisional_minors)


class HotplugView(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent notices added and removed hardware, with counters since the start.

    `problem` says why there are no events where there should be.
    """

    state: str = "off"  # off (a recorded host, or a setting), listening, polling
    problem: str = ""
    seen: Counts = ()  # events by subsystem
    dropped: Counts = ()  # dropped events by reason
    scans: Counts = ()  # reads of the host by cause


class RemovedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device whose function the kernel removed; it is shown until `until_s` (monotonic)."""

    vendor: str
    device: VendorDevice
    until_s: float


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the node; replaced whole, never edited.

    A part that was never read has no age.
    """

    node: NodeIdentity
    cpus: SnapshotPart[CpuTopology] = SnapshotPart(CpuTopology())
    numa: SnapshotPart[NumaTopology] = SnapshotPart(NumaTopology())
    pci: SnapshotPart[PciTree] = SnapshotPart(PciTree())
    # functions whose low link speed lasts
    slow_links: frozenset[str] = frozenset()
    # the provider's topology of a virtual machine
    topology_file: SnapshotPart[TopologyFile | None] = SnapshotPart(None)
    gpudirect_host: GpuDirectHost = GpuDirectHost()
    vendors: tuple[VendorState, ...] = ()  # by name
    devices: SnapshotPart[DeviceView] = SnapshotPart(DeviceView())
    pods: SnapshotPart[tuple[PodView, ...]] = SnapshotPart(())
    cluster: ClusterView = ClusterView()  # all parts never taken: in standalone mode
    usage: SnapshotPart[UsageSample] = SnapshotPart(UsageSample())
    report: SnapshotPart[UsageReport] = SnapshotPart(UsageReport())
    trend: SnapshotPart[TrendView] = SnapshotPart(TrendView())
    pressure: SnapshotPart[PressureWatch] = SnapshotPart(PressureWatch())
    sharing: SnapshotPart[SharingView] = SnapshotPart(SharingView())
    host_devices: SnapshotPart[HostDevicesView] = SnapshotPart(HostDevicesView())
    allocations: SnapshotPart[AllocationView] = SnapshotPart(AllocationView())
    runtime: SnapshotPart[RuntimeView] = SnapshotPart(RuntimeView())
    # of other device plug-ins, while the agent itself serves the kubelet nothing
    kubelet_devices: SnapshotPart[tuple[KubeletAllocation, ...]] = SnapshotPart(())
    served: SnapshotPart[DevicePluginView] = SnapshotPart(DevicePluginView())
    verification: SnapshotPart[VerificationView] = SnapshotPart(VerificationView())
    enforcement: SnapshotPart[EnforcementView] = SnapshotPart(EnforcementView())
    desired_files: DesiredFiles = DesiredFiles()
    resctrl: ResctrlView = ResctrlView()
    hotplug: HotplugView = HotplugView()
    removed_devices: tuple[RemovedDevice, ...] = ()
    refused: tuple[tuple[str, int], ...] = ()  # refused reads of host facts so far, by errno
    # State of the agent itself, added when a page or a scrape is rendered.
    cluster_service: ClusterServiceStatus | None = None  # None: standalone mode
    container_service: ContainerServiceStatus | None = None
    publishers: tuple[PublisherStatus, ...] = ()
    publications: tuple[Publication, ...] = ()
    events: tuple[EventLine, ...] = ()  # the last ones, oldest first
    audit: tuple[AuditRecord, ...] = ()  # the last writes of cgroup files, oldest first
    loops: tuple[LoopStatus, ...] = ()
    checks: tuple[SelfCheck, ...] = ()  # checks of services that have no other part of the snapshot


SnapshotChange = Callable[[NodeSnapshot], NodeSnapshot]


def devices_by_vendor(snapshot: NodeSnapshot) -> Mapping[str, tuple[VendorDevice, ...]]:
    """Return the devices of each vendor by its plug-in's name, as the joined view has them.

    The plug-in's name is not the maker's: NVIDIA's NICs are those of `rdma`.
    """
    owners: dict[tuple[str, str], str] = {}
    for state in snapshot.vendors:
        for info in state.inventory.value.devices if state.inventory.value else ():
            owners.setdefault((info.kind.value, info.key), state.vendor)
    by_vendor: dict[str, list[VendorDevice]] = {}
    for device in snapshot.devices.value.devices:
        owner = owners.get((device.info.kind.value, device.key))
        if owner is not None:
            by_vendor.setdefault(owner, []).append(device.info)
    return {name: tuple(devices) for name, devices in by_vendor.items()}


def node_uid(snapshot: NodeSnapshot) -> str:
    """Return the Node's uid; empty while it is unknown, or after the Node was deleted."""
    if not snapshot.cluster.is_clustered:
        return snapshot.node.uid
    node = snapshot.cluster.node.value
    return node.uid if node is not None else ""


def is_owner_unknown(snapshot: NodeSnapshot) -> bool:
    """Return whether the Node that owns the agent's objects is not known yet.

    An object without an owner would outlive its Node. An object of a deleted Node would be
    collected at once.
    """
    return snapshot.cluster.is_clustered and not node_uid(snapshot)
