from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.config.containers import (
    CdiSettings,
    EnforceHooksSettings,
    EnforceSettings,
    NriSettings,
    ProofSettings,
)
from agent.config.sections import NodeSettings, Settings
from agent.daemon.assembly import build_containers
from agent.daemon.cluster.side import ClusterSide
from agent.daemon.containers.side import ContainerSide
from agent.host.files import HostFiles
from agent.kube.session.target import InPod
from agent.loop import Loop
from agent.node.fleet import Fleet
from agent.node.parts import Parts
from agent.node.store import SnapshotStore
from agent.publish.eventing.event import PodRef
from agent.recording.directory import DirectoryFiles
from agent.recording.open import OpenedHost
from tests.unit.slicing.scene import TEMPLATE, node

TURNS = 50  # of the loop, more than any task needs for its first step


class Hung(DirectoryFiles):
    """A host of which every look hangs until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.let_go = threading.Event()

    def read(self, path: str, limit: int = 0) -> bytes:
        self.let_go.wait(60.0)
        return super().read(path, limit)

    def names(self, path: str) -> tuple[str, ...]:
        self.let_go.wait(60.0)
        return super().names(path)


def _side(
    settings: Settings, files: HostFiles, told: list[str], collector: ThreadPoolExecutor
) -> tuple[ContainerSide, SnapshotStore]:
    def tell(reason: str, _: str, __: PodRef | None) -> None:
        told.append(reason)

    store, clock = SnapshotStore(node(("a", TEMPLATE))), ManualClock()
    parts = Parts(
        settings=settings,
        opened=OpenedHost(files=files),
        clock=clock,
        vendors={},
        store=store,
        known_pods=lambda: (),
    )
    fleet = Fleet((), settings, store, clock, lambda: None)
    return ContainerSide(parts, fleet, collector, tell, clustered=True), store


def _settings(folder: Path) -> Settings:
    return Settings(
        node=NodeSettings(run_dir=str(folder), state_dir=""),
        nri=NriSettings(attach="on", socket=str(folder / "no.sock")),
        cdi=CdiSettings(write=False),
        proof=ProofSettings(enabled=False),
    )


def test_the_runtime_is_dialled_though_the_first_look_at_the_host_hangs(tmp_path: Path) -> None:
    hung = Hung(tmp_path)

    async def run() -> tuple[str, bool]:
        side, store = _side(_settings(tmp_path), hung, [], collector)
        await side.start()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        found = store.current.runtime.value.reason, store.current.means.taken_s is None
        await side.stop()
        return found

    with ThreadPoolExecutor(1) as collector:
        try:
            assert asyncio.run(run()) == ("NoSocket", True)
        finally:
            hung.let_go.set()


@pytest.mark.parametrize(("mode", "asked"), [("on", True), ("plan", False), ("off", False)])
@pytest.mark.parametrize("by", ["the hook", "all"])
def test_cards_are_cut_only_where_devices_of_grants_may_be_given(
    mode: str, asked: bool, by: str, tmp_path: Path
) -> None:
    hooks = EnforceHooksSettings(devices=mode)
    enforce = EnforceSettings(hooks=hooks) if by == "the hook" else EnforceSettings(mode=mode)
    told: list[str] = []

    async def run() -> None:
        settings = replace(_settings(tmp_path), enforce=enforce)
        side, store = _side(settings, DirectoryFiles(tmp_path), told, collector)
        wished = store.current.grants
        await side.start()
        store.put(grants=wished)  # no pod of the scene has an annotation
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await side.stop()

    with ThreadPoolExecutor(1) as collector:
        asyncio.run(run())
    assert ("NotRunning" in told) is asked  # what the scene's worker answers


def test_the_way_into_containers_hears_of_pods_and_wakes_their_source(tmp_path: Path) -> None:
    async def run() -> None:
        settings = _settings(tmp_path)
        store, clock = SnapshotStore(node(("a", TEMPLATE))), ManualClock()
        parts = Parts(
            settings=settings,
            opened=OpenedHost(files=DirectoryFiles(tmp_path)),
            clock=clock,
            vendors={},
            store=store,
            known_pods=lambda: (),
        )
        fleet = Fleet((), settings, store, clock, lambda: None)
        clustered = ClusterSide(parts, InPod(url="https://127.0.0.1:1"), lambda: None)
        devices = Loop("devices", 1.0, lambda: None)
        with ThreadPoolExecutor(1) as collector:
            side = build_containers(parts, fleet, collector, lambda *_: None, devices, clustered)
        assert clustered.known.pods_changed == side.pods_changed
        assert side._wake_pods == clustered.wake_pods
        side.pods_changed()  # without a device plug-in, and without a kubelet: nothing to do
        clustered.wake_pods()

    asyncio.run(run())
