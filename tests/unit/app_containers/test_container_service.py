from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.app.cluster import ClusterService
from agent.app.composition import AgentInputs
from agent.app.containers import ContainerService, ContainerServiceBuilder
from agent.clock import ManualClock
from agent.config.containers import (
    CdiSettings,
    DevicePluginSettings,
    EnforceHooksSettings,
    EnforceSettings,
    NriSettings,
    VerificationSettings,
)
from agent.config.settings import NodeSettings, Settings
from agent.kube.endpoint import InClusterTarget
from agent.messages import MessageQueue
from agent.recording.directory import DirectoryFiles
from agent.recording.host_source import HostSource
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import SnapshotStore
from agent.workers.manager import VendorManager
from plugins.vendors.ascend.vendor import AscendVendor
from tests.unit.allocation_slices.scene import TEMPLATE, node

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
    settings: Settings, files: HostFiles, messages: MessageQueue, collector: ThreadPoolExecutor
) -> tuple[ContainerService, SnapshotStore]:
    store, clock = SnapshotStore(node(("a", TEMPLATE))), ManualClock()
    inputs = AgentInputs(
        settings=settings,
        host_source=HostSource(files=files),
        clock=clock,
        vendors={"ascend": AscendVendor()},
        store=store,
    )
    fleet = VendorManager((), settings, clock, MessageQueue())
    builder = ContainerServiceBuilder(inputs, fleet, collector, messages)
    return builder.build(asyncio.Event()), store


def _settings(folder: Path) -> Settings:
    return Settings(
        node=NodeSettings(run_dir=str(folder), state_dir=""),
        nri=NriSettings(attach="on", socket=str(folder / "no.sock")),
        cdi=CdiSettings(write=False),
        proof=VerificationSettings(enabled=False),
    )


def test_the_runtime_is_connected_although_the_first_read_of_the_host_hangs(tmp_path: Path) -> None:
    hung = Hung(tmp_path)

    async def run() -> tuple[str, bool]:
        side, store = _side(_settings(tmp_path), hung, MessageQueue(), collector)
        await side.start()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        result = store.current.runtime.value.reason, store.current.host_devices.taken_s is None
        await side.stop()
        return result

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
    messages = MessageQueue()

    async def run() -> None:
        settings = replace(_settings(tmp_path), enforce=enforce)
        side, store = _side(settings, DirectoryFiles(tmp_path), messages, collector)
        wished = store.current.allocations
        await side.start()
        store.put(allocations=wished)  # no pod of the scene has an annotation
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await side.stop()

    with ThreadPoolExecutor(1) as collector:
        asyncio.run(run())
    reasons = [event.reason for event in messages.drain_events()]
    assert ("NotRunning" in reasons) is asked  # what the scene's worker answers


def test_the_container_service_gets_pods_and_wakes_their_source(tmp_path: Path) -> None:
    async def run() -> None:
        plugin = DevicePluginSettings(vendors=("ascend",))
        settings = replace(_settings(tmp_path), device_plugin=plugin)
        store, clock = SnapshotStore(node(("a", TEMPLATE))), ManualClock()
        inputs = AgentInputs(
            settings=settings,
            host_source=HostSource(files=DirectoryFiles(tmp_path)),
            clock=clock,
            vendors={"ascend": AscendVendor()},
            store=store,
        )
        fleet = VendorManager((), settings, clock, MessageQueue())
        clustered = ClusterService(
            settings,
            inputs.host_source.files,
            store,
            clock,
            InClusterTarget(url="https://127.0.0.1:1"),
            MessageQueue(),
        )
        with ThreadPoolExecutor(1) as collector:
            side = ContainerServiceBuilder(inputs, fleet, collector, MessageQueue()).build(
                clustered.pods_wanted
            )
        assert side._device_plugin is not None
        assert side._device_plugin._context.pods_wanted is clustered.pods_wanted

    asyncio.run(run())
