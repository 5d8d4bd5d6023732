"""The agent's end of one worker process: start it, ask it with a deadline, end it for certain."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import TypeVar, cast

from agent.errors import WorkerError
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.model.runtime.slices import SlicesKept, SliceWish
from agent.probe.process.child import Child
from agent.probe.process.launch import Launched, launch
from agent.probe.process.spec import WorkerSpec
from agent.probe.process.stderr import StderrLog
from agent.probe.wire import (
    CLOSED,
    GARBAGE,
    NOT_SUPPORTED,
    Answer,
    Ask,
    Cleared,
    Discovered,
    Done,
    Failed,
    Happened,
    LineSplitter,
    Method,
    Opened,
    Reply,
    Sampled,
    Sliced,
    decode_reply,
    encode,
    encode_start,
)

log = logging.getLogger(__name__)

LATE = "Late"
FLOOD = "Flood"
START_FAILED = "StartFailed"
REAP_S = 0.8  # a killed process takes longer only in uninterruptible sleep
LAST_WORDS_S = 0.2  # between the end of a process and the end of what it wrote
MAX_PUSHED = 1000  # event messages in the time below
PUSHED_S = 10.0

_CRASHES = frozenset(
    -int(one)
    for one in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
)

T = TypeVar("T")
EventSink = Callable[[tuple[DeviceEvent, ...]], None]

_FITTING: dict[Method, type[Answer]] = {
    "discover": Discovered,
    "sample": Sampled,
    "clear": Cleared,
    "slices": Sliced,
    "ping": Done,
    "close": Done,
}


class WorkerProcess:
    """One child process from start to end. After its first error it is of no more use.

    Events are handed on in the same turn of the loop in which their bytes arrive.
    """

    def __init__(self, vendor: str, on_events: EventSink) -> None:
        self._loop = asyncio.get_running_loop()
        self.vendor = vendor
        self.lost: asyncio.Future[WorkerError] = self._loop.create_future()
        self._on_events = on_events
        self._lines = LineSplitter(vendor)
        self._stderr = StderrLog(vendor)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._method: Method = "ping"
        self._number = 0
        self._waiting: asyncio.Future[Answer] | None = None
        self._pushed = 0
        self._pushed_since_s = self._loop.time()
        self._output_ended = False
        self._exited = asyncio.Event()
        self._detached = asyncio.Event()
        self._child: Child

    @classmethod
    def start(
        cls, spec: WorkerSpec, on_events: EventSink, launched: Launched | None = None
    ) -> WorkerProcess:
        """Start a fresh process, or take one that is, and send it its settings.

        `StartFailed`, `BadConfig` if that cannot be.
        """
        worker = cls(spec.vendor, on_events)
        settings = encode_start(
            spec.vendor,
            spec.settings,
            events=spec.events,
            journal=spec.journal,
            record=spec.record,
            hung=spec.hung,
        )
        try:
            worker._child = Child(launched or launch(spec), worker)
        except (OSError, ValueError) as error:
            raise WorkerError(spec.vendor, START_FAILED, str(error)) from error
        worker._child.write(settings)
        return worker

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._child.pid

    async def opened(self, deadline_s: float) -> None:
        """Wait until the vendor is open; raises why it is not."""
        await self._within(deadline_s, self._opened, "opening")

    async def discover(self, deadline_s: float) -> Inventory:
        """Return the vendor's inventory.

        Raises `WorkerError`: of the vendor's failure while `lost` is not done, of the process's
        when it is.
        """
        return cast(Discovered, await self._ask("discover", deadline_s)).inventory

    async def sample(self, deadline_s: float) -> tuple[DeviceSample, ...]:
        """Return what the devices do now; raises as `discover`."""
        return cast(Sampled, await self._ask("sample", deadline_s)).samples

    async def clear(self, key: str, deadline_s: float) -> bool:
        """Have the vendor forget a device's lasting fault; raises as `discover`."""
        return cast(Cleared, await self._ask("clear", deadline_s, device=key)).cleared

    async def slices(
        self, wishes: tuple[SliceWish, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SlicesKept:
        """Have the vendor cut slices and take others back; raises as `discover`."""
        answer = await self._ask("slices", deadline_s, wishes=wishes, pods=pods)
        return cast(Sliced, answer).kept

    async def _ask(
        self,
        method: Method,
        deadline_s: float,
        *,
        device: str = "",
        wishes: tuple[SliceWish, ...] = (),
        pods: tuple[str, ...] | None = None,
    ) -> Answer:
        if self.lost.done():
            raise self.lost.result()
        self._number += 1
        self._method = method
        self._waiting = self._loop.create_future()
        self._child.write(encode(Ask(self._number, method, device, wishes, pods)))
        try:
            answer = await self._within(deadline_s, self._waiting, method)
        finally:
            self._waiting = None
        if isinstance(answer, Failed):
            raise WorkerError(self.vendor, answer.kind, answer.message)
        return answer

    async def close(self, grace_s: float) -> None:
        """Let the vendor close its library; raises when it did not. The process is then killed."""
        await self._ask("close", grace_s)

    async def kill(self) -> bool:
        """End and reap the process; `False` if it does not die, which leaves it behind."""
        self._fail(WorkerError(self.vendor, CLOSED, "ended by the agent"))
        self._child.kill()
        died = await _in_time(self._exited, REAP_S)
        self._child.close()
        await _in_time(self._detached, LAST_WORDS_S)
        return died

    @property
    def alive(self) -> bool:
        """Say whether the process has not been reaped."""
        return not self._exited.is_set()

    @property
    def crashed(self) -> bool:
        """Return whether the process ended by its own fault, and not because somebody killed it."""
        return self._child.status in _CRASHES

    async def _within(self, deadline_s: float, answer: asyncio.Future[T], what: str) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            error = WorkerError(self.vendor, LATE, f"no answer to {what} within {deadline_s:g} s")
            self._fail(error)
            raise error from None

    # what the process does, told by `Child`

    def heard(self, data: bytes) -> None:
        """Take what the process wrote; the first nonsense ends the conversation."""
        if self.lost.done():
            return
        try:
            for line in self._lines.feed(data):
                self._take(decode_reply(self.vendor, line))
        except WorkerError as error:
            self._fail(error)

    def heard_error(self, data: bytes) -> None:
        """Pass on what the process wrote to standard error."""
        self._stderr.feed(data)

    def silent(self) -> None:
        """Notice that the process says nothing more."""
        self._output_ended = True
        self._ended()

    def exited(self) -> None:
        """Notice the end of the process; it is reaped."""
        self._exited.set()
        self._ended()

    def detached(self) -> None:
        """Notice that the last pipe is closed."""
        self._stderr.end()
        self._detached.set()

    def _ended(self) -> None:
        if self._output_ended and self._exited.is_set():
            self._fail_closed()
        else:  # the other half follows, unless a child of the process holds the pipe
            self._loop.call_later(LAST_WORDS_S, self._fail_closed)

    def _fail_closed(self) -> None:
        how = _how(self._child)
        if self._lines.unfinished:
            how += f", in the middle of a line, after {self._lines.unfinished} bytes of it"
        self._fail(WorkerError(self.vendor, CLOSED, how))

    def _fail(self, error: WorkerError) -> None:
        if self.lost.done():
            return
        self.lost.set_result(error)
        for future in (self._opened, self._waiting):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # seen: nobody need be waiting

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Opened):
            if self._opened.done():
                raise WorkerError(self.vendor, GARBAGE, "opened twice")
            self._opened.set_result(None)
        elif isinstance(reply, Failed) and reply.id == 0:
            if not self._opened.done():
                raise WorkerError(self.vendor, reply.kind, reply.message)
            if reply.kind != NOT_SUPPORTED:
                fields = {"vendor": self.vendor, "reason": reply.kind, "error": reply.message}
                log.warning("worker_events_failed", extra=fields)
        elif isinstance(reply, Happened):
            self._count_pushed()
            self._on_events(reply.events)
        else:
            self._answer(reply)

    def _answer(self, reply: Answer) -> None:
        waiting = self._waiting
        fits = isinstance(reply, Failed | _FITTING[self._method]) and reply.id == self._number
        if waiting is None or waiting.done() or not fits:
            raise WorkerError(self.vendor, GARBAGE, f"unasked answer {type(reply).__name__}")
        waiting.set_result(reply)

    def _count_pushed(self) -> None:
        now_s = self._loop.time()
        if now_s - self._pushed_since_s > PUSHED_S:
            self._pushed, self._pushed_since_s = 0, now_s
        self._pushed += 1
        if self._pushed > MAX_PUSHED:
            detail = f"more than {MAX_PUSHED} event messages in {PUSHED_S:g} s"
            raise WorkerError(self.vendor, FLOOD, detail)


async def _in_time(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _how(child: Child) -> str:
    status = child.status
    if status is None:
        return "it ended, nobody knows how" if child.ended else "it closed its output"
    if status >= 0:
        return f"exit status {status}"
    known = status in [-s for s in signal.Signals]
    return f"ended by {signal.Signals(-status).name if known else f'signal {-status}'}"
