from __future__ import annotations

import asyncio
import logging

import pytest

from agent.clock import ManualClock
from agent.loop import run_forever


class Work:
    """Fails after so many seconds each, then ends."""

    def __init__(self, clock: ManualClock, *lasts_s: float) -> None:
        self.clock = clock
        self.lasts_s = list(lasts_s)
        self.waits: list[float] = []

    async def __call__(self) -> None:
        if self.lasts_s:
            self.clock.advance(self.lasts_s.pop(0))
            raise LookupError("a bug")

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def work_after_run(*lasts_s: float) -> Work:
    clock = ManualClock()
    work = Work(clock, *lasts_s)
    asyncio.run(run_forever("work", work, again_s=1.0, monotonic=clock.monotonic, sleep=work.sleep))
    return work


def test_work_that_fails_is_begun_again_ever_later() -> None:
    assert work_after_run(*[0.0] * 10).waits == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_work_that_ran_long_is_begun_again_soon() -> None:
    assert work_after_run(0.0, 0.0, 0.0, 301.0).waits == [2, 4, 8, 2]


def test_a_failure_is_logged_with_its_trace_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    work_after_run(0.0, 0.0, 0.0)
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]


def test_work_that_is_cancelled_is_not_begun_again() -> None:
    begun = 0

    async def forever() -> None:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()

    async def cancelled() -> None:
        records = run_forever("x", forever, again_s=1.0, monotonic=lambda: 0.0, sleep=asyncio.sleep)
        task = asyncio.create_task(records)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()

    asyncio.run(cancelled())
    assert begun == 1
