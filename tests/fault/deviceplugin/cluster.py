"""A node of a cluster: its API server's watch, its kubelet, and the agent's own decisions.

The kubelet and the agent hear of a pod by watches of their own, in either order. The kubelet's list
of pods is what it was when it was last asked for, as with any list that is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from agent.allocation.check import check_allocations
from agent.allocation.index import AllocationIndex
from agent.app.cluster_facts import ClusterFactsUpdater
from agent.app.identity import MachineIdentity
from agent.clock import SystemClock
from agent.deviceplugin.allocator import Allocator
from agent.deviceplugin.context import PluginContext, PluginTiming
from agent.deviceplugin.plugin import DevicePlugin
from agent.deviceplugin.resources import ContainerAllocation
from agent.messages import MessageQueue
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView, ResourceRequest
from agent.state_writer import StateWriter
from agent.wire_formats.device_allocated import ANNOTATION
from plugins.vendors.nvidia.kubelet import SOCKET_PREFIXES
from proto.gen import deviceplugin_v1beta1_pb2 as pb
from tests import factory
from tests.fault.deviceplugin.stage import BOOT, QUICK
from tests.kubelet.admission import Admitted, Container, Kind
from tests.kubelet.manager import FakeKubelet
from tests.patience import PATIENCE_S
from tests.reported_events import ReportedEvents
from tests.unit.allocation.made import WHOLE, entry, text
from tests.unit.deviceplugin.made import GPU, VENDORS, card, node, plugin_settings

LOOK_S = 0.01
NODE = factory.snapshot().node.name
PATIENT = replace(
    QUICK, pod_wait_s=600.0
)  # for pods that the agent hears of: however slow the machine

Test = Callable[["Cluster"], Awaitable[None]]


def pod(index: int, *cards: int, count: int = 1, init: int = 0, **changes: object) -> PodView:
    """Return a pod that asks the kubelet for `count` cards, and was granted these if any."""
    asks = [ResourceRequest(container="main", resource=GPU, count=count)] if count else []
    if init:
        asks.insert(0, ResourceRequest(container="init", resource=GPU, count=init, init=True))
    created = factory.pod(index, 0, cgroup="", phase="Pending", asks=tuple(asks), node_name=NODE)
    grant = text(*(entry(factory.gpu(i), WHOLE) for i in cards))
    annotations = ((ANNOTATION, grant),) if cards else ()
    wants = (("nvidia.com/gpu", max(count, len(cards))),)
    return replace(created, annotations=annotations, wants=wants, **changes)


def card_numbers(admitted: Admitted) -> list[int]:
    """Return the numbers of the cards whose nodes a container gets."""
    prefix = "/dev/nvidia"
    return sorted(int(path[len(prefix) :]) for path in admitted.devices if path[-1].isdigit())


class CountingDecisions(Allocator):
    """Counts the questions, so that a test knows that an answer was tried without the pod."""

    questions = 0

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
        self.questions += 1
        return super().select_preferred(resource, available, required, size, snapshot, last=last)

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> ContainerAllocation:
        self.questions += 1
        return super().allocate(resource, ids, snapshot, last=last)


class Cluster:
    """The agent runs from `start` to `stop`; kubelet and pods live on meanwhile."""

    def __init__(
        self, root: Path, pace: PluginTiming, cards: int, settings: dict[str, object]
    ) -> None:
        self.kubelet = FakeKubelet(root / "d")
        self.cards = cards
        self.pods: dict[str, PodView] = {}  # of the API server
        self.reported = ReportedEvents()
        self.pods_wanted = asyncio.Event()
        self.wakes = 0  # how often the source of pods was woken
        self.settings = settings
        self._root, self._pace = root, pace
        self.writers: list[StateWriter] = []  # one of each agent
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def reported_events(self) -> list[tuple[str, str]]:
        """Reason and message of each event that was reported."""
        return self.reported.pairs()

    async def start(self, *, in_force: bool = False) -> None:
        """Begin an agent that knows of nothing but the devices, and look at the API server."""
        devices = tuple(map(factory.gpu, range(self.cards)))
        base = node(devices=devices, handler="", in_force=in_force)
        self.store = SnapshotStore(base)
        self.known = ClusterFactsUpdater(
            base.node.name, MachineIdentity(), self.store, SystemClock(), MessageQueue()
        )
        self.decide = CountingDecisions(plugin_settings(**self.settings), VENDORS)
        self.plugin = DevicePlugin(self.site())
        self._tasks = [
            asyncio.create_task(self.plugin.run()),
            asyncio.create_task(self._check_grants()),
            asyncio.create_task(self._follow_pods()),
            asyncio.create_task(self._count_wakes()),
        ]
        self.tell_agent()

    async def restart(self) -> None:
        """End the agent as one that is killed, and begin another; the kubelet goes on."""
        before = self.kubelet.endpoints[GPU]
        await self.stop()
        await self.start()
        await self.kubelet.resource(GPU, not_this=before)

    async def stop(self) -> None:
        """End the agent as a process that is killed: nothing of it is left but its files."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def site(self) -> PluginContext:
        self.writers.append(StateWriter())
        return PluginContext(
            socket_prefixes={"nvidia": SOCKET_PREFIXES},
            state_writer=self.writers[-1],
            folder=str(self.kubelet.folder),
            store=self.store,
            backend=self.decide,
            clock=SystemClock(),
            state_dir=str(self._root / "s"),
            boot_id=BOOT,
            messages=self.reported.messages,
            pods_wanted=self.pods_wanted,
            timing=self._pace,
        )

    def tell_agent(self) -> None:
        """Let the agent's watch have what the API server has."""
        self.known.update_api_pods({pod.uid: pod for pod in self.pods.values()})

    def list_at_kubelet(self, *pods: PodView) -> None:
        """Let the agent have the kubelet's list, which it has until it asks again."""
        self.known.update_kubelet_pods(
            SnapshotPart(tuple(sorted(pods, key=lambda one: one.uid)), 1.0)
        )

    def create(self, one: PodView) -> None:
        """Have a pod that both watches tell of."""
        self.pods[one.uid] = one
        self.tell_agent()

    def change(self, one: PodView, **changes: object) -> PodView:
        """Change a pod at the API server, which both watches tell of."""
        changed = replace(one, **changes)
        self.create(changed)
        return changed

    async def delete(self, one: PodView) -> None:
        """Have the pod's object gone: its devices are free in the kubelet."""
        del self.pods[one.uid]
        await self.kubelet.end(one.uid)
        self.tell_agent()

    async def admit(self, one: PodView, *, aligned: bool = False) -> Admitted:
        """Admit a pod and begin its last container; the agent's cgroups have it from then on."""
        containers = [
            Container(
                ask.container, {ask.resource: ask.count}, Kind.INIT if ask.init else Kind.MAIN
            )
            for ask in one.asks
        ]
        await self.kubelet.admit_pod(one.uid, containers, aligned=aligned)
        return await self.kubelet.begin(one.uid, containers[-1])

    async def run(self, one: PodView, *, aligned: bool = False) -> Admitted:
        """Create a pod, admit it, and wait until the agent has read whose the devices are."""
        self.create(one)
        admitted = await self.admit(one, aligned=aligned)
        await self.kubelet.until(lambda: self.holds(one), "the kubelet's account")
        self.change(one, phase="Running")
        return admitted

    def holds(self, one: PodView) -> bool:
        """Return whether the agent has read the pod's entry in the checkpoint."""
        entries = self.store.current.served.value.held
        return any(entry.pod_uid == one.uid and entry.container for entry in entries)

    def account(self, one: PodView) -> list[int]:
        """Return the cards that the kubelet believes the pod to have."""
        ids = {
            i
            for allocation in self.kubelet.allocations
            if allocation.pod_uid == one.uid
            for i in allocation.ids
        }
        return [number for number in range(self.cards) if card(number) in ids]

    async def unanswered(self) -> None:
        """Return when the agent was asked something, and tried to answer it twice."""
        first = self.decide.questions
        await self.kubelet.until(lambda: self.decide.questions >= first + 2, "a question")

    async def _follow_pods(self) -> None:
        with self.store.subscribe("cluster.pods", "cluster.deleted_pods") as changes:
            while True:
                await changes.wait()
                self.plugin.notify_devices_changed()

    async def _count_wakes(self) -> None:
        while True:
            await self.pods_wanted.wait()
            self.pods_wanted.clear()
            self.wakes += 1

    async def _check_grants(self) -> None:
        allocation_index = AllocationIndex()
        while True:
            self.store.put(
                allocations=SnapshotPart(
                    check_allocations(self.store.current, allocation_index), 1.0
                )
            )
            await asyncio.sleep(LOOK_S)


def response_of(cluster: Cluster, one: PodView) -> pb.ContainerAllocateResponse:
    """Return what the kubelet keeps of the last answer about a pod."""
    return next(a for a in cluster.kubelet.allocations if a.pod_uid == one.uid).response


@contextlib.asynccontextmanager
async def _running(
    root: Path, pace: PluginTiming, cards: int, **settings: object
) -> AsyncIterator[Cluster]:
    cluster = Cluster(root, pace, cards, settings)
    try:
        await cluster.kubelet.start()
        await cluster.start()
        await cluster.kubelet.resource(GPU, healthy=cards)
        yield cluster
    finally:
        await cluster.stop()
        await cluster.kubelet.stop()
        for writer in cluster.writers:  # none writes into the folder while it is removed
            assert await asyncio.to_thread(writer.close, PATIENCE_S)


def in_cluster(
    test: Test, pace: PluginTiming = PATIENT, *, cards: int = 4, **settings: object
) -> None:
    """Run a test on a node with so many cards, all offered. No kubelet complains."""

    async def live() -> None:
        with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as root:
            async with _running(Path(root), pace, cards, **settings) as cluster:
                await test(cluster)
            assert cluster.kubelet.complaints == []

    asyncio.run(live())
