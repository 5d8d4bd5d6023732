"""Keeps one vendor's worker running, polls it, and publishes its state."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from time import monotonic
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from agent.clock import Clock, SystemClock, rfc3339
from agent.errors import WorkerError
from agent.messages import DevicesReported, MessageQueue, VendorStateChanged
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, MetricFamily
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.workers.call_journal import LibraryCall, call_in_progress, read_journal
from agent.workers.lifecycle import (
    DEFAULT_TIMING,
    RestartPolicy,
    Worker,
    WorkerRequest,
    WorkerStarter,
    WorkerTiming,
)
from agent.workers.process import LaunchedProcess, WorkerSpec, resident_bytes
from agent.workers.protocol import LIBRARY_REPLACED, NOT_SUPPORTED, UNEXPECTED
from agent.workers.reading_filter import ReadingFilter
from agent.workers.worker_process import LATE, WorkerProcess

log = logging.getLogger(__name__)

MIN_DISCOVERY_INTERVAL_S = 1.0  # minimum between two discoveries, however many events request one
MAX_FAILURES = 3  # failed samples in a row after which the process is replaced
MEMORY_EVERY_S = 10.0
MAX_REQUESTS = 16  # in the queue
MEMORY_LIMIT = "MemoryLimit"
BUSY = "Busy"
T = TypeVar("T")

Sleep = Callable[[float], Coroutine[None, None, None]]


class WorkerQueue:
    """Requests to a vendor's worker; the poller runs them in turn."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._wake_event = asyncio.Event()
        self.wants_discovery = True  # soon, instead of at the end of the period
        self.wants_end = False  # end the worker in order
        self.requests: deque[tuple[WorkerRequest[Any], asyncio.Future[Any]]] = deque()

    def wake(self) -> None:
        """End the current pause."""
        self._wake_event.set()

    async def pause(self, seconds: float) -> None:
        """Sleep, or less if there is work."""
        waits = {
            asyncio.ensure_future(self._sleep(seconds)),
            asyncio.ensure_future(self._wake_event.wait()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._wake_event.clear()

    def send(self, vendor: str, request: WorkerRequest[T]) -> asyncio.Future[T]:
        """Add a request to the queue; raises `WorkerError` with the reason `Busy` if it is full."""
        if len(self.requests) >= MAX_REQUESTS:
            raise WorkerError(vendor, BUSY, f"{MAX_REQUESTS} questions wait for their turn already")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.requests.append((request, answer))
        self.wake()
        return answer

    def refuse_requests(self, error: WorkerError) -> None:
        """Fail all requests in the queue."""
        while self.requests:
            _, answer = self.requests.popleft()
            if not answer.done():
                answer.set_exception(error)


class WorkerListener(Protocol):
    """Receives the answers of a worker at once."""

    def on_inventory(self, inventory: Inventory) -> None:
        """Handle an answer to `discover`."""
        ...

    def on_samples(self, samples: tuple[DeviceSample, ...]) -> None:
        """Handle an answer to `sample`."""
        ...

    def on_sample_error(self, error: str) -> None:
        """Handle a failed `sample`."""
        ...


class WorkerPoller:
    """Polls one worker: discoveries and samples by their periods, requests in between."""

    def __init__(
        self,
        worker: Worker,
        queue: WorkerQueue,
        listener: WorkerListener,
        *,
        timing: WorkerTiming,
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._queue = queue
        self._listener = listener
        self._timing = timing
        self._clock = clock
        self._failures = 0  # samples in a row
        self._samples = True  # False: the vendor has no samples, until the next discovery
        self._allowed_s = self._discover_s = self._sample_s = clock.monotonic()
        self._memory_s = clock.monotonic() + MEMORY_EVERY_S

    async def run(self) -> None:
        """Poll until the queue ends it.

        `WorkerError` says why the worker cannot be used any more.
        """
        self._queue.wants_discovery = True
        while not self._queue.wants_end:
            began_s = self._clock.monotonic()
            await self._discover_if_due(began_s)
            if self._samples and began_s >= self._sample_s:
                await self._sample()
                self._sample_s = began_s + self._timing.sample_every_s
            await self._run_requests()
            self._check_memory(began_s)
            await self._queue.pause(max(0.0, self._next_s() - self._clock.monotonic()))
            if self._worker.failure.done():
                raise self._worker.failure.result()

    def _next_s(self) -> float:
        due_s = [self._allowed_s if self._queue.wants_discovery else self._discover_s]
        due_s += [self._sample_s] if self._samples else []
        due_s += [self._memory_s] if self._timing.memory_limit_bytes else []
        return min(due_s)

    async def _discover_if_due(self, began_s: float) -> None:
        if began_s < (self._allowed_s if self._queue.wants_discovery else self._discover_s):
            return
        self._queue.wants_discovery, self._samples = False, True
        inventory = await self._worker.discover(self._timing.discover_deadline_s)
        self._listener.on_inventory(inventory)
        self._allowed_s = began_s + MIN_DISCOVERY_INTERVAL_S
        if inventory.partial:
            self._queue.wants_discovery, self._allowed_s = True, began_s
        self._discover_s = began_s + self._timing.discover_every_s
        self._sample_s = began_s

    async def _sample(self) -> None:
        try:
            samples = await self._worker.sample(self._timing.sample_deadline_s)
        except WorkerError as error:
            self._samples = error.reason != NOT_SUPPORTED
            self._failures += self._samples
            needs_restart = error.reason == LIBRARY_REPLACED or self._failures >= MAX_FAILURES
            if needs_restart or self._worker.failure.done():
                raise
            self._listener.on_sample_error(str(error))
        else:
            self._failures = 0
            self._listener.on_samples(samples)

    async def _run_requests(self) -> None:
        while self._queue.requests:
            request, answer = self._queue.requests.popleft()
            try:
                result = await request.run(self._worker)
            except WorkerError as error:
                if not answer.done():
                    answer.set_exception(error)
                if self._worker.failure.done():
                    raise
            else:
                if request.has_changed:
                    # the caller waits for the discovery that shows the new slice: do not delay it
                    self._queue.wants_discovery, self._allowed_s = True, self._clock.monotonic()
                if not answer.done():
                    answer.set_result(result)
            finally:  # cancelled, or a bug: the caller must not wait for ever
                if not answer.done():
                    answer.set_exception(WorkerError(self._worker.vendor, NOT_RUNNING, "it ended"))

    def _check_memory(self, now_s: float) -> None:
        limit, pid = self._timing.memory_limit_bytes, self._worker.pid
        if not limit or pid is None or now_s < self._memory_s:
            return
        self._memory_s = now_s + MEMORY_EVERY_S
        resident_memory = resident_bytes(pid)
        if resident_memory is not None and resident_memory > limit:
            detail = f"process {pid} holds {resident_memory} bytes of memory, more than {limit}"
            raise WorkerError(self._worker.vendor, MEMORY_LIMIT, detail)


class RestartHistory(msgspec.Struct, frozen=True):
    """The deaths that count. A worker in quarantine gets one attempt at a time."""

    deaths_s: tuple[float, ...] = ()  # monotonic, within the window of the last one
    is_quarantined: bool = False

    def with_death(self, now_s: float, policy: RestartPolicy) -> RestartHistory:
        """Count a death."""
        recent = (*(t for t in self.deaths_s if now_s - t < policy.window_s), now_s)
        recent = recent[-policy.deaths :]
        return RestartHistory(recent, self.is_quarantined or len(recent) >= policy.deaths)

    def with_answer(self) -> RestartHistory:
        """Leave the quarantine: the worker answers. Deaths within the window still count."""
        return RestartHistory((), is_quarantined=False) if self.is_quarantined else self

    def wait_s(self, policy: RestartPolicy, spread: float) -> float:
        """Return the pause until the next attempt.

        `spread` is a random number from 0 to 1: the pause is between half and all of the doubled
        time, so that the workers of many nodes do not start at the same moment.
        """
        if self.is_quarantined:
            return policy.quarantine_s
        doubled_s = policy.first_s * 2.0 ** max(0, len(self.deaths_s) - 1)
        return min(policy.longest_s, doubled_s) * (0.5 + 0.5 * spread)


MAX_STUCK = 3  # processes in uninterruptible sleep that are abandoned before no more is started
CLOSE_S = 1.1  # for an orderly end; killing takes less than the rest of `STOP_S`
STOP_S = 2.0
REPLACEMENT_REASONS = frozenset((MEMORY_LIMIT, LIBRARY_REPLACED))  # replace the process at once
MIN_REPLACEMENT_INTERVAL_S = 60.0  # a process that needs a replacement sooner counts as a death
UNKILLABLE = "Unkillable"
RELEASED = "Released"
MAX_RELEASE_PAUSE_S = 3600.0  # of one sleep while a release has no end
NOT_RUNNING = "NotRunning"


class VendorClient:
    """Runs the worker of one vendor on the agent's loop thread. `run` returns after `stop` only.

    Each new state and each event goes into `messages`. A late answer makes the state `stalled`, any
    other end of the worker `restarting`, until the worker answers again. Its last answer stays in
    the state, with its age and the reason.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        detected_devices: tuple[VendorDevice, ...],
        *,
        messages: MessageQueue,
        families: Iterable[MetricFamily] = (),
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
        self._filter = ReadingFilter(spec.vendor, families)
        self._history = RestartHistory()
        self._queue = WorkerQueue(sleep)
        self._worker: Worker | None = None
        self._stuck: list[Worker] = []
        self._deaths = 0
        self._hung_call: LibraryCall | None = None  # the call in which the last process ended
        self._last_replacement_s = float(
            "-inf"
        )  # monotonic, when a process was last replaced in order
        self._released_until_s: float | None = None  # by a person
        self.release_request = ""  # the label of the Node that asks to keep the driver free
        # the release has begun: no process is left that could be ended
        self._release_started = asyncio.Event()
        self._skip_pause = False  # do not pause before the next process
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        first = Inventory(vendor=spec.vendor, devices=detected_devices)
        taken_s = self._clock.monotonic()
        self.state = VendorState(vendor=spec.vendor, inventory=SnapshotPart(first, taken_s))

    def adopt(self, launched: LaunchedProcess) -> None:
        """Use a process that was launched earlier as the first one; call before `run`."""
        self._launched = launched

    def set_starter(self, start: WorkerStarter) -> None:
        """Set what starts each worker instead of a process; call before `run`."""
        self._start = start

    def rediscover(self) -> None:
        """Request a discovery soon instead of at the end of the period."""
        self._queue.wants_discovery = True
        self._queue.wake()

    def retry(self) -> None:
        """Request a discovery now: end a person's release, or the pause before the next process.

        A release that a label of the Node asks for goes on.
        """
        self._released_until_s = None
        self._skip_pause = self._worker is None
        self.rediscover()

    async def release(self, for_s: float) -> None:
        """Release the library for `for_s` seconds, so that its driver can be unloaded.

        Returns when the process has ended, or within `STOP_S` if it cannot be ended. The devices
        stay as they were last reported.
        """
        self._released_until_s = self._clock.monotonic() + for_s
        await self._begin_release()

    async def follow_request(self, request: str) -> None:
        """Release the library as long as there is a request; empty ends the release.

        `request` is the label of the Node. Returns as `release` does.
        """
        was_released, self.release_request = self.is_released, request
        if request:
            await self._begin_release()
        elif was_released:
            self._queue.wake()

    @property
    def is_released(self) -> bool:
        """Return whether no process may be started now."""
        return bool(self.release_request) or self._released_until_s is not None

    async def _begin_release(self) -> None:
        self._release_started.clear()
        self._queue.wants_end = True
        self._queue.wake()
        released = asyncio.ensure_future(self._release_started.wait())
        await asyncio.wait({released}, timeout=CLOSE_S)
        if not released.done() and self._worker is not None:  # it waits for an answer
            await self._worker.kill()
            await asyncio.wait({released}, timeout=STOP_S - CLOSE_S)
        released.cancel()

    async def request(self, request: WorkerRequest[T]) -> T:
        """Run a request in its turn; raises `WorkerError` if no worker can answer."""
        if self.state.state != "ready":
            detail = f"the worker is {self.state.state}: {self.state.message}"
            raise WorkerError(self._spec.vendor, NOT_RUNNING, detail)
        return await self._queue.send(self._spec.vendor, request)

    async def stop(self) -> None:
        """End the worker within two seconds, in order if it answers; `run` then returns."""
        self._stopping = self._queue.wants_end = True
        self._queue.wake()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=CLOSE_S)
        if not self._task.done():  # it waits for an answer that may never arrive
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=STOP_S - CLOSE_S)

    async def run(self) -> None:
        """Keep a worker running until `stop`; a cancellation leaves no process behind either."""
        self._task = asyncio.current_task()
        self._messages.put(VendorStateChanged(self.state))
        while not self._stopping:
            self._stuck = [process for process in self._stuck if process.is_alive]
            if self.is_released:
                await self._wait_for_release()
                continue
            wait_s = 0.0
            self._skip_pause = False
            if len(self._stuck) >= MAX_STUCK or not await self._run_worker():
                wait_s = self._history.wait_s(self._timing.restart, self._spread())
            await self._pause(wait_s)

    async def _run_worker(self) -> bool:
        """Run one worker from start to end.

        Return `False` if it died, which is published and counted.
        """
        try:
            launched, self._launched = self._launched, None
            self._queue.wants_end = self._stopping
            spec = replace(self._spec, hung_call=self._hung_call)
            self._hung_call = None
            self._worker = worker = self._start(spec, self._publish_events, launched)
            worker.failure.add_done_callback(lambda _: self._queue.wake())
            self._filter.forget_counters()
            self._publish(pid=worker.pid, restarts=self._deaths)
            await worker.wait_open(self._timing.open_deadline_s)
            await self._poll_worker(worker)
            await self._close(worker)
        except WorkerError as error:
            return self._handle_failure(error)
        except Exception as error:  # a bug, or a vendor's answer of another type
            log.error("vendor_failed", extra={"vendor": self._spec.vendor}, exc_info=error)
            return self._handle_failure(WorkerError(self._spec.vendor, UNEXPECTED, repr(error)))
        else:
            return True
        finally:
            self._queue.refuse_requests(WorkerError(self._spec.vendor, NOT_RUNNING, "it ended"))
            worker_now, self._worker = self._worker, None
            if worker_now is not None and not await worker_now.kill():
                self._abandon(worker_now)

    def _handle_failure(self, error: WorkerError) -> bool:
        """Publish and count the death of a worker, unless it was to end; return whether it was."""
        if self._stopping or self.is_released:
            return True
        call = self._call_of(error)
        self._hung_call = call if call is not None and call.device else None
        self._record_death(error, call)
        return False

    async def _poll_worker(self, worker: Worker) -> None:
        """Poll the worker until it is to end; replace it if needed, but not repeatedly."""
        poller = WorkerPoller(
            worker,
            self._queue,
            self,
            timing=self._timing,
            clock=self._clock,
        )
        try:
            await poller.run()
        except WorkerError as error:
            now_s = self._clock.monotonic()
            is_repeated = now_s - self._last_replacement_s < MIN_REPLACEMENT_INTERVAL_S
            if worker.failure.done() or error.reason not in REPLACEMENT_REASONS or is_repeated:
                raise
            self._last_replacement_s = now_s
            fields = {"vendor": self._spec.vendor, "reason": error.reason, "error": str(error)}
            log.warning("worker_recycled", extra=fields)
            self._publish(pid=None, recycles=self.state.recycles + 1)

    async def _close(self, worker: Worker) -> None:
        try:
            await worker.close(CLOSE_S)
        except WorkerError as error:  # the process is killed in any case
            fields = {"vendor": self._spec.vendor, "error": str(error)}
            log.info("worker_not_closed", extra=fields)

    def on_inventory(self, inventory: Inventory) -> None:
        """Publish an inventory; the worker works again."""
        self._history = self._history.with_answer()
        part: SnapshotPart[Inventory | None] = SnapshotPart(
            self._filter.filter_inventory(inventory), self._clock.monotonic()
        )
        self._publish(
            state="ready",
            reason="",
            message="",
            inventory=part,
            rejections=self._filter.rejections,
        )

    def on_samples(self, samples: tuple[DeviceSample, ...]) -> None:
        """Publish samples, without readings that no device can mean."""
        possible = self._filter.filter_samples(samples)
        self._publish(
            samples=SnapshotPart(possible, self._clock.monotonic()),
            rejections=self._filter.rejections,
        )

    def on_sample_error(self, error: str) -> None:
        """Publish why there are no new samples."""
        self._publish(samples=replace(self.state.samples, error=error))

    def _publish_events(self, events: tuple[DeviceEvent, ...]) -> None:
        self._messages.put(DevicesReported(self._spec.vendor, events))

    def _call_of(self, error: WorkerError) -> LibraryCall | None:
        """Return the library call in which a process hung or crashed, by its journal."""
        worker, late = self._worker, error.reason == LATE
        if worker is None or not self._spec.journal or not (late or worker.has_crashed):
            return None
        call = call_in_progress(read_journal(self._spec.journal))
        # not the client's own clock: the worker wrote the time
        if call is not None and late and monotonic() - call.began_s < self._timing.hung_call_s:
            return None  # the process was slow on the whole, not in this call
        return call

    def _record_death(self, error: WorkerError, call: LibraryCall | None) -> None:
        """Publish the death, and count it unless the next process skips the call that caused it."""
        self._deaths += 1
        if self._hung_call is None:
            self._history = self._history.with_death(self._clock.monotonic(), self._timing.restart)
        message = str(error) if call is None else f"{error}; it was in {call}"
        state = "stalled" if error.reason == LATE else "restarting"
        if self._history.is_quarantined:
            state = "quarantined"
        fields = {"vendor": self._spec.vendor, "state": state, "error": message}
        log.warning("worker_lost", extra=fields)
        self._publish_problem(state, error.reason, message)

    def _abandon(self, worker: Worker) -> None:
        """Abandon the process: the kernel does not end it before its call returns."""
        self._stuck.append(worker)
        log.error("worker_unkillable", extra={"vendor": self._spec.vendor, "pid": worker.pid})
        self._publish_problem("stalled", UNKILLABLE, self._stuck_message())

    def _stuck_message(self) -> str:
        pids = [str(worker.pid) for worker in self._stuck if worker.pid is not None]
        subject = f"process {', '.join(pids)}" if pids else "a read of files"
        text = f"{subject} hangs in the kernel and cannot be ended"
        return f"{text}: no more is started" if len(self._stuck) >= MAX_STUCK else text

    async def _wait_for_release(self) -> None:
        """Start no process until the release ends or is cancelled.

        The release may begin before the process has ended; the message then says so.
        """
        published: tuple[str, float | None] | None = None
        while not self._stopping and self.is_released:
            until_s, left_s = self._released_until_s, MAX_RELEASE_PAUSE_S
            if until_s is not None:
                left_s = until_s - self._clock.monotonic()
            if published != (self.release_request, until_s):
                published = self.release_request, until_s
                self._publish_release(left_s)
            if left_s <= 0:
                self._released_until_s = None
                continue
            await self._queue.pause(min(left_s, MAX_RELEASE_PAUSE_S))

    def _publish_release(self, left_s: float) -> None:
        if self.release_request:
            period = f"while the Node has the label {self.release_request}"
        else:
            period = f"until {rfc3339(self._clock.wall() + left_s)}"
        message = f"released on request {period}"
        if self._stuck:
            message += f", but {self._stuck_message()}"
        fields = {"vendor": self._spec.vendor, "until": period.removeprefix("until ")}
        log.info("worker_released", extra=fields)
        self._publish_problem("released", RELEASED, message)
        self._release_started.set()

    def _publish_problem(self, state: str, reason: str, message: str) -> None:
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

    async def _pause(self, wait_s: float) -> None:
        """Pause before the next process; `stop`, `retry` and `release` shorten the pause."""
        until_s = self._clock.monotonic() + wait_s
        while (left_s := until_s - self._clock.monotonic()) > 0:
            if self._stopping or self._skip_pause or self.is_released:
                return
            await self._queue.pause(left_s)
