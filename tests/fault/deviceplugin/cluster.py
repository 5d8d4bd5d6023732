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

from agent.clock import SystemClock
from agent.daemon.cluster.known import Known
from agent.deviceplugin.base import Allocated
from agent.deviceplugin.deciding import Deciding
from agent.deviceplugin.kubelet.plugin import DevicePlugin
from agent.deviceplugin.serve.site import Pace, Site
from agent.grants.check import check_grants
from agent.grants.kept import Kept
from agent.model.foreign.device_allocated import KEY
from agent.model.part import Part
from agent.model.pod import PodView, ResourceAsk
from agent.model.runtime.served import ServedView
from agent.model.snapshot import NodeSnapshot
from agent.node.identity import Machine
from agent.node.store import SnapshotStore
from agent.state_writer import StateWriter
from proto.gen import deviceplugin_v1beta1_pb2 as pb
from tests import factory
from tests.fault.deviceplugin.stage import BOOT, QUICK
from tests.kubelet.admission import Admitted, Container, Kind
from tests.kubelet.manager import FakeKubelet
from tests.patience import PATIENCE_S
from tests.unit.deviceplugin.made import GPU, VENDORS, card, node, plugin_settings
from tests.unit.grants.made import WHOLE, entry, text

LOOK_S = 0.01
NODE = factory.snapshot().node.name
PATIENT = replace(QUICK, pod_s=600.0)  # for pods that the agent hears of: however slow the machine

Test = Callable[["Cluster"], Awaitable[None]]


def pod(index: int, *cards: int, count: int = 1, init: int = 0, **changes: object) -> PodView:
    """Return a pod that asks the kubelet for `count` cards, and was granted these if any."""
    asks = [ResourceAsk(container="main", resource=GPU, count=count)] if count else []
    if init:
        asks.insert(0, ResourceAsk(container="init", resource=GPU, count=init, init=True))
    made = factory.pod(index, 0, cgroup="", phase="Pending", asks=tuple(asks), node_name=NODE)
    grant = text(*(entry(factory.gpu(i), WHOLE) for i in cards))
    annotations = ((KEY, grant),) if cards else ()
    wants = (("nvidia.com/gpu", max(count, len(cards))),)
    return replace(made, annotations=annotations, wants=wants, **changes)


def card_numbers(admitted: Admitted) -> list[int]:
    """Return the numbers of the cards whose nodes a container gets."""
    prefix = "/dev/nvidia"
    return sorted(int(path[len(prefix) :]) for path in admitted.devices if path[-1].isdigit())


class CountingDecisions(Deciding):
    """Counts the questions, so that a test knows that an answer was tried without the pod."""

    questions = 0

    def preferred(
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
        return super().preferred(resource, available, required, size, snapshot, last=last)

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> Allocated:
        self.questions += 1
        return super().allocate(resource, ids, snapshot, last=last)


class Cluster:
    """The agent runs from `start` to `stop`; kubelet and pods live on meanwhile."""

    def __init__(self, root: Path, pace: Pace, cards: int, settings: dict[str, object]) -> None:
        self.kubelet = FakeKubelet(root / "d")
        self.cards = cards
        self.pods: dict[str, PodView] = {}  # of the API server
        self.told: list[tuple[str, str]] = []
        self.wakes = 0  # how often the source of pods was woken
        self.settings = settings
        self._root, self._pace = root, pace
        self.writers: list[StateWriter] = []  # one of each agent
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, *, in_force: bool = False) -> None:
        """Begin an agent that knows of nothing but the devices, and look at the API server."""
        devices = tuple(map(factory.gpu, range(self.cards)))
        base = node(devices=devices, handler="", in_force=in_force)
        self.store = SnapshotStore(base)
        self.known = Known(base.node.name, Machine(), self.store, SystemClock(), lambda: None)
        self.decide = CountingDecisions(plugin_settings(**self.settings), VENDORS)
        self.plugin = DevicePlugin(self.site())
        self.known.pods_changed = self.plugin.changed
        self._tasks = [
            asyncio.create_task(self.plugin.run()),
            asyncio.create_task(self._check_grants()),
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

    def site(self) -> Site:
        self.writers.append(StateWriter())
        return Site(
            state_writer=self.writers[-1],
            folder=str(self.kubelet.folder),
            current=lambda: self.store.current,
            decide=self.decide,
            clock=SystemClock(),
            state_dir=str(self._root / "s"),
            boot_id=BOOT,
            served=self._served,
            tell=lambda reason, message: self.told.append((reason, message)),
            wake=self._wake,
            pace=self._pace,
        )

    def tell_agent(self) -> None:
        """Let the agent's watch have what the API server has."""
        self.known.api_pods({pod.uid: pod for pod in self.pods.values()})

    def list_at_kubelet(self, *pods: PodView) -> None:
        """Let the agent have the kubelet's list, which it has until it asks again."""
        self.known.kubelet_pods(Part(tuple(sorted(pods, key=lambda one: one.uid)), 1.0))

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
        held = self.store.current.served.value.held
        return any(entry.pod_uid == one.uid and entry.container for entry in held)

    def account(self, one: PodView) -> list[int]:
        """Return the cards that the kubelet believes the pod to have."""
        ids = {i for held in self.kubelet.allocations if held.pod_uid == one.uid for i in held.ids}
        return [number for number in range(self.cards) if card(number) in ids]

    async def unanswered(self) -> None:
        """Return when the agent was asked something, and tried to answer it twice."""
        first = self.decide.questions
        await self.kubelet.until(lambda: self.decide.questions >= first + 2, "a question")

    def _served(self, view: ServedView) -> None:
        self.store.put(served=Part(view, 1.0))

    def _wake(self) -> None:
        self.wakes += 1

    async def _check_grants(self) -> None:
        kept = Kept()
        while True:
            self.store.put(grants=Part(check_grants(self.store.current, kept), 1.0))
            await asyncio.sleep(LOOK_S)


def response_of(cluster: Cluster, one: PodView) -> pb.ContainerAllocateResponse:
    """Return what the kubelet keeps of the last answer about a pod."""
    return next(a for a in cluster.kubelet.allocations if a.pod_uid == one.uid).response


@contextlib.asynccontextmanager
async def _running(
    root: Path, pace: Pace, cards: int, **settings: object
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


def in_cluster(test: Test, pace: Pace = PATIENT, *, cards: int = 4, **settings: object) -> None:
    """Run a test on a node with so many cards, all offered. No kubelet complains."""

    async def live() -> None:
        with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as root:
            async with _running(Path(root), pace, cards, **settings) as cluster:
                await test(cluster)
            assert cluster.kubelet.complaints == []

    asyncio.run(live())
