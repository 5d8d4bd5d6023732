"""Named loops that continue after an exception: periodic ones, and ones without an end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_EXPONENT = 10


@dataclass(slots=True)
class Loop:
    """One loop: its work, its heartbeat and its failures.

    The caller of `step` chooses the thread.
    """

    name: str
    interval_s: float  # seconds between the starts of two runs
    run_once: Callable[[], None]  # tests call this and never sleep
    max_backoff_s: float = 300.0
    failures: int = field(default=0, init=False)  # in a row
    last_error: str = field(default="", init=False)
    last_success_s: float | None = field(default=None, init=False)  # monotonic
    due_s: float | None = field(default=None, init=False)  # monotonic, of the first run

    def step(self, now_s: float) -> float:
        """Run once; return the seconds to wait. Failures lengthen the wait, success resets it."""
        try:
            self.run_once()
        except Exception as error:  # noqa: BLE001 - one loop must not take the agent down
            self.record_failure(error)
            return self.backoff_s()
        self.failures, self.last_error, self.last_success_s = 0, "", now_s
        return self.interval_s

    def record_failure(self, error: Exception) -> None:
        """Count a failure; the first one is logged with its trace, repeats in one line."""
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"[:200]
        fields = {"loop": self.name, "failures": self.failures, "error": self.last_error}
        log.error("loop_failed", extra=fields, exc_info=self.failures == 1)

    def backoff_s(self) -> float:
        """Return the wait in seconds after the present number of failures."""
        wait_s = self.interval_s * 2.0 ** min(self.failures, MAX_EXPONENT)
        return min(self.max_backoff_s, wait_s)


def call_or_log(work: Callable[[T], object], item: T, logger: logging.Logger, event: str) -> None:
    """Call `work` with the item; log an exception, so that other items are still processed."""
    try:
        work(item)
    except Exception as error:
        fields = {"kind": type(item).__name__, "error": str(error)}
        logger.error(event, extra=fields, exc_info=error)


async def run_forever(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    again_s: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], Awaitable[object]],
    failed: Callable[[str], None] | None = None,
) -> None:
    """Await work that runs until it is cancelled; start it again after a failure.

    Only a bug makes it fail: the work handles expected errors itself. The pauses grow from
    `again_s` as those of a loop, until the work has run for longer than the longest pause. `failed`
    is called with the error before each pause.
    """
    loop = Loop(name, again_s, _do_nothing)
    while True:
        begun_s = monotonic()
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - one piece must not take the others down
            if monotonic() - begun_s > loop.max_backoff_s:
                loop.failures = 0
            loop.record_failure(error)
            if failed is not None:
                failed(loop.last_error)
        else:
            return
        await sleep(loop.backoff_s())


def _do_nothing() -> None:
    """Do nothing: for work without an end, a loop only counts the failures."""


def log_failure(
    work: asyncio.Future[T], logger: logging.Logger, event: str, **fields: object
) -> None:
    """Log the exception of a finished task, if it has one: only a bug causes one."""
    error = None if work.cancelled() else work.exception()
    if error is not None:
        logger.error(event, extra=fields, exc_info=error)


async def await_shielded(work: Coroutine[object, object, None]) -> None:
    """Await work that must not be interrupted; a cancellation takes effect afterwards.

    gRPC waits for the end of its server in a way that can lose a cancellation.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


class ThreadRunner(Protocol):
    """Runs work on another thread, because it would block the loop thread for too long."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its exception."""
        ...


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run the work on a thread of the event loop's own pool."""
    return await asyncio.to_thread(work)
