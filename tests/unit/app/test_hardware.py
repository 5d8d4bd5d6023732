"""What is done about hardware that comes and goes, asked of real workers of fake devices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import yaml

from agent.app.admin import AdminActions
from agent.app.composition import AgentInputs, create_inputs
from agent.app.hotplug import HardwareScanner, VendorSearch, is_affected
from agent.app.publishing import FolderPublishSink
from agent.clock import SystemClock
from agent.errors import HostFileError, UnknownTarget
from agent.host.hotplug import ALL_SCOPES
from agent.host.uevents import RescanScope
from agent.messages import FunctionRemoved
from agent.recording.host_source import open_host
from agent.snapshot.cluster import NodeView
from agent.snapshot.device import HealthState
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.workers.driver_release import OWN_LABEL, DriverReleaser
from agent.workers.manager import VendorManager
from agent.workers.selection import launch_workers
from plugins.vendors.fake.vendor import FakeVendor
from tests.patience import PATIENCE_S
from tests.pipelines import build_pipeline
from tests.reported_events import ReportedEvents
from tests.vendors import decode

CARD, OTHER = "0000:3b:00.0", "0000:5e:00.0"
DEADLINE_S = PATIENCE_S


class Node:
    """A fleet of one fake vendor, and what was done with the host."""

    def __init__(self, cards: Path, thread: ThreadPoolExecutor, *, late: bool = False) -> None:
        settings = decode({"discovery": {"fake": {"file": str(cards)}}})
        vendors = {"fake": FakeVendor()}
        opened = open_host(None)
        self.inputs: AgentInputs = create_inputs(settings, opened, SystemClock(), vendors=vendors)
        self.reads = 0
        self.broken = False
        self.reported = ReportedEvents()
        crew = () if late else launch_workers(vendors.values(), opened, settings)
        messages = self.reported.messages
        self.fleet = VendorManager(crew, settings, self.inputs.clock, messages)
        sink = FolderPublishSink(str(cards.parent / "out"), self.inputs.store, self.inputs.clock)
        self.pipeline = build_pipeline(self.inputs, sink, self.fleet, messages, thread)
        store, clock = self.inputs.store, self.inputs.clock
        search = VendorSearch(vendors.values(), opened, settings, self.fleet)
        self.hardware = HardwareScanner(store, clock, self.fleet, search, thread, self._read)
        self.control = AdminActions(store, self.fleet, self.hardware, self.pipeline, messages)

    def _read(self) -> None:
        self.reads += 1
        if self.broken:
            raise HostFileError("/sys/bus/pci/devices", 5)

    def is_settled(self) -> bool:
        """Return whether every vendor has answered."""
        states = self.inputs.store.current.vendors
        answered = [state for state in states if state.state != "starting"]
        return len(answered) == len(self.fleet.clients)

    @property
    def vendor(self) -> VendorState:
        return self.inputs.store.current.vendors[0]

    def states(self) -> dict[str, HealthState]:
        inventory = self.vendor.inventory.value
        assert inventory is not None
        return {device.key: device.health.state for device in inventory.devices}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await asyncio.sleep(0.01)


async def apply_messages(node: Node) -> None:
    """Apply messages until cancelled; reported events stay in the queue."""
    while True:
        await node.reported.messages.wait_messages()
        node.pipeline.drain()


def on_node(
    folder: Path, test: Callable[[Node], Coroutine[None, None, None]], *, late: bool = False
) -> None:
    cards = folder / "cards.yaml"
    write(cards, CARD, OTHER)

    async def live() -> None:
        with ThreadPoolExecutor(1) as thread:
            node = Node(cards, thread, late=late)
            node.fleet.start()
            messages = asyncio.create_task(apply_messages(node))
            await node.until(node.is_settled)
            try:
                await test(node)
            finally:
                messages.cancel()
                await node.fleet.stop()

    asyncio.run(live())


def write(cards: Path, *addresses: str) -> None:
    devices = [{"bus_id": one, "uuid": one, "minor": n} for n, one in enumerate(addresses)]
    cards.write_text(yaml.safe_dump({"devices": devices}))


def test_the_devices_of_a_function_that_left_are_failed_in_that_very_moment(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        node.pipeline.apply(FunctionRemoved(CARD))
        assert node.states() == {CARD: HealthState.FAILED, OTHER: HealthState.HEALTHY}
        inventory = node.vendor.inventory.value
        assert inventory is not None
        assert inventory.devices[0].health.reason == "DeviceGone"
        node.pipeline.apply(FunctionRemoved("0000:01:00.0"))  # somebody else's
        assert node.states()[OTHER] is HealthState.HEALTHY

    on_node(tmp_path, test)


def test_a_rescan_reads_the_host_and_asks_the_vendors_again(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        write(tmp_path / "cards.yaml", CARD, OTHER, "0000:af:00.0")
        await node.hardware.rescan(ALL_SCOPES)
        assert node.reads == 1
        await node.until(lambda: len(node.states()) == 3)
        write(tmp_path / "cards.yaml", CARD, OTHER)
        await node.hardware.rescan(frozenset((RescanScope.RDMA,)))
        assert node.reads == 1  # what is no function's is read by who asks the vendor

    on_node(tmp_path, test)


def test_an_unreadable_host_does_not_prevent_requests_to_vendors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(node: Node) -> None:
        node.broken = True
        write(tmp_path / "cards.yaml", CARD, OTHER, "0000:af:00.0")
        await node.hardware.rescan(ALL_SCOPES)
        await node.until(lambda: len(node.states()) == 3)

    on_node(tmp_path, test)
    assert "loop_failed" in {record.getMessage() for record in caplog.records}


def test_a_vendor_whose_hardware_came_gets_a_worker(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        assert node.fleet.clients == []
        await node.hardware.rescan(frozenset((RescanScope.HOST,)))
        await node.until(lambda: bool(node.inputs.store.current.vendors) and node.is_settled())
        assert set(node.states()) == {CARD, OTHER}

    on_node(tmp_path, test, late=True)


def test_a_worker_that_rests_is_tried_at_once_and_one_that_is_released_is_not(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        await node.control.release("fake", 600.0)
        await node.hardware.rescan(ALL_SCOPES)
        await asyncio.sleep(0.1)
        assert node.vendor.state == "released"
        broken = (tmp_path / "cards.yaml").read_text()
        (tmp_path / "cards.yaml").write_text("nonsense")
        await node.control.rescan()
        await node.until(lambda: node.vendor.state in ("restarting", "quarantined"))
        (tmp_path / "cards.yaml").write_text(broken)
        await node.hardware.rescan(ALL_SCOPES)
        await node.until(lambda: node.vendor.state == "ready")

    on_node(tmp_path, test)


def label(node: Node, *values: str) -> None:
    """Have the Node labelled so, or without the label."""
    labels = tuple((OWN_LABEL, value) for value in values)
    view = SnapshotPart(NodeView(name="node-a", uid="u", labels=labels), 1.0)
    node.inputs.store.change(
        lambda now: msgspec.structs.replace(
            now, cluster=msgspec.structs.replace(now.cluster, node=view)
        )
    )


def test_a_driver_is_released_as_long_as_a_label_of_the_node_asks_for_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        releaser = DriverReleaser(node.inputs.store, node.fleet, node.inputs.vendors)
        following = asyncio.create_task(releaser.run())
        label(node, "fake")
        await node.until(lambda: node.vendor.state == "released")
        assert node.vendor.message.endswith(f"while the Node has the label {OWN_LABEL}=fake")
        assert node.vendor.pid is None
        assert set(node.states()) == {CARD, OTHER}  # as they were
        # a person's rescan and the end of a person's release do not open the driver
        text = await node.control.rescan()
        assert text.endswith(f"still released by a label of the Node: fake ({OWN_LABEL}=fake)")
        await node.control.release("fake", 0.001)
        await asyncio.sleep(0.05)
        assert node.vendor.state == "released"
        label(node, "other.fake")
        await node.until(lambda: "other.fake" in node.vendor.message)
        label(node, "other")
        await node.until(lambda: node.vendor.state == "ready")
        following.cancel()

    on_node(tmp_path, test)


def test_a_vendor_that_comes_while_its_driver_is_exchanged_is_released_as_well(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        label(node, "fake")
        releaser = DriverReleaser(node.inputs.store, node.fleet, node.inputs.vendors)
        following = asyncio.create_task(releaser.run())
        await node.hardware.rescan(frozenset((RescanScope.HOST,)))
        await node.until(
            lambda: bool(node.inputs.store.current.vendors) and node.vendor.state == "released"
        )
        following.cancel()

    on_node(tmp_path, test, late=True)


def test_actions_on_what_is_not_there_name_what_is(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        with pytest.raises(UnknownTarget, match="there are: fake"):
            await node.control.release("nvidia", 600.0)
        with pytest.raises(UnknownTarget, match="see xpu-agent devices"):
            await node.control.clear("GPU-1")
        assert await node.control.clear(CARD) == f"{CARD}: there was nothing to clear"
        node.control.audit("clear", 0, "done", done=True)
        assert node.reported.pairs() == [("AdminClear", "user 0: clear: done")]

    on_node(tmp_path, test)


@pytest.mark.parametrize(
    ("vendor", "parts", "asked"),
    [
        ("rdma", {RescanScope.RDMA}, True),
        ("rdma", {RescanScope.ACCELERATORS, RescanScope.HOST}, False),
        ("nvidia", {RescanScope.RDMA, RescanScope.HOST}, False),
        ("ascend", {RescanScope.ACCELERATORS}, True),
    ],
)
def test_only_affected_vendors_are_asked(
    vendor: str, parts: set[RescanScope], *, asked: bool
) -> None:
    assert is_affected(frozenset(("rdma",)), vendor, frozenset(parts)) is asked
