"""A kubelet that answers as written down, and time that passes when somebody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from agent.clock import ManualClock
from agent.config.cluster import KubeletSettings
from agent.kube.errors import ApiError, Forbidden, Unauthorized, Unreachable
from agent.kubelet.client import TIMEOUT, PodList
from agent.kubelet.poller import KubeletFactsSource, KubeletPoller
from agent.loop import T
from agent.snapshot.cluster import KubeletView
from agent.snapshot.cpu import CpuTopology
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.kubelet import KubeletConfig

AWAY = Unreachable("GET /pods/", "connection refused")
LATE = Unreachable("GET /pods/", "no answer", reason=TIMEOUT)
NOBODY = Unauthorized("GET /pods/", "Unauthorized", code=401)
BARRED = Forbidden("GET /pods/", "needs nodes/pods", code=403)
NO_PODS = PodList(pods=())


def pods(*names: str) -> PodList:
    views = [PodView(uid=f"u-{name}", name=name, qos=KubeQos.BURSTABLE) for name in names]
    return PodList(pods=tuple(views))


async def at_once(work: Callable[[], T]) -> T:
    return work()


class ScriptedKubelet:
    """What it answers is set by the test; how often it was asked is counted."""

    def __init__(self) -> None:
        self.connections = 1
        self.listed: PodList | ApiError = pods("a")
        self.settings: KubeletConfig | ApiError | None = KubeletConfig(cgroup_driver="systemd")
        self.asked = 0
        self.asked_settings = 0

    async def pods(self) -> PodList:
        self.asked += 1
        if isinstance(self.listed, ApiError):
            raise self.listed
        return self.listed

    async def config(self) -> KubeletConfig | None:
        self.asked_settings += 1
        if isinstance(self.settings, ApiError):
            raise self.settings
        return self.settings


def _snapshot(cpus: CpuTopology | None) -> NodeSnapshot:
    part = SnapshotPart(cpus or CpuTopology())
    return NodeSnapshot(node=NodeIdentity(name="n"), cpus=part)


class World:
    """One poller with all that it talks to."""

    def __init__(self, files: HostFiles | None = None, cpus: CpuTopology | None = None) -> None:
        self.clock = ManualClock()
        self.kubelet = ScriptedKubelet()
        self.pods: list[SnapshotPart[tuple[PodView, ...]]] = []
        self.facts: list[SnapshotPart[KubeletView | None]] = []
        self.source = KubeletFactsSource(
            self.kubelet,
            self.clock,
            SnapshotStore(_snapshot(cpus)),
            files,
            "/var/lib/kubelet",
            at_once,
        )
        self.poller = KubeletPoller(
            self.kubelet,
            self.clock,
            KubeletSettings(),
            facts=self.source,
            listener=self,
            sleep=self._sleep,
            uniform=lambda _, high: high,
        )
        self.slept: list[float] = []

    def update_kubelet_pods(self, part: SnapshotPart[tuple[PodView, ...]]) -> None:
        self.pods.append(part)

    def update_kubelet_facts(self, part: SnapshotPart[KubeletView | None]) -> None:
        self.facts.append(part)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.slept.append(seconds)
        self.clock.advance(seconds)

    async def pass_time(self, seconds: float) -> int:
        """Look as `run` would until so much time has passed; return the looks."""
        end_s, looks = self.clock.monotonic() + seconds, 0
        while self.clock.monotonic() < end_s:
            await self._sleep(await self.poller.poll())
            looks += 1
        return looks


def in_world(test: Callable[[World], Coroutine[None, None, None]]) -> World:
    world = World()
    asyncio.run(test(world))
    return world
