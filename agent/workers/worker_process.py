"""The agent's end of a worker process: start, requests with deadlines, standard error, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from agent.errors import WorkerError
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, SliceReport, SliceRequest
from agent.workers.process import LaunchedProcess, WorkerSpec, launch
from agent.workers.protocol import (
    CLOSED,
    GARBAGE,
    NOT_SUPPORTED,
    ClearReply,
    DiscoverReply,
    EmptyReply,
    ErrorReply,
    EventsMessage,
    LineSplitter,
    MethodReply,
    MethodRequest,
    OpenReply,
    SampleReply,
    SlicesReply,
    WorkerMessage,
    WorkerMethod,
    decode_reply,
    encode_message,
    encode_start,
)

READ_BYTES = 64 * 1024

REAP_POLL_S = 0.1  # how often an end is looked for on kernels without pidfd (before 5.3)


class ProcessListener(Protocol):
    """Who is told of the process. Nothing is called after `detached`."""

    def on_stdout(self, data: bytes) -> None:
        """Take what the process wrote to standard output."""
        ...

    def on_stderr(self, data: bytes) -> None:
        """Take what it wrote to standard error."""
        ...

    def on_stdout_closed(self) -> None:
        """Notice that standard output is closed."""
        ...

    def on_exit(self) -> None:
        """Notice the end of the process; it is reaped, `status` tells how it ended."""
        ...

    def on_detached(self) -> None:
        """Notice that all is over: the process has ended and its pipes are closed."""
        ...


class ChildProcess:
    """Watches one process from being adopted until it has ended and said its last word."""

    def __init__(self, launched: LaunchedProcess, listener: ProcessListener) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self.pid = launched.pid
        self.is_reaped = False  # and reaped
        self.exit_status: int | None = None  # exit status, or minus the signal that ended it
        self._stdin: int | None = launched.stdin
        self._unsent = bytearray()
        self._open = {launched.stdout, launched.stderr}
        self._stdout = launched.stdout
        self._told = False
        for fd in self._open:
            self._loop.add_reader(fd, self._read, fd)
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):  # an old kernel
            self._pidfd = os.pidfd_open(self.pid)
        if self._pidfd is None:
            self._loop.call_soon(self._poll)
        else:
            self._loop.add_reader(self._pidfd, self._reap)

    def write(self, data: bytes) -> None:
        """Send bytes; what the pipe does not take now follows. Lost once the process is gone."""
        if self._stdin is not None:
            self._unsent += data
            self._send()

    def kill(self) -> None:
        """Send SIGKILL, unless the process has been reaped."""
        if not self.is_reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close our ends of the pipes; the process's end is still watched."""
        self._close_stdin()
        for fd in tuple(self._open):
            self._close_output(fd)

    def _send(self) -> None:
        if self._stdin is None:
            return
        try:
            sent = os.write(self._stdin, self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # the process reads no more; its end tells why
            self._close_stdin()
            return
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._stdin, self._send)
        else:
            self._loop.remove_writer(self._stdin)

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._unsent.clear()

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_output(fd)
        elif fd == self._stdout:
            self._listener.on_stdout(data)
        else:
            self._listener.on_stderr(data)

    def _close_output(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            self._loop.remove_reader(fd)
            os.close(fd)
            if fd == self._stdout:
                self._listener.on_stdout_closed()
            self._tell_if_over()

    def _poll(self) -> None:
        self._reap()
        if not self.is_reaped:
            self._loop.call_later(REAP_POLL_S, self._poll)

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else reaped it: how it ended is not known
            self._end()
            return
        if pid:
            self.exit_status = os.waitstatus_to_exitcode(status)
            self._end()

    def _end(self) -> None:
        if self.is_reaped:
            return
        self.is_reaped = True
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._close_stdin()
        self._listener.on_exit()
        self._tell_if_over()

    def _tell_if_over(self) -> None:
        if self.is_reaped and not self._open and not self._told:
            self._told = True
            self._listener.on_detached()


log = logging.getLogger(__name__)

MAX_STDERR_LINES = 100  # logged of one process

MAX_STDERR_LINE = 400  # bytes


class StderrLog:
    """Logs lines, each cut to its bound; beyond so many they are only counted."""

    def __init__(self, vendor: str) -> None:
        self._vendor = vendor
        self._rest = b""
        self._lines = 0

    def feed(self, data: bytes) -> None:
        """Take what was written."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._log(self._rest + part)
            self._rest = b""
        self._rest = (self._rest + rest)[:MAX_STDERR_LINE]

    def end(self) -> None:
        """Log the last line, and how many were not logged."""
        self._log(self._rest)
        if self._lines > MAX_STDERR_LINES:
            unsaid = self._lines - MAX_STDERR_LINES
            log.warning("worker_stderr_cut", extra={"vendor": self._vendor, "lines": unsaid})

    def _log(self, line: bytes) -> None:
        text = line[:MAX_STDERR_LINE].decode("utf-8", "replace").strip()
        if not text:
            return
        self._lines += 1
        if self._lines <= MAX_STDERR_LINES:
            log.warning("worker_stderr", extra={"vendor": self._vendor, "line": text})


LATE = "Late"

FLOOD = "Flood"

START_FAILED = "StartFailed"

REAP_S = 0.8  # a killed process takes longer only in uninterruptible sleep

LAST_WORDS_S = 0.2  # between the end of a process and the end of what it wrote

MAX_EVENT_MESSAGES = 1000  # event messages in the time below

EVENT_MESSAGES_S = 10.0

_CRASH_STATUSES = frozenset(
    -int(one)
    for one in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
)

T = TypeVar("T")

EventCallback = Callable[[tuple[DeviceEvent, ...]], None]

_REPLY_TYPES: dict[WorkerMethod, type[MethodReply]] = {
    "discover": DiscoverReply,
    "sample": SampleReply,
    "clear": ClearReply,
    "slices": SlicesReply,
    "ping": EmptyReply,
    "close": EmptyReply,
}


class WorkerProcess:
    """One child process from start to end. After its first error it is of no more use.

    Events are handed on in the same turn of the loop in which their bytes arrive.
    """

    def __init__(self, vendor: str, on_events: EventCallback) -> None:
        self._loop = asyncio.get_running_loop()
        self.vendor = vendor
        self.failure: asyncio.Future[WorkerError] = self._loop.create_future()
        self._on_events = on_events
        self._lines = LineSplitter(vendor)
        self._stderr = StderrLog(vendor)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._method: WorkerMethod = "ping"
        self._number = 0
        self._waiting: asyncio.Future[MethodReply] | None = None
        self._pushed = 0
        self._pushed_since_s = self._loop.time()
        self._output_ended = False
        self._exited = asyncio.Event()
        self._detached = asyncio.Event()
        self._child: ChildProcess

    @classmethod
    def start(
        cls, spec: WorkerSpec, on_events: EventCallback, launched: LaunchedProcess | None = None
    ) -> WorkerProcess:
        """Start a fresh process, or take one that is, and send it its settings.

        `StartFailed`, `BadConfig` if that cannot be.
        """
        worker = cls(spec.vendor, on_events)
        settings = encode_start(
            spec.vendor,
            spec.settings,
            spec.context,
            events=spec.events,
            journal=spec.journal,
            record=spec.record,
            hung=spec.hung,
        )
        try:
            worker._child = ChildProcess(launched or launch(spec), worker)
        except (OSError, ValueError) as error:
            raise WorkerError(spec.vendor, START_FAILED, str(error)) from error
        worker._child.write(settings)
        return worker

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._child.pid

    async def wait_open(self, deadline_s: float) -> None:
        """Wait until the vendor is open; raises why it is not."""
        await self._within(deadline_s, self._opened, "opening")

    async def discover(self, deadline_s: float) -> Inventory:
        """Return the vendor's inventory.

        Raises `WorkerError`: of the vendor's failure while `lost` is not done, of the process's
        when it is.
        """
        return cast(DiscoverReply, await self._ask("discover", deadline_s)).inventory

    async def sample(self, deadline_s: float) -> tuple[DeviceSample, ...]:
        """Return what the devices do now; raises as `discover`."""
        return cast(SampleReply, await self._ask("sample", deadline_s)).samples

    async def clear(self, key: str, deadline_s: float) -> bool:
        """Have the vendor forget a device's lasting fault; raises as `discover`."""
        return cast(ClearReply, await self._ask("clear", deadline_s, device=key)).cleared

    async def slices(
        self, wishes: tuple[SliceRequest, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SliceReport:
        """Have the vendor cut slices and take others back; raises as `discover`."""
        answer = await self._ask("slices", deadline_s, wishes=wishes, pods=pods)
        return cast(SlicesReply, answer).kept

    async def _ask(
        self,
        method: WorkerMethod,
        deadline_s: float,
        *,
        device: str = "",
        wishes: tuple[SliceRequest, ...] = (),
        pods: tuple[str, ...] | None = None,
    ) -> MethodReply:
        if self.failure.done():
            raise self.failure.result()
        self._number += 1
        self._method = method
        self._waiting = self._loop.create_future()
        self._child.write(encode_message(MethodRequest(self._number, method, device, wishes, pods)))
        try:
            answer = await self._within(deadline_s, self._waiting, method)
        finally:
            self._waiting = None
        if isinstance(answer, ErrorReply):
            raise WorkerError(self.vendor, answer.kind, answer.message)
        return answer

    async def close(self, grace_s: float) -> None:
        """Let the vendor close its library; raises when it did not. The process is then killed."""
        await self._ask("close", grace_s)

    async def kill(self) -> bool:
        """End and reap the process; `False` if it does not die, which leaves it behind."""
        self._fail(WorkerError(self.vendor, CLOSED, "ended by the agent"))
        self._child.kill()
        died = await _wait_for(self._exited, REAP_S)
        self._child.close()
        await _wait_for(self._detached, LAST_WORDS_S)
        return died

    @property
    def is_alive(self) -> bool:
        """Say whether the process has not been reaped."""
        return not self._exited.is_set()

    @property
    def has_crashed(self) -> bool:
        """Return whether the process ended by its own fault, and not because somebody killed it."""
        return self._child.exit_status in _CRASH_STATUSES

    async def _within(self, deadline_s: float, answer: asyncio.Future[T], what: str) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            error = WorkerError(self.vendor, LATE, f"no answer to {what} within {deadline_s:g} s")
            self._fail(error)
            raise error from None

    # what the process does, told by `Child`

    def on_stdout(self, data: bytes) -> None:
        """Take what the process wrote; the first nonsense ends the conversation."""
        if self.failure.done():
            return
        try:
            for line in self._lines.feed(data):
                self._take(decode_reply(self.vendor, line))
        except WorkerError as error:
            self._fail(error)

    def on_stderr(self, data: bytes) -> None:
        """Pass on what the process wrote to standard error."""
        self._stderr.feed(data)

    def on_stdout_closed(self) -> None:
        """Notice that the process says nothing more."""
        self._output_ended = True
        self._ended()

    def on_exit(self) -> None:
        """Notice the end of the process; it is reaped."""
        self._exited.set()
        self._ended()

    def on_detached(self) -> None:
        """Notice that the last pipe is closed."""
        self._stderr.end()
        self._detached.set()

    def _ended(self) -> None:
        if self._output_ended and self._exited.is_set():
            self._fail_closed()
        else:  # the other half follows, unless a child of the process holds the pipe
            self._loop.call_later(LAST_WORDS_S, self._fail_closed)

    def _fail_closed(self) -> None:
        how = _exit_description(self._child)
        if self._lines.pending_bytes:
            how += f", in the middle of a line, after {self._lines.pending_bytes} bytes of it"
        self._fail(WorkerError(self.vendor, CLOSED, how))

    def _fail(self, error: WorkerError) -> None:
        if self.failure.done():
            return
        self.failure.set_result(error)
        for future in (self._opened, self._waiting):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # seen: nobody need be waiting

    def _take(self, reply: WorkerMessage) -> None:
        if isinstance(reply, OpenReply):
            if self._opened.done():
                raise WorkerError(self.vendor, GARBAGE, "opened twice")
            self._opened.set_result(None)
        elif isinstance(reply, ErrorReply) and reply.id == 0:
            if not self._opened.done():
                raise WorkerError(self.vendor, reply.kind, reply.message)
            if reply.kind != NOT_SUPPORTED:
                fields = {"vendor": self.vendor, "reason": reply.kind, "error": reply.message}
                log.warning("worker_events_failed", extra=fields)
        elif isinstance(reply, EventsMessage):
            self._count_pushed()
            self._on_events(reply.events)
        else:
            self._answer(reply)

    def _answer(self, reply: MethodReply) -> None:
        waiting = self._waiting
        fits = (
            isinstance(reply, ErrorReply | _REPLY_TYPES[self._method]) and reply.id == self._number
        )
        if waiting is None or waiting.done() or not fits:
            raise WorkerError(self.vendor, GARBAGE, f"unasked answer {type(reply).__name__}")
        waiting.set_result(reply)

    def _count_pushed(self) -> None:
        now_s = self._loop.time()
        if now_s - self._pushed_since_s > EVENT_MESSAGES_S:
            self._pushed, self._pushed_since_s = 0, now_s
        self._pushed += 1
        if self._pushed > MAX_EVENT_MESSAGES:
            detail = f"more than {MAX_EVENT_MESSAGES} event messages in {EVENT_MESSAGES_S:g} s"
            raise WorkerError(self.vendor, FLOOD, detail)


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _exit_description(child: ChildProcess) -> str:
    status = child.exit_status
    if status is None:
        return "it ended, nobody knows how" if child.is_reaped else "it closed its output"
    if status >= 0:
        return f"exit status {status}"
    known = status in [-s for s in signal.Signals]
    return f"ended by {signal.Signals(-status).name if known else f'signal {-status}'}"
