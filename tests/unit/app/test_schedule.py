"""Loops on the collector thread: when they run, what a failure does, what their checks say."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.app.threads import EventLoopMonitor, run_periodically, run_when_changed
from agent.clock import ManualClock, SystemClock
from agent.config.address import ListenAddress, parse_listen_address
from agent.errors import BadConfig
from agent.loop import Loop
from agent.runbook.self_checks import loop_checks, snapshot_checks
from agent.snapshot.node import SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import LoopStatus
from tests import factory
from tests.patience import PATIENCE_S


def failing() -> None:
    raise RuntimeError("no")


def test_a_failing_loop_waits_longer_each_time_and_recovers() -> None:
    broken = True

    def work() -> None:
        if broken:
            failing()

    loop = Loop("x", 1.0, work, max_backoff_s=5.0)
    assert [loop.step(0.0) for _ in range(4)] == [2.0, 4.0, 5.0, 5.0]
    assert (loop.failures, loop.last_error) == (4, "RuntimeError: no")
    broken = False
    assert loop.step(9.0) == 1.0
    assert (loop.failures, loop.last_error, loop.last_success_s) == (0, "", 9.0)


@pytest.mark.parametrize(
    ("last_good_s", "due_s", "now_s", "healthy", "message"),
    [
        (None, None, 100.0, False, "never good"),
        (None, 160.0, 100.0, True, "first due in 60 s"),
        (None, 80.0, 100.0, False, "never good"),
        (95.0, 0.0, 100.0, True, "last good 5.0 s ago"),
        (80.0, 0.0, 100.0, False, "last good 20.0 s ago"),
    ],
)
def test_a_heartbeat_is_judged_by_three_intervals_and_ten_seconds(
    last_good_s: float | None, due_s: float | None, now_s: float, healthy: bool, message: str
) -> None:
    loop = LoopStatus(name="x", interval_s=1.0, last_success_s=last_good_s, due_s=due_s)
    check = loop_checks([loop], now_s)[0]
    assert (check.name, check.ok, check.message) == ("loop:x", healthy, message)


def test_a_loop_runs_until_it_is_cancelled_and_survives_its_failures() -> None:
    observations: list[int] = []

    async def run() -> None:
        enough = asyncio.Event()
        event_loop = asyncio.get_running_loop()

        def work() -> None:
            observations.append(len(observations))
            if len(observations) == 2:
                failing()
            if len(observations) == 4:
                event_loop.call_soon_threadsafe(enough.set)

        loop = Loop("x", 0.001, work, max_backoff_s=0.002)
        with ThreadPoolExecutor(1) as executor:
            task = asyncio.create_task(run_periodically(loop, executor, SystemClock()))
            async with asyncio.timeout(PATIENCE_S):
                await enough.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert observations[:4] == [0, 1, 2, 3]


def test_a_change_starts_the_next_run_before_its_time() -> None:
    runs: list[int] = []

    async def live() -> None:
        event_loop, ran = asyncio.get_running_loop(), asyncio.Event()
        store = SnapshotStore(factory.snapshot())

        def work() -> None:
            runs.append(len(runs))
            event_loop.call_soon_threadsafe(ran.set)

        loop = Loop("x", 1000.0, work)
        with ThreadPoolExecutor(1) as executor, store.subscribe("pods.value") as change:
            task = asyncio.create_task(
                run_periodically(loop, executor, SystemClock(), change=change)
            )
            for _ in range(3):
                async with asyncio.timeout(PATIENCE_S):
                    await ran.wait()
                ran.clear()
                store.put(pods=SnapshotPart((factory.pod(0),), 1.0))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(live())
    assert len(runs) >= 3


def test_a_heartbeat_gates_nothing_and_says_how_late_it_was() -> None:
    heart = EventLoopMonitor(ManualClock())
    assert not heart.check().ok
    heart.last_beat_s, heart.max_lateness_s = 5.0, 0.0034
    assert heart.check().message == "late by at most 3 ms since the start"
    assert not heart.check().gates_ready


def test_a_vendor_that_does_not_answer_is_shown_but_gates_nothing() -> None:
    checks = {check.name: check for check in snapshot_checks(factory.snapshot())}
    assert checks["vendor:nvidia"].ok
    assert not checks["vendor:nvidia"].gates_ready
    assert not checks["part:cpus"].ok  # never read


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("127.0.0.1:9316", ListenAddress("127.0.0.1", 9316), "http://127.0.0.1:9316/"),
        ("0.0.0.0:1", ListenAddress("0.0.0.0", 1), "http://127.0.0.1:1/"),
        ("[::1]:0", ListenAddress("::1", 0), "http://[::1]:0/"),
        ("[::]:80", ListenAddress("::", 80), "http://[::1]:80/"),
        ("localhost:65535", ListenAddress("localhost", 65535), "http://localhost:65535/"),
    ],
)
def test_an_address_and_what_a_browser_opens(text: str, address: ListenAddress, url: str) -> None:
    assert parse_listen_address(text) == address
    assert address.url() == url


@pytest.mark.parametrize("text", ["", "9316", ":9316", "::1:9316", "a:65536", "a:-1", "a:x", "a:¹"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="is not HOST:PORT"):
        parse_listen_address(text)


class BlockingWork:
    """Work that goes on until it is told to end; counts how often it began."""

    def __init__(self) -> None:
        self.begun = 0
        self.begins = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def work(self) -> None:
        self.begun += 1
        self.begins.release()
        assert self.may_end.acquire(timeout=PATIENCE_S)


@pytest.mark.parametrize("window_s", [0.0, 0.02])
def test_many_changes_at_once_are_one_run_and_those_during_it_one_more(window_s: float) -> None:
    entries = BlockingWork()

    async def live() -> None:
        changed, event_loop = asyncio.Event(), asyncio.get_running_loop()
        loop = Loop("x", 1.0, entries.work)

        async def begun() -> None:
            assert await event_loop.run_in_executor(
                None, lambda: entries.begins.acquire(timeout=PATIENCE_S)
            )

        with ThreadPoolExecutor(1) as executor:
            task = asyncio.create_task(
                run_when_changed(changed, loop, executor, SystemClock(), window_s)
            )
            for _ in range(100):
                changed.set()
            await begun()
            for _ in range(100):
                changed.set()
                await asyncio.sleep(0)
            entries.may_end.release()
            await begun()
            entries.may_end.release()
            changed.set()
            await begun()
            entries.may_end.release()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(live())
    assert entries.begun == 3


def test_a_run_that_failed_is_tried_again_without_a_change() -> None:
    runs: list[int] = []

    async def live() -> None:
        changed, outcome, event_loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

        def work() -> None:
            runs.append(len(runs))
            if len(runs) < 3:
                failing()
            event_loop.call_soon_threadsafe(outcome.set)

        loop = Loop("x", 0.001, work, max_backoff_s=0.002)
        with ThreadPoolExecutor(1) as executor:
            task = asyncio.create_task(
                run_when_changed(changed, loop, executor, SystemClock(), 0.0)
            )
            changed.set()
            async with asyncio.timeout(PATIENCE_S):
                await outcome.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(live())
    assert runs == [0, 1, 2]
