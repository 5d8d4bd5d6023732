"""One vendor as the agent sees it: its worker kept going, its state published at every change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Protocol

import msgspec
from msgspec.structs import replace

from agent.clock import Clock, SystemClock
from agent.errors import WorkerError
from agent.model.device import VendorDevice
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.model.snapshot import Part, VendorState
from agent.probe.process.launch import Launched
from agent.probe.process.spec import WorkerSpec
from agent.probe.process.worker_process import LATE, WorkerProcess
from agent.probe.restart import RestartHistory, RestartPolicy
from agent.probe.wire import NOT_SUPPORTED

log = logging.getLogger(__name__)

MAX_STUCK = 2  # processes in uninterruptible sleep that are left behind before no more is started
CLOSE_S = 1.1  # of an orderly end; killing takes less than the rest of `STOP_S`
STOP_S = 2.0
AGAIN_S = 1.0  # between two discoveries, however many events ask for one
MAX_FAILURES = 3  # samples in a row that fail before a fresh process is tried
UNKILLABLE = "Unkillable"

StateSink = Callable[[VendorState], None]
EventSink = Callable[[str, tuple[DeviceEvent, ...]], None]  # vendor, events
Sleep = Callable[[float], Coroutine[None, None, None]]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Periods and deadlines."""

    discover_every_s: float = 300.0
    sample_every_s: float = 1.0
    open_deadline_s: float = 30.0  # until the first answer of a fresh process
    discover_deadline_s: float = 30.0
    sample_deadline_s: float = 5.0
    restart: RestartPolicy = RestartPolicy()


TIMING = Timing()


class Worker(Protocol):
    """One life of a vendor's session: a process (`WorkerProcess`), or inside the agent."""

    lost: asyncio.Future[WorkerError]  # done when it is of no more use

    @property
    def pid(self) -> int | None:
        """The process's id, if it is one."""
        ...

    @property
    def alive(self) -> bool:
        """Say whether something of it is still running."""
        ...

    async def opened(self, deadline_s: float) -> None:
        """Wait until the vendor is open; raises why it is not."""
        ...

    async def discover(self, deadline_s: float) -> Inventory:
        """Return the vendor's inventory."""
        ...

    async def sample(self, deadline_s: float) -> tuple[DeviceSample, ...]:
        """Return what the devices do now."""
        ...

    async def close(self, grace_s: float) -> None:
        """Let the vendor close its library."""
        ...

    async def kill(self) -> bool:
        """End it; `False` if that is not possible, which leaves it behind."""
        ...


Heard = Callable[[tuple[DeviceEvent, ...]], None]
Start = Callable[[WorkerSpec, Heard, Launched | None], Worker]


class VendorClient:
    """Runs in the agent's loop thread. `run` returns after `stop` only.

    Both callbacks are called in that thread and must be quick. An answer that does not come in
    time makes the state `stalled`, any other end of the worker `restarting`, until it answers
    again; what it said last stays, with its age and the reason.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        sighted: tuple[VendorDevice, ...],
        *,
        on_state: StateSink,
        on_events: EventSink,
        timing: Timing = TIMING,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._spec = spec
        self._start: Start = WorkerProcess.start
        self._launched: Launched | None = None
        self._timing = timing
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._spread = spread
        self._on_state = on_state
        self._on_events = on_events
        self._history = RestartHistory()
        self._stuck: list[Worker] = []
        self._lives = 0  # processes started
        self._sample_failures = 0
        self._samples = True  # False: the vendor cannot tell, until the next discovery
        self._wanted = True
        self._stopping = False
        self._nudge = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        first = Inventory(vendor=spec.vendor, devices=sighted)
        taken_s = self._clock.monotonic()
        self.state = VendorState(vendor=spec.vendor, inventory=Part(first, taken_s))

    def adopt(self, launched: Launched) -> None:
        """Take a process that was started beforehand as the first one; call before `run`."""
        self._launched = launched

    def live_by(self, start: Start) -> None:
        """Begin each life so, and not with a process; call before `run`."""
        self._start = start

    def rediscover(self) -> None:
        """Ask for a discovery soon instead of at the end of the period."""
        self._wanted = True
        self._nudge.set()

    async def stop(self) -> None:
        """End the worker within two seconds, orderly if it answers; `run` then returns."""
        self._stopping = True
        self._nudge.set()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=CLOSE_S)
        if not self._task.done():  # waiting for an answer that may never come
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=STOP_S - CLOSE_S)

    async def run(self) -> None:
        """Keep a worker going until `stop`; being cancelled leaves no process behind either."""
        self._task = asyncio.current_task()
        self._on_state(self.state)
        while not self._stopping:
            self._stuck = [process for process in self._stuck if process.alive]
            if len(self._stuck) < MAX_STUCK:
                await self._one_life()
            await self._rest(self._history.wait_s(self._timing.restart, self._spread()))

    async def _one_life(self) -> None:
        """Run one process from start to end; its death is published and counted."""
        worker: Worker | None = None
        try:
            launched, self._launched = self._launched, None
            worker = self._start(self._spec, self._heard, launched)
            worker.lost.add_done_callback(lambda _: self._nudge.set())
            self._publish(pid=worker.pid, restarts=self._lives)
            self._lives += 1
            await worker.opened(self._timing.open_deadline_s)
            await self._serve(worker)
            await worker.close(CLOSE_S)
        except WorkerError as error:
            if not self._stopping:
                self._died(error)
        finally:
            if worker is not None and not await worker.kill():
                self._leave(worker)

    async def _serve(self, worker: Worker) -> None:
        self._wanted, self._sample_failures = True, 0
        allowed_s = discover_s = sample_s = self._clock.monotonic()
        while not self._stopping:
            began_s = self._clock.monotonic()
            if began_s >= (allowed_s if self._wanted else discover_s):
                self._wanted, self._samples = False, True
                await self._discover(worker)
                allowed_s = began_s + AGAIN_S
                discover_s, sample_s = began_s + self._timing.discover_every_s, began_s
            if self._samples and began_s >= sample_s:
                await self._sample(worker)
                sample_s = began_s + self._timing.sample_every_s
            next_s = allowed_s if self._wanted else discover_s
            next_s = min(next_s, sample_s) if self._samples else next_s
            await self._pause(max(0.0, next_s - self._clock.monotonic()))
            if worker.lost.done():
                raise worker.lost.result()

    async def _discover(self, worker: Worker) -> None:
        inventory = await worker.discover(self._timing.discover_deadline_s)
        self._history = self._history.answered()
        part: Part[Inventory | None] = Part(inventory, self._clock.monotonic())
        self._publish(state="ready", reason="", message="", inventory=part)

    async def _sample(self, worker: Worker) -> None:
        try:
            samples = await worker.sample(self._timing.sample_deadline_s)
        except WorkerError as error:
            self._samples = error.reason != NOT_SUPPORTED
            self._sample_failures += self._samples
            if worker.lost.done() or self._sample_failures >= MAX_FAILURES:
                raise
            self._publish(samples=replace(self.state.samples, error=str(error)))
        else:
            self._sample_failures = 0
            self._publish(samples=Part(samples, self._clock.monotonic()))

    def _heard(self, events: tuple[DeviceEvent, ...]) -> None:
        self._on_events(self._spec.vendor, events)

    def _died(self, error: WorkerError) -> None:
        self._history = self._history.died(self._clock.monotonic(), self._timing.restart)
        state = "stalled" if error.reason == LATE else "restarting"
        if self._history.quarantined:
            state = "quarantined"
        fields = {"vendor": self._spec.vendor, "state": state, "error": str(error)}
        log.warning("worker_lost", extra=fields)
        self._publish_trouble(state, error.reason, str(error))

    def _leave(self, worker: Worker) -> None:
        """Go on without the process: the kernel does not end it before its call returns."""
        self._stuck.append(worker)
        what = "a read of files" if worker.pid is None else f"process {worker.pid}"
        message = f"{what} hangs in the kernel and cannot be ended"
        log.error("worker_unkillable", extra={"vendor": self._spec.vendor, "pid": worker.pid})
        self._publish_trouble("stalled", UNKILLABLE, message)

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
        self._on_state(self.state)

    async def _rest(self, wait_s: float) -> None:
        """Wait before the next process; only `stop` makes it shorter."""
        until_s = self._clock.monotonic() + wait_s
        while not self._stopping and (left_s := until_s - self._clock.monotonic()) > 0:
            await self._pause(left_s)

    async def _pause(self, seconds: float) -> None:
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
