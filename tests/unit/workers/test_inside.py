"""A vendor that only reads files lives in the agent, and is treated like every other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.errors import NotSupported, WorkerError
from agent.recording.host_source import open_host
from agent.recording.tree import TreeBuilder
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceSample,
    Inventory,
    MetricFamily,
    MetricValue,
    SliceReport,
    SliceRequest,
)
from agent.snapshot.node import VendorState
from agent.snapshot.settings import SettingRule, VendorSettings
from agent.snapshot.vendor import SessionContext, VendorDescription
from agent.workers.client import VendorClient
from agent.workers.in_process_worker import InProcessWorker
from agent.workers.lifecycle import (
    CutSlicesRequest,
    EventCallback,
    RestartPolicy,
    Worker,
    WorkerTiming,
)
from agent.workers.load import load_vendors
from agent.workers.process import InProcessSpec, LaunchedProcess, WorkerSpec
from agent.workers.query import query_vendors
from plugins.shared import injection
from plugins.vendors.template.vendor import TemplateVendor
from tests.direct_messages import DirectMessages
from tests.patience import PATIENCE_S

CARD = VendorDevice(kind=DeviceKind.XPU, vendor="files", bus_id="0000:3b:00.0")
CHANGED = DeviceEvent(key="", reason="FilesChanged")
EMPTY = TreeBuilder().build("")


class Files:
    """A vendor whose session does as it is told."""

    description = VendorDescription(
        name="files", title="files", switch=SettingRule("files"), is_isolated=False
    )
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)

    def __init__(self) -> None:
        self.opened: list[SessionContext] = []
        self.threads: set[str] = set()
        self.closed = 0
        self.refuse = ""
        self.fault: type[Exception] = NotSupported
        self.hold: threading.Event | None = None
        self.pending: list[tuple[DeviceEvent, ...]] = []

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        return (CARD,)

    def open(self, host: HostFiles, settings: VendorSettings, context: SessionContext) -> Files:  # noqa: ARG002 - see DeviceVendor
        self.opened.append(context)
        return self

    def discover(self) -> Inventory:
        self.threads.add(threading.current_thread().name)
        if self.hold is not None:
            self.hold.wait(30)
        if self.refuse:
            raise self.fault(self.refuse)
        return Inventory(vendor="files", devices=(CARD,))

    def sample(self) -> tuple[DeviceSample, ...]:
        raise NotSupported("nothing to sample")

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        assert wait_s == 0.0  # the thread is everybody's
        return self.pending.pop() if self.pending else ()

    def close(self) -> None:
        self.closed += 1


def inside_of(vendor: Files) -> InProcessSpec:
    return InProcessSpec(
        vendor=vendor, host=EMPTY, settings=VendorSettings(), context=SessionContext()
    )


class Watched:
    """A client with its states, and a way to wait for one."""

    def __init__(self, vendor: Files, executor: Executor, timing: WorkerTiming) -> None:
        self.states: list[VendorState] = []
        self.events: list[tuple[DeviceEvent, ...]] = []
        self._news = asyncio.Event()
        self.client = VendorClient(
            WorkerSpec(vendor="files"),
            (),
            messages=DirectMessages(self._heard, self._heard_events),
            families=vendor.description.families,
            timing=timing,
        )

        def start(
            _: WorkerSpec, event_callback: EventCallback, __: LaunchedProcess | None
        ) -> Worker:
            return InProcessWorker(inside_of(vendor), event_callback, executor)

        self.client.set_starter(start)
        self.task = asyncio.create_task(self.client.run())

    def _heard(self, state: VendorState) -> None:
        self.states.append(state)
        self._news.set()

    def _heard_events(self, _: str, events: tuple[DeviceEvent, ...]) -> None:
        self.events.append(events)
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def stop(self) -> None:
        await self.client.stop()
        await self.task


TIMING = WorkerTiming(restart=RestartPolicy(first_s=0.01))


def test_it_answers_from_the_thread_it_is_given_and_has_no_process() -> None:
    vendor = Files()

    async def live() -> VendorState:
        with ThreadPoolExecutor(1, "collector") as executor:
            watched = Watched(vendor, executor, TIMING)
            await watched.until(
                lambda: bool(watched.states[-1:] and watched.client.state.state == "ready")
            )
            await watched.until(lambda: bool(watched.client.state.samples.error))
            await watched.stop()
            return watched.client.state

    state = asyncio.run(live())
    assert state.inventory.value == Inventory(vendor="files", devices=(CARD,))
    assert (state.pid, state.restarts) == (None, 0)
    assert all(name.startswith("collector") for name in vendor.threads)
    assert (vendor.opened, vendor.closed) == ([SessionContext()], 1)
    assert "NotSupported" in state.samples.error


def test_its_events_reach_the_agent() -> None:
    vendor = Files()
    vendor.pending = [(CHANGED,)]

    async def live() -> list[tuple[DeviceEvent, ...]]:
        with ThreadPoolExecutor(1) as executor:
            watched = Watched(vendor, executor, TIMING)
            await watched.until(lambda: bool(watched.events))
            await watched.stop()
            return watched.events

    assert asyncio.run(live()) == [(CHANGED,)]


@pytest.mark.parametrize(
    ("fault", "reason"), [(NotSupported, "NotSupported"), (ZeroDivisionError, "UnexpectedError")]
)
def test_a_failure_is_reported_and_does_not_last_longer_than_its_cause(
    fault: type[Exception], reason: str
) -> None:
    vendor = Files()
    vendor.refuse, vendor.fault = "no such folder", fault

    async def live() -> tuple[VendorState, VendorState]:
        with ThreadPoolExecutor(1) as executor:
            watched = Watched(vendor, executor, TIMING)
            await watched.until(lambda: watched.client.state.state == "restarting")
            failed = watched.client.state
            vendor.refuse = ""
            await watched.until(lambda: watched.client.state.state == "ready")
            await watched.stop()
            return failed, watched.client.state

    failed, well = asyncio.run(live())
    assert (failed.reason, "no such folder" in failed.message) == (reason, True)
    assert (well.reason, well.inventory.error) == ("", "")


class Broken(Files):
    """A vendor of somebody else that breaks its promises until it is repaired."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True

    def discover(self) -> Inventory:
        return None if self.broken else super().discover()  # type: ignore[return-value]

    def slices(self, requests: Sequence[SliceRequest], pods: Collection[str] | None) -> SliceReport:
        del requests, pods
        return None  # type: ignore[return-value]


def test_a_vendor_whose_answer_the_agent_cannot_use_is_shown_and_tried_again() -> None:
    vendor = Broken()

    async def live() -> tuple[VendorState, VendorState]:
        with ThreadPoolExecutor(1) as executor:
            watched = Watched(vendor, executor, TIMING)
            await watched.until(lambda: watched.client.state.state == "restarting")
            broken = watched.client.state
            vendor.broken = False
            await watched.until(lambda: watched.client.state.state == "ready")
            await watched.stop()
            return broken, watched.client.state

    broken, well = asyncio.run(live())
    assert (broken.reason, "AttributeError" in broken.message) == ("UnexpectedError", True)
    assert (well.reason, well.inventory.error) == ("", "")
    assert well.restarts > 0


def test_who_asks_for_what_breaks_the_client_gets_an_answer() -> None:
    vendor = Broken()
    vendor.broken = False

    async def live() -> VendorState:
        with ThreadPoolExecutor(1) as executor:
            watched = Watched(vendor, executor, TIMING)
            await watched.until(lambda: watched.client.state.state == "ready")
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(WorkerError, match="NotRunning"):
                    await watched.client.request(CutSlicesRequest((), ()))
            await watched.until(lambda: watched.client.state.state == "restarting")
            await watched.until(lambda: watched.client.state.state == "ready")
            await watched.stop()
            return watched.client.state

    assert asyncio.run(live()).restarts == 1


def test_a_read_that_hangs_is_late_and_left_behind_until_it_returns() -> None:
    vendor = Files()
    vendor.hold = threading.Event()

    async def live() -> tuple[VendorState, list[str]]:
        with ThreadPoolExecutor(2) as executor:
            watched = Watched(
                vendor, executor, WorkerTiming(discover_deadline_s=0.05, restart=TIMING.restart)
            )
            await watched.until(lambda: watched.client.state.reason == "Unkillable")
            stuck = watched.client.state
            assert vendor.hold is not None
            vendor.hold.set()
            await watched.until(lambda: watched.client.state.state == "ready")
            await watched.stop()
            return stuck, [state.reason for state in watched.states]

    stuck, reasons = asyncio.run(live())
    assert (stuck.state, stuck.pid) == ("stalled", None)
    assert stuck.message.startswith("a read of files hangs")
    assert "Late" in reasons


def test_after_its_end_no_method_is_called() -> None:
    vendor = Files()

    async def live() -> None:
        worker = InProcessWorker(inside_of(vendor), lambda _: None)
        await worker.wait_open(5)
        assert await worker.kill()
        with pytest.raises(WorkerError, match="ended by the agent"):
            await worker.discover(5)

    asyncio.run(live())


def test_of_the_vendors_we_ship_only_readers_of_files_live_in_the_agent() -> None:
    inside = {name for name, vendor in load_vendors().items() if not vendor.description.is_isolated}
    assert inside == {"accelerators", "infofiles"}


def test_vendors_are_isolated_unless_they_say_otherwise() -> None:
    assert TemplateVendor.description.is_isolated
    assert not Files.description.is_isolated


@pytest.mark.parametrize("recorded", [True, False])
def test_a_single_query_calls_it_without_a_process(tmp_path: Path, recorded: bool) -> None:
    (tmp_path / "sys").mkdir()
    vendor = Files()
    opened = open_host(str(tmp_path) if recorded else None)
    own = SessionContext(state_dir="/kept")
    (state,) = asyncio.run(query_vendors([vendor], opened, {}, context=own))
    assert (state.state, state.pid) == ("ready", None)
    assert state.inventory.value == Inventory(vendor="files", devices=(CARD,))
    assert vendor.opened == [SessionContext(is_replay=True) if recorded else own]


POWER = MetricFamily(name="xpu_files_power_watts", type="gauge", help="")
LIE = DeviceSample(
    key=CARD.key,
    core_percent=4294967295.0,
    memory_used_bytes=17,
    memory_total_bytes=16,
    readings=(
        MetricValue(family=POWER.name, value=float("nan")),
        MetricValue(family=POWER.name, value=4294967295.0),
    ),
)
REJECTED = {
    "xpu_device_utilization_ratio": 1,
    "xpu_device_memory_used_bytes": 1,
    POWER.name: 2,
}


class LyingFiles(Files):
    """A vendor whose samples no device can mean."""

    description = replace(Files.description, families=(POWER,))

    def sample(self) -> tuple[DeviceSample, ...]:
        return (LIE,)


def rejected(state: VendorState) -> dict[str, int]:
    return {rejection.family: rejection.count for rejection in state.rejections}


def test_readings_that_no_device_can_mean_do_not_reach_the_snapshot() -> None:
    async def live() -> VendorState:
        with ThreadPoolExecutor(1) as executor:
            watched = Watched(LyingFiles(), executor, TIMING)
            await watched.until(lambda: bool(watched.client.state.samples.value))
            await watched.stop()
            return watched.client.state

    state = asyncio.run(live())
    assert state.samples.value == (DeviceSample(key=CARD.key, memory_total_bytes=16),)
    assert rejected(state) == REJECTED


def test_commands_show_no_reading_that_no_device_can_mean() -> None:
    host = open_host(None)
    (state,) = asyncio.run(query_vendors((LyingFiles(),), host, {}))
    assert (state.samples.value[0].core_percent, state.samples.value[0].readings) == (None, ())
    assert rejected(state) == REJECTED
