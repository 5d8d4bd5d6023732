"""The agent's threads and process-wide settings; runs loops on a thread when they are due.

Also ends the process when a thread hangs.

Settings of the process itself, made once while it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NoReturn, Protocol

import msgspec

from agent.clock import Clock
from agent.loop import Loop
from agent.snapshot.self_check import SelfCheck

log = logging.getLogger(__name__)

DEVICES_RETRY_S = 1.0  # the least pause before a failed publishing of devices is tried again


class ScheduledLoop(msgspec.Struct, frozen=True):
    """A loop, when it runs first, and on which of the two threads."""

    loop: Loop
    first_run_in_s: float = 0.0
    is_on_devices_thread: bool = (
        False  # True: on the devices' thread, which a slow read of the host never holds
    )


def collector_thread() -> ThreadPoolExecutor:
    """Return the one thread for reads and CPU-heavy work; its jobs run one after another."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="collector")


def devices_thread() -> ThreadPoolExecutor:
    """Return the one thread that joins and publishes devices, and tells what changed of them."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="devices")


async def run_periodically(
    loop: Loop, executor: Executor, clock: Clock, first_in_s: float = 0
) -> None:
    """Run the loop for ever, from start to start one interval apart; a missed run is not made up.

    Ends when cancelled. The run in progress on the executor is not interrupted by that.
    """
    loop.due_s = clock.monotonic() + first_in_s
    if first_in_s > 0:
        await asyncio.sleep(first_in_s)
    event_loop = asyncio.get_running_loop()
    while True:
        started_s = clock.monotonic()
        wait_s = await event_loop.run_in_executor(executor, loop.step, started_s)
        spent_s = clock.monotonic() - started_s
        await asyncio.sleep(max(0.0, wait_s - spent_s))


async def run_when_changed(
    changed: asyncio.Event, loop: Loop, executor: Executor, clock: Clock, window_s: float
) -> None:
    """Run the loop once for all changes within a window that the first one opens, for ever.

    What changes during a run opens the next window. A failed run is tried again after a growing
    pause, or at the next change. Ends when cancelled.
    """
    event_loop = asyncio.get_running_loop()
    wait_s: float | None = None
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), wait_s)
            await asyncio.sleep(window_s)
        changed.clear()
        pause_s = await event_loop.run_in_executor(executor, loop.step, clock.monotonic())
        wait_s = pause_s if loop.failures else None


class LatenessHistogram(Protocol):
    """A histogram."""

    def observe(self, amount: float) -> None:
        """Count a value."""
        ...


class EventLoopMonitor:
    """Measures by how much the event loop was held up: a request waits at least that long."""

    def __init__(self, clock: Clock, interval_s: float = 0.1) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self.last_beat_s: float | None = None  # monotonic
        self.max_lateness_s = 0.0  # since the start

    def check(self) -> SelfCheck:
        """Tell the longest time that the loop was late; for people, it gates nothing."""
        message = f"late by at most {self.max_lateness_s * 1e3:.0f} ms since the start"
        return SelfCheck(
            name="event-loop", ok=self.last_beat_s is not None, message=message, gates_ready=False
        )

    async def run(self, lateness: LatenessHistogram | None = None) -> None:
        """Beat for ever and report each lateness in seconds; ends when cancelled."""
        while True:
            before_s = self._clock.monotonic()
            await asyncio.sleep(self._interval_s)
            self.last_beat_s = self._clock.monotonic()
            late_s = max(0.0, self.last_beat_s - before_s - self._interval_s)
            self.max_lateness_s = max(self.max_lateness_s, late_s)
            if lateness is not None:
                lateness.observe(late_s)


async def run_with_deadline(deadline_s: float, work: Callable[[], None]) -> bool:
    """Do what may hang, on a thread that the process can end without; say whether it is done."""
    event_loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop ended before the work did
                event_loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="ending", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), deadline_s)
    return done.is_set()


def exit_with_hung_thread(status: int, failed: BaseException | None) -> NoReturn:
    """End the process although a thread hangs, in the kernel or in a question for an address."""
    log.error("thread_stuck_at_stop", extra={"error": str(failed)} if failed else {})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


MAX_OPEN_FILES = 65536

SWITCH_INTERVAL_S = 0.001  # the loop thread gets its turn while the collector computes

# cycles are rare (a closed connection leaves some). Looking through ten thousand new objects was
# seen to take up to 3.6 ms, which a container's creation waits for; two thousand take a fifth
GC_THRESHOLDS = (2_000, 50, 100)


def tune_interpreter() -> None:
    """Freeze what start-up made, collect seldom, switch threads often."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def raise_open_file_limit() -> None:
    """Allow many open files, as far as the hard limit goes.

    To be done before a collector is built, which keeps as many descriptors as it finds allowed,
    and after the workers were started, which need few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
