"""Keeps one vendor's worker running, polls it, and publishes its state."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from agent.clock import Clock, SystemClock, rfc3339
from agent.errors import WorkerError
from agent.messages import DevicesReported, MessageQueue, VendorStateChanged
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.workers.call_journal import LibraryCall, call_in_progress, read_journal
from agent.workers.lifecycle import (
    DEFAULT_TIMING,
    RestartHistory,
    Worker,
    WorkerRequest,
    WorkerStarter,
    WorkerTiming,
)
from agent.workers.process import LaunchedProcess, WorkerSpec, resident_bytes
from agent.workers.protocol import LIBRARY_REPLACED, NOT_SUPPORTED
from agent.workers.worker_process import LATE, WorkerProcess

MIN_DISCOVERY_INTERVAL_S = 1.0  # between two discoveries, however many events ask for one

MAX_FAILURES = 3  # samples in a row that fail before a fresh process is tried

MEMORY_EVERY_S = 10.0

MAX_REQUESTS = 16  # that wait for their turn

MEMORY_LIMIT = "MemoryLimit"

BUSY = "Busy"

T = TypeVar("T")

Sleep = Callable[[float], Coroutine[None, None, None]]

ResidentBytes = Callable[[int], int | None]


class WorkerQueue:
    """What others want of a vendor's worker; whoever talks to it grants them in turn."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._nudge = asyncio.Event()
        self.wants_discovery = True  # soon, instead of at the end of the period
        self.wants_end = False  # of this life, in good order
        self.requests: deque[tuple[WorkerRequest[Any], asyncio.Future[Any]]] = deque()

    def wake(self) -> None:
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

    def send(self, vendor: str, errand: WorkerRequest[T]) -> asyncio.Future[T]:
        """Put an errand in the queue; `Busy` if too many wait."""
        if len(self.requests) >= MAX_REQUESTS:
            raise WorkerError(vendor, BUSY, f"{MAX_REQUESTS} questions wait for their turn already")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.requests.append((errand, answer))
        self.wake()
        return answer

    def refuse_requests(self, error: WorkerError) -> None:
        """Tell all who wait that it will not be."""
        while self.requests:
            _, answer = self.requests.popleft()
            if not answer.done():
                answer.set_exception(error)


class WorkerListener(Protocol):
    """Who is told what the worker says, at once."""

    def on_inventory(self, inventory: Inventory) -> None:
        """Take an answer to `discover`."""
        ...

    def on_samples(self, samples: tuple[DeviceSample, ...]) -> None:
        """Take an answer to `sample`."""
        ...

    def on_sample_error(self, error: str) -> None:
        """Take why there are no samples this time."""
        ...


class WorkerPoller:
    """Keeps the periods of one worker's life."""

    def __init__(
        self,
        worker: Worker,
        wishes: WorkerQueue,
        ear: WorkerListener,
        *,
        timing: WorkerTiming,
        clock: Clock,
        resident: ResidentBytes = resident_bytes,
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
        self._wishes.wants_discovery = True
        while not self._wishes.wants_end:
            began_s = self._clock.monotonic()
            await self._discover_if_due(began_s)
            if self._samples and began_s >= self._sample_s:
                await self._sample()
                self._sample_s = began_s + self._timing.sample_every_s
            await self._run_errands()
            self._look_at_memory(began_s)
            await self._wishes.pause(max(0.0, self._next_s() - self._clock.monotonic()))
            if self._worker.failure.done():
                raise self._worker.failure.result()

    def _next_s(self) -> float:
        due_s = [self._allowed_s if self._wishes.wants_discovery else self._discover_s]
        due_s += [self._sample_s] if self._samples else []
        due_s += [self._memory_s] if self._timing.memory_limit_bytes else []
        return min(due_s)

    async def _discover_if_due(self, began_s: float) -> None:
        if began_s < (self._allowed_s if self._wishes.wants_discovery else self._discover_s):
            return
        self._wishes.wants_discovery, self._samples = False, True
        inventory = await self._worker.discover(self._timing.discover_deadline_s)
        self._ear.on_inventory(inventory)
        self._allowed_s = began_s + MIN_DISCOVERY_INTERVAL_S
        if inventory.partial:
            self._wishes.wants_discovery, self._allowed_s = True, began_s
        self._discover_s = began_s + self._timing.discover_every_s
        self._sample_s = began_s

    async def _sample(self) -> None:
        try:
            samples = await self._worker.sample(self._timing.sample_deadline_s)
        except WorkerError as error:
            self._samples = error.reason != NOT_SUPPORTED
            self._failures += self._samples
            over = error.reason == LIBRARY_REPLACED or self._failures >= MAX_FAILURES
            if over or self._worker.failure.done():
                raise
            self._ear.on_sample_error(str(error))
        else:
            self._failures = 0
            self._ear.on_samples(samples)

    async def _run_errands(self) -> None:
        while self._wishes.requests:
            errand, answer = self._wishes.requests.popleft()
            try:
                result = await errand.run(self._worker)
            except WorkerError as error:
                if not answer.done():
                    answer.set_exception(error)
                if self._worker.failure.done():
                    raise
            else:
                if errand.has_changed:
                    # whoever waits for a slice waits for this look, so it is not put off
                    self._wishes.wants_discovery, self._allowed_s = True, self._clock.monotonic()
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


log = logging.getLogger(__name__)

MAX_STUCK = 3  # processes in uninterruptible sleep that are left behind before no more is started

CLOSE_S = 1.1  # of an orderly end; killing takes less than the rest of `STOP_S`

STOP_S = 2.0

REPLACEMENT_REASONS = frozenset(
    (MEMORY_LIMIT, LIBRARY_REPLACED)
)  # why a fresh process is better, at once

MIN_REPLACEMENT_INTERVAL_S = 60.0  # one that is outworn so soon after another is like one that dies

UNKILLABLE = "Unkillable"

RELEASED = "Released"

NOT_RUNNING = "NotRunning"


class VendorClient:
    """Runs in the agent's loop thread. `run` returns after `stop` only.

    It puts each new state and each event into `messages`. An answer that does not come in
    time makes the state `stalled`, any other end of the worker `restarting`, until it answers
    again; what it said last stays, with its age and the reason.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        sighted: tuple[VendorDevice, ...],
        *,
        messages: MessageQueue,
        timing: WorkerTiming = DEFAULT_TIMING,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._spec = spec
        self._start: WorkerStarter = WorkerProcess.start
        self._launched: LaunchedProcess | None = None
        self._timing = timing
        self._clock = clock or SystemClock()
        self._spread = spread
        self._messages = messages
        self._resident: ResidentBytes = resident_bytes
        self._history = RestartHistory()
        self._wishes = WorkerQueue(sleep)
        self._worker: Worker | None = None
        self._stuck: list[Worker] = []
        self._deaths = 0
        self._hung: LibraryCall | None = None  # what the last process ended in
        self._outworn_s = float("-inf")  # monotonic, of the last replacement in good order
        self._released_until_s: float | None = None
        self._away = asyncio.Event()  # released, and no process is left that could be ended
        self._hurry = False  # do not wait before the next process
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        first = Inventory(vendor=spec.vendor, devices=sighted)
        taken_s = self._clock.monotonic()
        self.state = VendorState(vendor=spec.vendor, inventory=SnapshotPart(first, taken_s))

    def adopt(self, launched: LaunchedProcess) -> None:
        """Take a process that was started beforehand as the first one; call before `run`."""
        self._launched = launched

    def set_starter(self, start: WorkerStarter) -> None:
        """Begin each life so, and not with a process; call before `run`."""
        self._start = start

    def rediscover(self) -> None:
        """Ask for a discovery soon instead of at the end of the period."""
        self._wishes.wants_discovery = True
        self._wishes.wake()

    def retry(self) -> None:
        """Ask for a discovery now: a release is over, a pause before the next process too."""
        self._released_until_s = None
        self._hurry = self._worker is None
        self.rediscover()

    async def release(self, for_s: float) -> None:
        """Let go of the library for so long, so that its driver can be unloaded.

        Returns when the process is gone, or within `STOP_S` if it cannot be ended. Until then
        and after, the devices stay as they were last known.
        """
        self._away.clear()
        self._released_until_s = self._clock.monotonic() + for_s
        self._wishes.wants_end = True
        self._wishes.wake()
        away = asyncio.ensure_future(self._away.wait())
        await asyncio.wait({away}, timeout=CLOSE_S)
        if not away.done() and self._worker is not None:  # waiting for an answer
            await self._worker.kill()
            await asyncio.wait({away}, timeout=STOP_S - CLOSE_S)
        away.cancel()

    async def request(self, errand: WorkerRequest[T]) -> T:
        """Have the worker do something in its turn; `WorkerError` if nobody can be asked."""
        if self.state.state != "ready":
            detail = f"the worker is {self.state.state}: {self.state.message}"
            raise WorkerError(self._spec.vendor, NOT_RUNNING, detail)
        return await self._wishes.send(self._spec.vendor, errand)

    async def stop(self) -> None:
        """End the worker within two seconds, orderly if it answers; `run` then returns."""
        self._stopping = self._wishes.wants_end = True
        self._wishes.wake()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=CLOSE_S)
        if not self._task.done():  # waiting for an answer that may never come
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=STOP_S - CLOSE_S)

    async def run(self) -> None:
        """Keep a worker going until `stop`; being cancelled leaves no process behind either."""
        self._task = asyncio.current_task()
        self._messages.put(VendorStateChanged(self.state))
        while not self._stopping:
            self._stuck = [process for process in self._stuck if process.is_alive]
            if self._released_until_s is not None:
                await self._stay_away()
                continue
            wait_s = 0.0
            self._hurry = False
            if len(self._stuck) >= MAX_STUCK or not await self._one_life():
                wait_s = self._history.wait_s(self._timing.restart, self._spread())
            await self._rest(wait_s)

    async def _one_life(self) -> bool:
        """Run one process from start to end; `False` if it died, which is published and counted."""
        try:
            launched, self._launched = self._launched, None
            self._wishes.wants_end = self._stopping
            spec = replace(self._spec, hung=self._hung)
            self._hung = None
            self._worker = worker = self._start(spec, self._heard, launched)
            worker.failure.add_done_callback(lambda _: self._wishes.wake())
            self._publish(pid=worker.pid, restarts=self._deaths)
            await worker.wait_open(self._timing.open_deadline_s)
            await self._talk(worker)
            await self._close(worker)
        except WorkerError as error:
            if self._stopping or self._released_until_s is not None:
                return True
            call = self._call_of(error)
            self._hung = call if call is not None and call.device else None
            self._died(error, call)
            return False
        else:
            return True
        finally:
            self._wishes.refuse_requests(WorkerError(self._spec.vendor, NOT_RUNNING, "it ended"))
            worker_now, self._worker = self._worker, None
            if worker_now is not None and not await worker_now.kill():
                self._leave(worker_now)

    async def _talk(self, worker: Worker) -> None:
        """Ask the worker until it is to end; one that is outworn is to, but not time and again."""
        conversation = WorkerPoller(
            worker,
            self._wishes,
            self,
            timing=self._timing,
            clock=self._clock,
            resident=self._resident,
        )
        try:
            await conversation.run()
        except WorkerError as error:
            now_s = self._clock.monotonic()
            again = now_s - self._outworn_s < MIN_REPLACEMENT_INTERVAL_S
            if worker.failure.done() or error.reason not in REPLACEMENT_REASONS or again:
                raise
            self._outworn_s = now_s
            fields = {"vendor": self._spec.vendor, "reason": error.reason, "error": str(error)}
            log.warning("worker_recycled", extra=fields)
            self._publish(pid=None, recycles=self.state.recycles + 1)

    async def _close(self, worker: Worker) -> None:
        try:
            await worker.close(CLOSE_S)
        except WorkerError as error:  # it is to end in any case
            fields = {"vendor": self._spec.vendor, "error": str(error)}
            log.info("worker_not_closed", extra=fields)

    def on_inventory(self, inventory: Inventory) -> None:
        """Take an answer of the worker; it is well again."""
        self._history = self._history.with_answer()
        part: SnapshotPart[Inventory | None] = SnapshotPart(inventory, self._clock.monotonic())
        self._publish(state="ready", reason="", message="", inventory=part)

    def on_samples(self, samples: tuple[DeviceSample, ...]) -> None:
        """Take what the devices do."""
        self._publish(samples=SnapshotPart(samples, self._clock.monotonic()))

    def on_sample_error(self, error: str) -> None:
        """Take why that is not known this time."""
        self._publish(samples=replace(self.state.samples, error=error))

    def _heard(self, events: tuple[DeviceEvent, ...]) -> None:
        self._messages.put(DevicesReported(self._spec.vendor, events))

    def _call_of(self, error: WorkerError) -> LibraryCall | None:
        """Return the call of the library in which a process hung or crashed, by its journal."""
        worker, late = self._worker, error.reason == LATE
        if worker is None or not self._spec.journal or not (late or worker.has_crashed):
            return None
        call = call_in_progress(read_journal(self._spec.journal))
        # not the client's own clock: the worker wrote the time
        if call is not None and late and monotonic() - call.began_s < self._timing.hung_call_s:
            return None  # it was slow on the whole, and this call is one of many
        return call

    def _died(self, error: WorkerError, call: LibraryCall | None) -> None:
        """Publish the death, and count it unless the next process will leave its cause out."""
        self._deaths += 1
        if self._hung is None:
            self._history = self._history.with_death(self._clock.monotonic(), self._timing.restart)
        message = str(error) if call is None else f"{error}; it was in {call}"
        state = "stalled" if error.reason == LATE else "restarting"
        if self._history.is_quarantined:
            state = "quarantined"
        fields = {"vendor": self._spec.vendor, "state": state, "error": message}
        log.warning("worker_lost", extra=fields)
        self._publish_trouble(state, error.reason, message)

    def _leave(self, worker: Worker) -> None:
        """Go on without the process: the kernel does not end it before its call returns."""
        self._stuck.append(worker)
        log.error("worker_unkillable", extra={"vendor": self._spec.vendor, "pid": worker.pid})
        self._publish_trouble("stalled", UNKILLABLE, self._stuck_words())

    def _stuck_words(self) -> str:
        pids = [str(worker.pid) for worker in self._stuck if worker.pid is not None]
        what = f"process {', '.join(pids)}" if pids else "a read of files"
        words = f"{what} hangs in the kernel and cannot be ended"
        return f"{words}: no more is started" if len(self._stuck) >= MAX_STUCK else words

    async def _stay_away(self) -> None:
        """Start nothing until the time of the release is over, or it is taken back.

        It may be over before the process is gone; that is told as well.
        """
        told_s: float | None = None
        while not self._stopping and (until_s := self._released_until_s) is not None:
            left_s = until_s - self._clock.monotonic()
            if told_s != until_s:
                told_s = until_s
                self._tell_release(left_s)
            if left_s <= 0:
                break
            await self._wishes.pause(left_s)
        self._released_until_s = None

    def _tell_release(self, left_s: float) -> None:
        until = rfc3339(self._clock.wall() + left_s)
        message = f"released on request until {until}"
        if self._stuck:
            message += f", but {self._stuck_words()}"
        log.info("worker_released", extra={"vendor": self._spec.vendor, "until": until})
        self._publish_trouble("released", RELEASED, message)
        self._away.set()

    def _publish_trouble(self, state: str, reason: str, message: str) -> None:
        self._publish(
            state=state,
            reason=reason,
            message=message,
            pid=None,
            inventory=replace(self.state.inventory, error=message),
            samples=replace(self.state.samples, error=message),
        )

    def _publish(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)
        self._messages.put(VendorStateChanged(self.state))

    async def _rest(self, wait_s: float) -> None:
        """Wait before the next process; `stop`, `retry` and `release` make it shorter."""
        until_s = self._clock.monotonic() + wait_s
        while (left_s := until_s - self._clock.monotonic()) > 0:
            if self._stopping or self._hurry or self._released_until_s is not None:
                return
            await self._wishes.pause(left_s)
