"""A device plug-in and a strict kubelet in one test: short folders, short waits, one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from agent.clock import SystemClock
from agent.deviceplugin.context import PluginContext, PluginTiming
from agent.deviceplugin.plugin import DevicePlugin
from agent.deviceplugin.resources import (
    AllocationError,
    ContainerAllocation,
    KubeletDevice,
    KubeletResource,
    UnknownPodError,
)
from agent.snapshot.allocation import AllocationView, PodAllocation
from agent.snapshot.device import Pairs
from agent.snapshot.device_plugin import DevicePluginView, PluginResource
from agent.snapshot.edits import ContainerEdits, FolderEdit
from agent.snapshot.node import (
    DeviceView,
    NodeIdentity,
    NodeSnapshot,
    SnapshotChange,
    SnapshotStore,
    VendorState,
)
from agent.snapshot.part import SnapshotPart
from agent.state_writer import StateWriter
from plugins.vendors.nvidia.kubelet import SOCKET_PREFIXES
from tests.kubelet.manager import FakeKubelet
from tests.patience import PATIENCE_S
from tests.reported_events import ReportedEvents

GPU = "nvidia.com/gpu"
BOOT = "6f1c1a52-0000-4000-8000-000000000001"

# as patient as the real one where a test is about patience, else a hundred times quicker
QUICK = PluginTiming(
    offer_check_s=0.02,
    poll_s=0.05,
    absent_s=0.02,
    register_s=1.0,
    stream_s=0.2,
    server_pause_s=0.05,
    retry_s=0.02,
    max_retry_s=0.1,
    refused_retry_s=0.2,
    list_interval_s=0.05,
    inventory_wait_s=0.3,
    stop_s=0.5,
    pod_wait_s=0.3,
)

Test = Callable[["Stage"], Awaitable[None]]


def gpus(count: int, *, sick: tuple[int, ...] = (), numa: bool = True) -> KubeletResource:
    """Return so many cards, on two NUMA nodes."""
    nodes = [(index * 2 // count,) if numa else () for index in range(count)]
    return KubeletResource(
        name=GPU,
        vendor="nvidia",
        devices=tuple(
            KubeletDevice(id=f"GPU-{index}", healthy=index not in sick, numa_nodes=nodes[index])
            for index in range(count)
        ),
    )


class Table:
    """Decisions out of a table that the test writes."""

    def __init__(self, *resources: KubeletResource) -> None:
        self.offered = resources
        self.env: Pairs = ()
        self.folders: tuple[FolderEdit, ...] = ()
        self.refusal: Exception | None = None
        self.advice: tuple[str, ...] | Exception | None = None
        self.start: Exception | None = None
        self.pod_uid = ""
        self.unseen = 0  # so many more times the pod is not known
        self.asked: list[tuple[str, ...]] = []

    def resources(self, snapshot: NodeSnapshot) -> tuple[KubeletResource, ...]:
        del snapshot
        return self.offered

    def select_preferred(
        self,
        resource: str,
        available: tuple[str, ...],
        required: tuple[str, ...],
        size: int,
        snapshot: NodeSnapshot,
        *,
        last: bool = False,
    ) -> tuple[str, ...]:
        del resource, required, snapshot, last
        if isinstance(self.advice, Exception):
            raise self.advice
        return self.advice or tuple(sorted(available)[:size])

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> ContainerAllocation:
        del snapshot
        self.asked.append(ids)
        if self.refusal is not None:
            raise self.refusal
        if self.unseen and not last:
            self.unseen -= 1
            raise UnknownPodError("PodNotSeen", resource)
        edits = ContainerEdits(
            env=(("NVIDIA_VISIBLE_DEVICES", ",".join(sorted(ids))), *self.env),
            folders=self.folders,
        )
        return ContainerAllocation(edits=edits, pod_uid=self.pod_uid)

    def check_start(self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot) -> None:
        del resource, ids, snapshot
        if self.start is not None:
            raise self.start


class ViewStore(SnapshotStore):
    """Records each view of the device plug-in."""

    def __init__(self) -> None:
        super().__init__(NodeSnapshot(node=NodeIdentity(name="node-a")))
        self.views: list[DevicePluginView] = []

    def change(self, make: SnapshotChange) -> NodeSnapshot:
        before = self.current
        snapshot = super().change(make)
        if snapshot.served is not before.served:
            self.views.append(snapshot.served.value)
        return snapshot


class Stage:
    """The plug-in runs from `start` to `stop`; `kill` ends it without a word to anybody."""

    def __init__(self, root: Path, pace: PluginTiming) -> None:
        self.folder = root / "d"
        self.kubelet = FakeKubelet(self.folder)
        self.table = Table(gpus(8))
        self.pace = pace
        self.state_dir = str(root / "s")
        self.boot_id = BOOT
        self.reported = ReportedEvents()
        self.store = ViewStore()
        self.vendor = "ready"
        self.grants = {}
        self.plugin: DevicePlugin | None = None
        self.writers: list[StateWriter] = []  # one of each agent
        self._task: asyncio.Task[None] | None = None

    @property
    def reported_events(self) -> list[tuple[str, str]]:
        """Reason and message of each event that was reported."""
        return self.reported.pairs()

    @property
    def views(self) -> list[DevicePluginView]:
        """Each view that the plug-in put into the snapshot."""
        return self.store.views

    @property
    def vendor(self) -> str:
        """The state of the vendor in the snapshot."""
        return self.store.current.vendors[0].state

    @vendor.setter
    def vendor(self, state: str) -> None:
        awaited = () if state == "ready" else ("nvidia",)
        self.store.put(
            vendors=(VendorState(vendor="nvidia", state=state),),
            devices=SnapshotPart(DeviceView(awaited=awaited), 1.0),
        )

    @property
    def grants(self) -> Mapping[str, PodAllocation]:
        """The allocations in the snapshot."""
        return self.store.current.allocations.value.pods

    @grants.setter
    def grants(self, pods: Mapping[str, PodAllocation]) -> None:
        self.store.put(allocations=SnapshotPart(AllocationView(pods=pods), 1.0))

    def site(self) -> PluginContext:
        self.writers.append(StateWriter())
        return PluginContext(
            socket_prefixes={"nvidia": SOCKET_PREFIXES},
            state_writer=self.writers[-1],
            folder=str(self.folder),
            store=self.store,
            backend=self.table,
            clock=SystemClock(),
            state_dir=self.state_dir,
            boot_id=self.boot_id,
            messages=self.reported.messages,
            random_uniform=lambda low, high: (low + high) / 2,
            timing=self.pace,
        )

    async def start(self) -> DevicePlugin:
        """Begin a plug-in, as a process that starts."""
        self.plugin = DevicePlugin(self.site())
        self._task = asyncio.create_task(self.plugin.run())
        return self.plugin

    async def stop(self) -> None:
        """End it as a process that is asked to."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def offer(self, *resources: KubeletResource) -> None:
        """Decide otherwise from now on, and say so."""
        self.table.offered = resources
        if self.plugin is not None:
            self.plugin.notify_devices_changed()

    def served(self, name: str = GPU) -> PluginResource:
        """Return how a resource stands."""
        assert self.plugin is not None
        return next(resource for resource in self.plugin.view().resources if resource.name == name)

    def stands(self, state: str, reason: str = "", name: str = GPU) -> bool:
        """Say whether it stands so by now."""
        assert self.plugin is not None
        resources = [resource for resource in self.plugin.view().resources if resource.name == name]
        return any((resource.state, resource.reason) == (state, reason) for resource in resources)

    def sockets(self) -> list[str]:
        """Return the names of our sockets in the folder."""
        return sorted(path.name for path in self.folder.glob("xpu-agent-*.sock"))


@contextlib.asynccontextmanager
async def staged(root: Path, pace: PluginTiming) -> AsyncIterator[Stage]:
    stage = Stage(root, pace)
    try:
        yield stage
    finally:
        await stage.stop()
        await stage.kubelet.stop()
        for writer in stage.writers:  # none writes into the folder while it is removed
            assert await asyncio.to_thread(writer.close, PATIENCE_S)


def on_stage(test: Test, pace: PluginTiming = QUICK) -> None:
    """Run a test with its own short folder; nothing is started yet. No kubelet complains."""

    async def live() -> None:
        with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as root:
            async with staged(Path(root), pace) as stage:
                await test(stage)
            assert stage.kubelet.complaints == []

    asyncio.run(live())


def refused(reason: str, detail: str = "because") -> AllocationError:
    """Return a refusal."""
    return AllocationError(reason, detail)
