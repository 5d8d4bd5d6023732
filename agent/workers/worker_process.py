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

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024

REAP_POLL_S = 0.1  # polling interval for the end on kernels without pidfd (before 5.3)


class ProcessListener(Protocol):
    """Receives what a process does. Nothing is called after `on_detached`."""

    def on_stdout(self, data: bytes) -> None:
        """Handle bytes from standard output."""
        ...

    def on_stderr(self, data: bytes) -> None:
        """Handle bytes from standard error."""
        ...

    def on_stdout_closed(self) -> None:
        """Handle the end of standard output."""
        ...

    def on_exit(self) -> None:
        """Handle the end of the process; it is reaped, `exit_status` says how it ended."""
        ...

    def on_detached(self) -> None:
        """Handle the complete end: the process has ended and its pipes are closed."""
        ...


class ChildProcess:
    """Watches one process until it has ended and its output is read."""

    def __init__(self, launched: LaunchedProcess, listener: ProcessListener) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self.pid = launched.pid
        self.is_reaped = False  # it has ended
        self.exit_status: int | None = None  # exit status, or minus the signal that ended it
        self._stdin: int | None = launched.stdin
        self._unsent = bytearray()
        self._open = {launched.stdout, launched.stderr}
        self._stdout = launched.stdout
        self._is_detached = False
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
        """Send bytes, later if the pipe is full. They are lost once the process has ended."""
        if self._stdin is not None:
            self._unsent += data
            self._send()

    def kill(self) -> None:
        """Send SIGKILL, unless the process has been reaped."""
        if not self.is_reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the agent's ends of the pipes; the end of the process is still watched."""
        self._close_stdin()
        for fd in tuple(self._open):
            self._close_output(fd)

    def _send(self) -> None:
        if self._stdin is None:
            return
        try:
            sent_bytes = os.write(self._stdin, self._unsent)
        except BlockingIOError:
            sent_bytes = 0
        except OSError:  # the process does not read any more; its end has the reason
            self._close_stdin()
            return
        del self._unsent[:sent_bytes]
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
            self._detach_if_ended()

    def _poll(self) -> None:
        self._reap()
        if not self.is_reaped:
            self._loop.call_later(REAP_POLL_S, self._poll)

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # another part of this program reaped it: the status is unknown
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
        self._detach_if_ended()

    def _detach_if_ended(self) -> None:
        if self.is_reaped and not self._open and not self._is_detached:
            self._is_detached = True
            self._listener.on_detached()


MAX_STDERR_LINES = 100  # logged lines of one process

MAX_STDERR_LINE = 400  # bytes


class StderrLog:
    """Logs lines, each cut to a limit; lines beyond a limit are only counted."""

    def __init__(self, vendor: str) -> None:
        self._vendor = vendor
        self._remainder = b""
        self._lines = 0

    def feed(self, data: bytes) -> None:
        """Log the lines that end in `data`."""
        *complete_parts, remainder = data.split(b"\n")
        for part in complete_parts:
            self._log(self._remainder + part)
            self._remainder = b""
        self._remainder = (self._remainder + remainder)[:MAX_STDERR_LINE]

    def end(self) -> None:
        """Log the last line, and how many lines were not logged."""
        self._log(self._remainder)
        if self._lines > MAX_STDERR_LINES:
            unlogged_count = self._lines - MAX_STDERR_LINES
            log.warning(
                "worker_stderr_cut", extra={"vendor": self._vendor, "lines": unlogged_count}
            )

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
OUTPUT_END_S = 0.2  # between the end of a process and the end of its output
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
    """One child process from start to end. After its first error it cannot be used any more.

    Events are passed on in the same turn of the loop in which their bytes arrive.
    """

    def __init__(self, vendor: str, on_events: EventCallback) -> None:
        self._loop = asyncio.get_running_loop()
        self.vendor = vendor
        self.failure: asyncio.Future[WorkerError] = self._loop.create_future()
        self._on_events = on_events
        self._lines = LineSplitter(vendor)
        self._stderr = StderrLog(vendor)
        self._open_result: asyncio.Future[None] = self._loop.create_future()
        self._method: WorkerMethod = "ping"
        self._number = 0
        self._pending_answer: asyncio.Future[MethodReply] | None = None
        self._event_count = 0
        self._event_window_s = self._loop.time()
        self._has_output_ended = False
        self._exited = asyncio.Event()
        self._detached = asyncio.Event()
        self._child: ChildProcess

    @classmethod
    def start(
        cls, spec: WorkerSpec, on_events: EventCallback, launched: LaunchedProcess | None = None
    ) -> WorkerProcess:
        """Start a fresh process, or adopt a launched one, and send its settings.

        Raises `WorkerError` with the reason `StartFailed` or `BadConfig`.
        """
        worker = cls(spec.vendor, on_events)
        settings = encode_start(
            spec.vendor,
            spec.settings,
            spec.context,
            events=spec.events,
            journal=spec.journal,
            record=spec.record,
            hung_call=spec.hung_call,
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
        """Wait until the vendor is open; raises `WorkerError` if it cannot be opened."""
        await self._await_answer(deadline_s, self._open_result, "opening")

    async def discover(self, deadline_s: float) -> Inventory:
        """Return the vendor's inventory.

        Raises `WorkerError`: of the vendor's failure while `failure` is not done, of the process's
        when it is.
        """
        return cast(DiscoverReply, await self._call("discover", deadline_s)).inventory

    async def sample(self, deadline_s: float) -> tuple[DeviceSample, ...]:
        """Return the current samples of the devices; raises as `discover`."""
        return cast(SampleReply, await self._call("sample", deadline_s)).samples

    async def clear(self, key: str, deadline_s: float) -> bool:
        """Clear a device's lasting fault; raises as `discover`."""
        return cast(ClearReply, await self._call("clear", deadline_s, device=key)).cleared

    async def slices(
        self, requests: tuple[SliceRequest, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SliceReport:
        """Create slices and delete others; raises as `discover`."""
        answer = await self._call("slices", deadline_s, requests=requests, pods=pods)
        return cast(SlicesReply, answer).report

    async def _call(
        self,
        method: WorkerMethod,
        deadline_s: float,
        *,
        device: str = "",
        requests: tuple[SliceRequest, ...] = (),
        pods: tuple[str, ...] | None = None,
    ) -> MethodReply:
        if self.failure.done():
            raise self.failure.result()
        self._number += 1
        self._method = method
        self._pending_answer = self._loop.create_future()
        self._child.write(
            encode_message(MethodRequest(self._number, method, device, requests, pods))
        )
        try:
            answer = await self._await_answer(deadline_s, self._pending_answer, method)
        finally:
            self._pending_answer = None
        if isinstance(answer, ErrorReply):
            raise WorkerError(self.vendor, answer.kind, answer.message)
        return answer

    async def close(self, grace_s: float) -> None:
        """Close the vendor's library.

        Raises `WorkerError` on failure, and the process is then killed.
        """
        await self._call("close", grace_s)

    async def kill(self) -> bool:
        """End and reap the process; return `False` if it does not die and is abandoned."""
        self._fail(WorkerError(self.vendor, CLOSED, "ended by the agent"))
        self._child.kill()
        has_ended = await _wait_for(self._exited, REAP_S)
        self._child.close()
        await _wait_for(self._detached, OUTPUT_END_S)
        return has_ended

    @property
    def is_alive(self) -> bool:
        """Return whether the process has not been reaped."""
        return not self._exited.is_set()

    @property
    def has_crashed(self) -> bool:
        """Return whether the process crashed, and was not killed by another process."""
        return self._child.exit_status in _CRASH_STATUSES

    async def _await_answer(self, deadline_s: float, answer: asyncio.Future[T], method: str) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            error = WorkerError(self.vendor, LATE, f"no answer to {method} within {deadline_s:g} s")
            self._fail(error)
            raise error from None

    # calls of `ChildProcess`

    def on_stdout(self, data: bytes) -> None:
        """Decode the output; the first invalid line ends the worker."""
        if self.failure.done():
            return
        try:
            for line in self._lines.feed(data):
                self._handle_message(decode_reply(self.vendor, line))
        except WorkerError as error:
            self._fail(error)

    def on_stderr(self, data: bytes) -> None:
        """Log what the process wrote to standard error."""
        self._stderr.feed(data)

    def on_stdout_closed(self) -> None:
        """Handle the end of the output."""
        self._has_output_ended = True
        self._handle_end()

    def on_exit(self) -> None:
        """Handle the end of the process; it is reaped."""
        self._exited.set()
        self._handle_end()

    def on_detached(self) -> None:
        """Handle the end of the last pipe."""
        self._stderr.end()
        self._detached.set()

    def _handle_end(self) -> None:
        if self._has_output_ended and self._exited.is_set():
            self._fail_closed()
        else:  # the other half follows, unless a child of the process holds the pipe
            self._loop.call_later(OUTPUT_END_S, self._fail_closed)

    def _fail_closed(self) -> None:
        reason = _exit_description(self._child)
        if self._lines.pending_bytes:
            reason += f", in the middle of a line, after {self._lines.pending_bytes} bytes of it"
        self._fail(WorkerError(self.vendor, CLOSED, reason))

    def _fail(self, error: WorkerError) -> None:
        if self.failure.done():
            return
        self.failure.set_result(error)
        for future in (self._open_result, self._pending_answer):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # mark it as retrieved: possibly nothing awaits it

    def _handle_message(self, reply: WorkerMessage) -> None:
        if isinstance(reply, OpenReply):
            if self._open_result.done():
                raise WorkerError(self.vendor, GARBAGE, "opened twice")
            self._open_result.set_result(None)
        elif isinstance(reply, ErrorReply) and reply.id == 0:
            if not self._open_result.done():
                raise WorkerError(self.vendor, reply.kind, reply.message)
            if reply.kind != NOT_SUPPORTED:
                fields = {"vendor": self.vendor, "reason": reply.kind, "error": reply.message}
                log.warning("worker_events_failed", extra=fields)
        elif isinstance(reply, EventsMessage):
            self._count_event_message()
            self._on_events(reply.events)
        else:
            self._answer(reply)

    def _answer(self, reply: MethodReply) -> None:
        pending = self._pending_answer
        matches = (
            isinstance(reply, ErrorReply | _REPLY_TYPES[self._method]) and reply.id == self._number
        )
        if pending is None or pending.done() or not matches:
            raise WorkerError(self.vendor, GARBAGE, f"unasked answer {type(reply).__name__}")
        pending.set_result(reply)

    def _count_event_message(self) -> None:
        now_s = self._loop.time()
        if now_s - self._event_window_s > EVENT_MESSAGES_S:
            self._event_count, self._event_window_s = 0, now_s
        self._event_count += 1
        if self._event_count > MAX_EVENT_MESSAGES:
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
    is_named = status in [-s for s in signal.Signals]
    return f"ended by {signal.Signals(-status).name if is_named else f'signal {-status}'}"
