"""The agent's threads, tasks and periodic loops, and the settings of its process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from agent.clock import Clock
from agent.loop import Loop, run_forever
from agent.snapshot.self_check import SelfCheck

log = logging.getLogger(__name__)
T = TypeVar("T")
RestartableWork = Callable[[], Coroutine[object, object, None]]

RESTART_S = 1.0  # after the first failure of a task, doubled each time

DEVICES_RETRY_S = 1.0  # the least pause before a failed publishing of devices is tried again

WAKE_GAP_S = 0.05  # the least pause between two runs of a loop that changes of the snapshot wake


class ScheduledLoop(msgspec.Struct, frozen=True):
    """A loop, when it runs first, and on which of the two threads."""

    loop: Loop
    first_run_in_s: float = 0.0
    is_on_devices_thread: bool = False  # False: on the collector thread, which a read may hang
    wakes_on: tuple[str, ...] = ()  # values of the snapshot whose change starts the next run


class AgentThreads:
    """The executors of the agent; of `collector` and `devices` each is one thread."""

    def __init__(self) -> None:
        """Start no thread yet."""
        # reads, and work that needs much CPU; its jobs run one after another
        self.collector = ThreadPoolExecutor(max_workers=1, thread_name_prefix="collector")
        # joins and publishes devices, and records their events
        self.devices = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devices")
        self.pool = ThreadPoolExecutor(thread_name_prefix="pool")  # the event loop's own

    def cancel_jobs(self) -> None:
        """Cancel the jobs that have not begun, and accept no new ones; returns at once."""
        for executor in (self.devices, self.collector, self.pool):
            executor.shutdown(wait=False, cancel_futures=True)


class BackgroundTasks:
    """Tasks that run until the agent stops. Belongs to the loop thread."""

    def __init__(self) -> None:
        """Begin without a task."""
        self._tasks: list[asyncio.Task[object]] = []

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task and return it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    def start_forever(self, work: RestartableWork, name: str, clock: Clock) -> None:
        """Start a task that begins again after a failure, with a growing pause."""
        monotonic = clock.monotonic
        self.start(
            run_forever(name, work, again_s=RESTART_S, monotonic=monotonic, sleep=asyncio.sleep),
            name,
        )

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Change(Protocol):
    """Something that may change again and again."""

    async def wait(self) -> None:
        """Wait for the next change; one since the last call counts."""
        ...


async def run_periodically(
    loop: Loop,
    executor: Executor,
    clock: Clock,
    first_in_s: float = 0,
    change: Change | None = None,
) -> None:
    """Run the loop until cancelled, from start to start one interval apart.

    A missed run is skipped. With `change`, a run also starts when it occurs, at most one in
    `WAKE_GAP_S`. Cancelling does not interrupt the run in progress on the executor.
    """
    loop.due_s = clock.monotonic() + first_in_s
    if first_in_s > 0:
        await asyncio.sleep(first_in_s)
    event_loop = asyncio.get_running_loop()
    while True:
        started_s = clock.monotonic()
        wait_s = await event_loop.run_in_executor(executor, loop.step, started_s)
        spent_s = clock.monotonic() - started_s
        pause_s = max(0.0, wait_s - spent_s)
        if change is None:
            await asyncio.sleep(pause_s)
            continue
        await asyncio.sleep(min(WAKE_GAP_S, pause_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(change.wait(), max(0.0, pause_s - WAKE_GAP_S))


async def run_when_changed(
    change: asyncio.Event, loop: Loop, executor: Executor, clock: Clock, window_s: float
) -> None:
    """Run the loop once for all changes within a window that the first one opens, until cancelled.

    A change during a run opens the next window. A failed run is repeated after a growing pause, or
    at the next change.
    """
    event_loop = asyncio.get_running_loop()
    wait_s: float | None = None
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(change.wait(), wait_s)
            await asyncio.sleep(window_s)
        change.clear()
        pause_s = await event_loop.run_in_executor(executor, loop.step, clock.monotonic())
        wait_s = pause_s if loop.failures else None


class LatenessHistogram(Protocol):
    """A histogram."""

    def observe(self, amount: float) -> None:
        """Count a value."""
        ...


class EventLoopMonitor:
    """Measures by how much the event loop is late: a request waits at least that long."""

    def __init__(self, clock: Clock, interval_s: float = 0.25) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self.last_beat_s: float | None = None  # monotonic
        self.max_lateness_s = 0.0  # since the start

    def check(self) -> SelfCheck:
        """Return the longest delay of the event loop; it does not affect readiness."""
        message = f"late by at most {self.max_lateness_s * 1e3:.0f} ms since the start"
        return SelfCheck(
            name="event-loop",
            ok=self.last_beat_s is not None,
            message=message,
            gates_ready=False,
            reason="LoopLate",
        )

    async def run(self, lateness: LatenessHistogram | None = None) -> None:
        """Measure and report each lateness in seconds, until cancelled."""
        while True:
            before_s = self._clock.monotonic()
            await asyncio.sleep(self._interval_s)
            self.last_beat_s = self._clock.monotonic()
            late_s = max(0.0, self.last_beat_s - before_s - self._interval_s)
            self.max_lateness_s = max(self.max_lateness_s, late_s)
            if lateness is not None:
                lateness.observe(late_s)


async def run_with_deadline(deadline_s: float, work: Callable[[], None]) -> bool:
    """Run `work`, which may hang, on a daemon thread; return whether it ended in time."""
    event_loop = asyncio.get_running_loop()
    has_ended = asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop ended before the work did
                event_loop.call_soon_threadsafe(has_ended.set)

    threading.Thread(target=run, name="ending", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(has_ended.wait(), deadline_s)
    return has_ended.is_set()


def exit_with_hung_thread(status: int, failed: BaseException | None) -> NoReturn:
    """End the process although a thread hangs, in the kernel or in a DNS query."""
    log.error("thread_stuck_at_stop", extra={"error": str(failed)} if failed else {})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


SWITCH_INTERVAL_S = 0.001  # the loop thread gets its turn while the collector computes

# cycles are rare (a closed connection leaves some). A collection of ten thousand new objects takes
# up to 3.6 ms, for which the creation of a container waits; one of two thousand takes a fifth
GC_THRESHOLDS = (2_000, 50, 100)


def tune_interpreter() -> None:
    """Exclude the objects of the start from garbage collection; switch threads often."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
