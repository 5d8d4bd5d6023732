"""An outbox at the strict API server, over real HTTPS, with hours that pass when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agent.app.cluster_facts import ClusterFactsUpdater, create_watches
from agent.app.identity import MachineIdentity
from agent.clock import ManualClock, SystemClock
from agent.kube.endpoint import InClusterTarget
from agent.kube.session import ApiSession, open_session
from agent.kube.watch.reflector import Reflector
from agent.kube.writer.api_writer import ApiWriter
from agent.kube.writer.context import WriterContext, WriterTiming
from agent.messages import MessageQueue
from agent.objects.node_resource_topology import V1ALPHA1
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.publications import DesiredObject, Merge, WriterPhase, WriterState
from tests.apiserver.faults import Fault
from tests.apiserver.log import Logged
from tests.apiserver.server import ApiServer
from tests.factory import snapshot
from tests.patience import PATIENCE_S
from tests.reported_events import ReportedEvents

NODE = "node-a"
DEVICE = "scheduling.koordinator.sh/v1alpha1"
METRIC = "slo.koordinator.sh/v1alpha1"
TOPOLOGY = "topology.node.k8s.io/v1alpha1"
MANAGER = "xpu-agent"
WRITES = ("create", "update", "patch", "delete")
SETTLE_S = PATIENCE_S
LATER = Fault(date_skew_s=3600, times=0)  # the server's clock, an hour on


class Timeline:
    """Sleeps that end only when the time is moved on; everything in between really happens."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        """Sleep until the time was moved on so far."""
        woken = asyncio.get_running_loop().create_future()
        entry = (self.clock.monotonic() + seconds, next(self._order), woken)
        heapq.heappush(self._sleepers, entry)
        try:
            await woken
        finally:
            self._sleepers = [other for other in self._sleepers if other is not entry]
            heapq.heapify(self._sleepers)

    async def settle(self, sleepers: int) -> None:
        """Return when so many sleep: nobody has anything to do."""
        async with asyncio.timeout(SETTLE_S):
            for _ in range(25):  # whoever was just woken is still on its way out of its sleep
                await asyncio.sleep(0)
            while len(self._sleepers) != sleepers:
                await asyncio.sleep(0.001)

    async def advance(self, seconds: float, sleepers: int) -> None:
        """Let time pass, with everything that happens in it."""
        end_s = self.clock.monotonic() + seconds
        await self.settle(sleepers)
        while self._sleepers and self._sleepers[0][0] <= end_s:
            due_s, _, woken = heapq.heappop(self._sleepers)
            self.clock.advance(max(0.0, due_s - self.clock.monotonic()))
            if not woken.done():
                woken.set_result(None)
            await self.settle(sleepers)
        self.clock.advance(end_s - self.clock.monotonic())


class Bench:
    """A server, an outbox that runs, and what was told."""

    def __init__(
        self, server: ApiServer, session: ApiSession, pace: WriterTiming, uid: str, *, watched: bool
    ) -> None:
        self.server = server
        self.time = Timeline(ManualClock())
        self.reported = ReportedEvents()
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name=NODE, uid=uid)))
        self.watches: dict[str, Reflector[Any, Any]] = {}
        self.outbox = ApiWriter(
            WriterContext(
                api=session,
                clock=self.time.clock,
                store=self.store,
                messages=self.reported.messages,
                timing=pace,
                sleep=self.time.sleep,
                uniform=lambda low, high: (low + high) / 2,
                watches=self.watches,
            )
        )
        all_watches = create_watches(
            session,
            NODE,
            ClusterFactsUpdater(
                NODE, MachineIdentity(), SnapshotStore(snapshot()), SystemClock(), MessageQueue()
            ),
            SystemClock(),
            on_version=self.outbox.note_version,
            topology_version=lambda: V1ALPHA1,
        )
        if watched:
            self.watches["device"] = all_watches["device"]

    @property
    def uid(self) -> str:
        """The uid of the Node in the snapshot."""
        return self.store.current.node.uid

    @uid.setter
    def uid(self, uid: str) -> None:
        self.store.put(node=NodeIdentity(name=NODE, uid=uid))

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Reason and message of each event that was reported."""
        return self.reported.pairs()

    async def offer(self, *desired: DesiredObject, publisher: str = "test") -> None:
        """Offer and wait until nothing more happens."""
        self.outbox.offer(publisher, desired)
        await self.settle()

    async def settle(self) -> None:
        """Wait until nothing happens."""
        await self.time.settle(self._writers())

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        await self.time.advance(seconds, self._writers())

    async def until(self, good: Callable[[], bool]) -> None:
        """Return when it is so: what comes by a watch comes in its own time."""
        async with asyncio.timeout(SETTLE_S):
            while not good():
                await asyncio.sleep(0.005)
        await self.settle()

    def _writers(self) -> int:
        """Count those that sleep when nothing is to be done: of each version of an object one."""
        return len(self.outbox._writers)

    def state(self, kind: str = "Device") -> WriterState:
        """Return how one object stands."""
        (states,) = [state for state in self.outbox.states() if state.kind == kind]
        return states

    def phase(self) -> WriterPhase:
        """Return the phase of the only object."""
        (state,) = self.outbox.states()
        return state.phase

    @property
    def reasons(self) -> list[str]:
        """Return the reasons of what was told."""
        return [reason for reason, _ in self.messages]

    def writes(self, resource: str = "devices") -> list[Logged]:
        """Return the writes that the agent asked for since `clear`."""
        return [entry for entry in self.requests(resource) if entry.verb in WRITES]

    def requests(self, resource: str = "devices") -> list[Logged]:
        """Return all that was asked of a resource."""
        return self.server.requests(resource=resource)

    def clear(self) -> None:
        """Forget what was asked."""
        self.server.clear_requests()

    def device(self) -> dict[str, Any]:
        """Return the stored Device."""
        stored_object = self.server.get("Device", NODE)
        assert stored_object is not None
        return stored_object


@contextlib.asynccontextmanager
async def publishing(
    server: ApiServer,
    pace: WriterTiming | None = None,
    uid: str | None = None,
    *,
    watched: bool = False,
) -> AsyncIterator[Bench]:
    """Run an outbox against a server until the block ends, then as if the process were killed.

    `watched`: with the agent's own watch of the Device.
    """
    target = InClusterTarget(url=server.url, folder=str(server.serviceaccount_dir))
    session = await open_session(target, SystemClock(), {})
    bench = Bench(
        server,
        session,
        pace or WriterTiming(),
        uid_of(server) if uid is None else uid,
        watched=watched,
    )
    running = [asyncio.create_task(bench.outbox.run())]
    running += [asyncio.create_task(watch.run()) for watch in bench.watches.values()]
    try:
        await asyncio.sleep(0)
        yield bench
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await session.close()


def uid_of(server: ApiServer) -> str:
    """Return the uid of the Node."""
    node = server.get("Node", NODE)
    return str(node["metadata"]["uid"]) if node is not None else ""


def owner(uid: str) -> list[dict[str, object]]:
    """Return the owner references of an object of that Node."""
    reference = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid}
    return [{**reference, "controller": True, "blockOwnerDeletion": True}]


def condition(healthy: bool = True, at: str = "2026-01-02T03:04:05Z") -> dict[str, object]:
    """Return a device's condition."""
    reason = "DeviceHealthy" if healthy else "Xid79"
    return {
        "type": "Healthy",
        "status": str(healthy),
        "reason": reason,
        "message": "",
        "lastTransitionTime": at,
    }


def device(uid: str, *, healthy: bool = True, cards: int = 2, **more: Any) -> DesiredObject:
    """Return a Device as it is published; `labels` and `annotations` in the place of its own."""
    devices = [
        {
            "type": "gpu",
            "id": f"GPU-{minor}",
            "minor": minor,
            "health": healthy or minor > 0,
            "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi"},
            "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:15"},
            "conditions": [condition(healthy or minor > 0)],
        }
        for minor in range(cards)
    ]
    labels: Mapping[str, str] = more.get("labels", {"node.koordinator.sh/gpu-vendor": "nvidia"})
    annotations: Mapping[str, str] = more.get("annotations", {"xpu-agent.io/topology": '{"v":1}'})
    metadata: dict[str, object] = {
        "name": NODE,
        "labels": dict(labels),
        "annotations": dict(annotations),
        "ownerReferences": owner(uid),
    }
    return DesiredObject(
        file_name="device.yaml",
        api_version=DEVICE,
        kind="Device",
        name=NODE,
        body={
            "apiVersion": DEVICE,
            "kind": "Device",
            "metadata": metadata,
            "spec": {"devices": devices},
        },
    )


def no_device() -> DesiredObject:
    """Return the wish that there be none."""
    body = {"apiVersion": DEVICE, "kind": "Device", "metadata": {"name": NODE}}
    return DesiredObject(
        file_name="device.yaml",
        api_version=DEVICE,
        kind="Device",
        name=NODE,
        body=body,
        is_absent=True,
    )


def metric(minute: int, cpu: str = "1") -> DesiredObject:
    """Return a NodeMetric as it is published each minute."""
    use = {"resources": {"cpu": cpu, "memory": "1Gi"}}
    status = {
        "updateTime": f"2026-01-02T{minute // 60 % 24:02}:{minute % 60:02}:00Z",
        "nodeMetric": {
            "nodeUsage": use,
            "systemUsage": {},
            "numaUsages": [{"numaNodeID": 0, "nodeUsage": use, "systemUsage": {}}],
        },
    }
    return DesiredObject(
        file_name="nodemetric.yaml",
        api_version=METRIC,
        kind="NodeMetric",
        name=NODE,
        body={
            "apiVersion": METRIC,
            "kind": "NodeMetric",
            "metadata": {"name": NODE},
            "status": status,
        },
        status_only=True,
    )


def topology(uid: str, pool: str = "0-3", merge: Merge | None = None) -> DesiredObject:
    """Return a NodeResourceTopology as it is published."""
    amount = {"capacity": "4", "allocatable": "4", "available": "4"}
    return DesiredObject(
        file_name="noderesourcetopology.yaml",
        api_version=TOPOLOGY,
        kind="NodeResourceTopology",
        name=NODE,
        body={
            "apiVersion": TOPOLOGY,
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": NODE,
                "annotations": {"node.koordinator.sh/cpu-shared-pools": pool},
                "ownerReferences": owner(uid),
            },
            "topologyPolicies": ["None"],
            "zones": [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", **amount}]}],
        },
        merge=merge,
    )


def node_metric() -> dict[str, object]:
    """Return the object that koord-manager makes."""
    return {"apiVersion": METRIC, "kind": "NodeMetric", "metadata": {"name": NODE}, "spec": {}}


def of_koordlet(uid: str, **labels: str) -> dict[str, Any]:
    """Return a Device as a koordlet writes it: other resources, no conditions, its own labels."""
    body = dict(device(uid, labels=labels or {"node.koordinator.sh/gpu-vendor": "nvidia"}).body)
    cards = [{"type": "gpu", "id": f"GPU-{n}", "minor": n, "health": True} for n in range(2)]
    metadata = {key: value for key, value in body["metadata"].items() if key != "annotations"}  # type: ignore[attr-defined] # as it is built
    return {**body, "metadata": metadata, "spec": {"devices": cards}}
