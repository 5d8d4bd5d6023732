"""Bounds expensive checks of credentials: how many run, how many wait, and what they may cost.

A client without valid credentials must not be able to use up the CPU, or the API server's patience
with this node; and it must not keep out a client that has valid ones and waits for its first check.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent.access.decision import TooManyChecks
from agent.clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")

MAX_WAITING = 32
MAX_WAITING_OF_PEER = 4
MIN_PAUSE_S, MAX_PAUSE_S = 0.001, 0.5  # between two looks at the budget


class CheckQueue:
    """Runs checks in the order of their arrival, within a budget that is refilled over time."""

    def __init__(
        self,
        *,
        refill_per_s: float,
        burst: float,
        price: float,
        wait_s: float,
        running: int = 1,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start with a full budget; a check pays `price` until its cost is known.

        A check starts while the budget is above 0. `wait_s` bounds waiting and checking together.
        """
        self._refill_per_s = refill_per_s
        self._burst = burst
        self._price = price
        self._wait_s = wait_s
        self._clock = clock
        self._slots = asyncio.Semaphore(running)
        self._waiting: Counter[str] = Counter()
        self._checks: set[asyncio.Task[object]] = set()
        self._budget = burst
        self._refilled_s = clock.monotonic()

    async def run(self, peer: str, check: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        """Return the result of a check, which returns its cost with it.

        Raise `TooManyChecks` if too many checks wait, of all peers or of this one, or if this one
        is not done in time. A check that has started goes on when its client leaves: otherwise
        clients that leave could start any number of them.
        """
        if self._waiting.total() >= MAX_WAITING or self._waiting[peer] >= MAX_WAITING_OF_PEER:
            raise TooManyChecks("too many credentials wait for their check")
        self._waiting[peer] += 1
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.shield(await self._start(check))
        except TimeoutError as error:
            raise TooManyChecks(f"not checked within {self._wait_s:g} s") from error
        finally:
            self._waiting[peer] -= 1
            self._waiting += Counter()  # drops the peers without a waiting check

    async def _start(self, check: Callable[[], Awaitable[tuple[T, float]]]) -> asyncio.Task[T]:
        await self._slots.acquire()
        try:
            await self._wait_for_budget()
        except BaseException:
            self._slots.release()
            raise
        self._budget -= self._price
        task = asyncio.create_task(self._finish(check))
        self._checks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def _finish(self, check: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        try:
            result, cost = await check()
            self._budget += self._price - cost
            return result
        finally:
            self._slots.release()

    def _forget(self, task: asyncio.Task[T]) -> None:
        self._checks.discard(task)
        if not task.cancelled():
            task.exception()  # the client may have left: nobody else reads it

    async def _wait_for_budget(self) -> None:
        while True:
            now_s = self._clock.monotonic()
            refill = (now_s - self._refilled_s) * self._refill_per_s
            self._budget, self._refilled_s = min(self._burst, self._budget + refill), now_s
            if self._budget > 0:
                return
            pause_s = -self._budget / self._refill_per_s
            await asyncio.sleep(min(max(MIN_PAUSE_S, pause_s), MAX_PAUSE_S))


class RequestRate:
    """A token bucket: one request each interval on average, and a burst at once."""

    def __init__(self, interval_s: float, burst: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self.interval_s = interval_s
        self.burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_s = clock.monotonic()

    def admits(self) -> bool:
        """Return whether a request may be answered now, and count it."""
        now_s = self._clock.monotonic()
        added = (now_s - self._filled_s) / self.interval_s
        self._tokens, self._filled_s = min(self.burst, self._tokens + added), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
