"""One vendor as the agent sees it: its worker kept going, its state published at every change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from msgspec.structs import replace

from agent.clock import Clock, SystemClock, rfc3339
from agent.errors import WorkerError
from agent.model.device import VendorDevice
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.model.part import Part
from agent.model.snapshot import VendorState
from agent.probe.call_journal import Call, call_in_progress, read_journal
from agent.probe.conversation import MEMORY_LIMIT, Conversation, Resident, Sleep, Wishes
from agent.probe.life import TIMING, Errand, Start, Timing, Worker
from agent.probe.process.launch import Launched
from agent.probe.process.memory import resident_bytes
from agent.probe.process.spec import WorkerSpec
from agent.probe.process.worker_process import LATE, WorkerProcess
from agent.probe.restart import RestartHistory
from agent.probe.wire import LIBRARY_REPLACED

log = logging.getLogger(__name__)

MAX_STUCK = 3  # processes in uninterruptible sleep that are left behind before no more is started
CLOSE_S = 1.1  # of an orderly end; killing takes less than the rest of `STOP_S`
STOP_S = 2.0
OUTWORN = frozenset((MEMORY_LIMIT, LIBRARY_REPLACED))  # why a fresh process is better, at once
OUTWORN_AGAIN_S = 60.0  # one that is outworn so soon after another is like one that dies
UNKILLABLE = "Unkillable"
RELEASED = "Released"
NOT_RUNNING = "NotRunning"

T = TypeVar("T")
StateSink = Callable[[VendorState], None]
EventSink = Callable[[str, tuple[DeviceEvent, ...]], None]  # vendor, events


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
        self._spread = spread
        self._on_state = on_state
        self._on_events = on_events
        self._resident: Resident = resident_bytes
        self._history = RestartHistory()
        self._wishes = Wishes(sleep)
        self._worker: Worker | None = None
        self._stuck: list[Worker] = []
        self._deaths = 0
        self._hung: Call | None = None  # what the last process ended in
        self._outworn_s = float("-inf")  # monotonic, of the last replacement in good order
        self._released_until_s: float | None = None
        self._away = asyncio.Event()  # released, and no process is left that could be ended
        self._hurry = False  # do not wait before the next process
        self._stopping = False
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
        self._wishes.discovery = True
        self._wishes.nudge()

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
        self._wishes.end = True
        self._wishes.nudge()
        away = asyncio.ensure_future(self._away.wait())
        await asyncio.wait({away}, timeout=CLOSE_S)
        if not away.done() and self._worker is not None:  # waiting for an answer
            await self._worker.kill()
            await asyncio.wait({away}, timeout=STOP_S - CLOSE_S)
        away.cancel()

    async def have(self, errand: Errand[T]) -> T:
        """Have the worker do something in its turn; `WorkerError` if nobody can be asked."""
        if self.state.state != "ready":
            detail = f"the worker is {self.state.state}: {self.state.message}"
            raise WorkerError(self._spec.vendor, NOT_RUNNING, detail)
        return await self._wishes.send(self._spec.vendor, errand)

    async def stop(self) -> None:
        """End the worker within two seconds, orderly if it answers; `run` then returns."""
        self._stopping = self._wishes.end = True
        self._wishes.nudge()
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
            self._wishes.end = self._stopping
            spec = replace(self._spec, hung=self._hung)
            self._hung = None
            self._worker = worker = self._start(spec, self._heard, launched)
            worker.lost.add_done_callback(lambda _: self._wishes.nudge())
            self._publish(pid=worker.pid, restarts=self._deaths)
            await worker.opened(self._timing.open_deadline_s)
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
            self._wishes.refuse_errands(WorkerError(self._spec.vendor, NOT_RUNNING, "it ended"))
            worker_now, self._worker = self._worker, None
            if worker_now is not None and not await worker_now.kill():
                self._leave(worker_now)

    async def _talk(self, worker: Worker) -> None:
        """Ask the worker until it is to end; one that is outworn is to, but not time and again."""
        conversation = Conversation(
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
            again = now_s - self._outworn_s < OUTWORN_AGAIN_S
            if worker.lost.done() or error.reason not in OUTWORN or again:
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

    def discovered(self, inventory: Inventory) -> None:
        """Take an answer of the worker; it is well again."""
        self._history = self._history.answered()
        part: Part[Inventory | None] = Part(inventory, self._clock.monotonic())
        self._publish(state="ready", reason="", message="", inventory=part)

    def sampled(self, samples: tuple[DeviceSample, ...]) -> None:
        """Take what the devices do."""
        self._publish(samples=Part(samples, self._clock.monotonic()))

    def not_sampled(self, error: str) -> None:
        """Take why that is not known this time."""
        self._publish(samples=replace(self.state.samples, error=error))

    def _heard(self, events: tuple[DeviceEvent, ...]) -> None:
        self._on_events(self._spec.vendor, events)

    def _call_of(self, error: WorkerError) -> Call | None:
        """Return the call of the library in which a process hung or crashed, by its journal."""
        worker, late = self._worker, error.reason == LATE
        if worker is None or not self._spec.journal or not (late or worker.crashed):
            return None
        call = call_in_progress(read_journal(self._spec.journal))
        # not the client's own clock: the worker wrote the time
        if call is not None and late and monotonic() - call.began_s < self._timing.hung_call_s:
            return None  # it was slow on the whole, and this call is one of many
        return call

    def _died(self, error: WorkerError, call: Call | None) -> None:
        """Publish the death, and count it unless the next process will leave its cause out."""
        self._deaths += 1
        if self._hung is None:
            self._history = self._history.died(self._clock.monotonic(), self._timing.restart)
        message = str(error) if call is None else f"{error}; it was in {call}"
        state = "stalled" if error.reason == LATE else "restarting"
        if self._history.quarantined:
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
        self._on_state(self.state)

    async def _rest(self, wait_s: float) -> None:
        """Wait before the next process; `stop`, `retry` and `release` make it shorter."""
        until_s = self._clock.monotonic() + wait_s
        while (left_s := until_s - self._clock.monotonic()) > 0:
            if self._stopping or self._hurry or self._released_until_s is not None:
                return
            await self._wishes.pause(left_s)
