"""The talk with one worker: asks what is due, one question at a time, until it is to end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from agent.clock import Clock
from agent.errors import WorkerError
from agent.model.inventory import DeviceSample, Inventory
from agent.probe.life import Errand, Timing, Worker
from agent.probe.process.memory import resident_bytes
from agent.probe.wire import LIBRARY_REPLACED, NOT_SUPPORTED

AGAIN_S = 1.0  # between two discoveries, however many events ask for one
MAX_FAILURES = 3  # samples in a row that fail before a fresh process is tried
MEMORY_EVERY_S = 10.0
MAX_ERRANDS = 16  # that wait for their turn
MEMORY_LIMIT = "MemoryLimit"
BUSY = "Busy"

T = TypeVar("T")
Sleep = Callable[[float], Coroutine[None, None, None]]
Resident = Callable[[int], int | None]


class Wishes:
    """What others want of a vendor's worker; whoever talks to it grants them in turn."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._nudge = asyncio.Event()
        self.discovery = True  # soon, instead of at the end of the period
        self.end = False  # of this life, in good order
        self.errands: deque[tuple[Errand[Any], asyncio.Future[Any]]] = deque()

    def nudge(self) -> None:
        """Wake whoever pauses."""
        self._nudge.set()

    async def pause(self, seconds: float) -> None:
        """Sleep, or less if there is something to do."""
        waits = {
            asyncio.ensure_future(self._sleep(seconds)),
            asyncio.ensure_future(self._nudge.wait()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._nudge.clear()

    def send(self, vendor: str, errand: Errand[T]) -> asyncio.Future[T]:
        """Put an errand in the queue; `Busy` if too many wait."""
        if len(self.errands) >= MAX_ERRANDS:
            raise WorkerError(vendor, BUSY, f"{MAX_ERRANDS} questions wait for their turn already")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.errands.append((errand, answer))
        self.nudge()
        return answer

    def refuse_errands(self, error: WorkerError) -> None:
        """Tell all who wait that it will not be."""
        while self.errands:
            _, answer = self.errands.popleft()
            if not answer.done():
                answer.set_exception(error)


class Ear(Protocol):
    """Who is told what the worker says, at once."""

    def discovered(self, inventory: Inventory) -> None:
        """Take an answer to `discover`."""
        ...

    def sampled(self, samples: tuple[DeviceSample, ...]) -> None:
        """Take an answer to `sample`."""
        ...

    def not_sampled(self, error: str) -> None:
        """Take why there are no samples this time."""
        ...


class Conversation:
    """Keeps the periods of one worker's life."""

    def __init__(
        self,
        worker: Worker,
        wishes: Wishes,
        ear: Ear,
        *,
        timing: Timing,
        clock: Clock,
        resident: Resident = resident_bytes,
    ) -> None:
        self._worker = worker
        self._wishes = wishes
        self._ear = ear
        self._timing = timing
        self._clock = clock
        self._resident = resident
        self._failures = 0  # samples in a row
        self._samples = True  # False: the vendor cannot tell, until the next discovery
        self._allowed_s = self._discover_s = self._sample_s = clock.monotonic()
        self._memory_s = clock.monotonic() + MEMORY_EVERY_S

    async def run(self) -> None:
        """Talk until a wish ends it; `WorkerError` says why the worker is of no more use."""
        self._wishes.discovery = True
        while not self._wishes.end:
            began_s = self._clock.monotonic()
            await self._discover_if_due(began_s)
            if self._samples and began_s >= self._sample_s:
                await self._sample()
                self._sample_s = began_s + self._timing.sample_every_s
            await self._run_errands()
            self._look_at_memory(began_s)
            await self._wishes.pause(max(0.0, self._next_s() - self._clock.monotonic()))
            if self._worker.lost.done():
                raise self._worker.lost.result()

    def _next_s(self) -> float:
        due_s = [self._allowed_s if self._wishes.discovery else self._discover_s]
        due_s += [self._sample_s] if self._samples else []
        due_s += [self._memory_s] if self._timing.memory_limit_bytes else []
        return min(due_s)

    async def _discover_if_due(self, began_s: float) -> None:
        if began_s < (self._allowed_s if self._wishes.discovery else self._discover_s):
            return
        self._wishes.discovery, self._samples = False, True
        inventory = await self._worker.discover(self._timing.discover_deadline_s)
        self._ear.discovered(inventory)
        self._allowed_s = began_s + AGAIN_S
        if inventory.partial:
            self._wishes.discovery, self._allowed_s = True, began_s
        self._discover_s = began_s + self._timing.discover_every_s
        self._sample_s = began_s

    async def _sample(self) -> None:
        try:
            samples = await self._worker.sample(self._timing.sample_deadline_s)
        except WorkerError as error:
            self._samples = error.reason != NOT_SUPPORTED
            self._failures += self._samples
            over = error.reason == LIBRARY_REPLACED or self._failures >= MAX_FAILURES
            if over or self._worker.lost.done():
                raise
            self._ear.not_sampled(str(error))
        else:
            self._failures = 0
            self._ear.sampled(samples)

    async def _run_errands(self) -> None:
        while self._wishes.errands:
            errand, answer = self._wishes.errands.popleft()
            try:
                result = await errand.run(self._worker)
            except WorkerError as error:
                if not answer.done():
                    answer.set_exception(error)
                if self._worker.lost.done():
                    raise
            else:
                if errand.changed:
                    # whoever waits for a slice waits for this look, so it is not put off
                    self._wishes.discovery, self._allowed_s = True, self._clock.monotonic()
                if not answer.done():
                    answer.set_result(result)

    def _look_at_memory(self, now_s: float) -> None:
        limit, pid = self._timing.memory_limit_bytes, self._worker.pid
        if not limit or pid is None or now_s < self._memory_s:
            return
        self._memory_s = now_s + MEMORY_EVERY_S
        held = self._resident(pid)
        if held is not None and held > limit:
            detail = f"process {pid} holds {held} bytes of memory, more than {limit}"
            raise WorkerError(self._worker.vendor, MEMORY_LIMIT, detail)
