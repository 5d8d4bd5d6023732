"""A vendor's worker process: opens one session and answers the agent's requests, one at a time.

    python -m agent.workers.worker --vendor NAME [--host SPEC] [--tape FILE] [--parent PID]

Settings arrive as the first message on standard input; answers go to the original standard output.
Imports are few because every worker on every node pays for them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from agent.errors import NO_PERMISSION, AgentError, BadConfig, HostFileError, WorkerError
from agent.host.files import LiveHostFiles
from agent.recording.host_source import open_host
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import VendorSettings
from agent.snapshot.vendor import SessionContext, VendorDescription, VendorSession
from agent.workers.abilities import apply_slices, clear_fault, set_call_journal
from agent.workers.call_journal import CallJournal
from agent.workers.load import load_vendor
from agent.workers.protocol import (
    CLOSED,
    GARBAGE,
    MAX_LINE,
    NOT_SUPPORTED,
    TOO_LONG,
    UNEXPECTED,
    AgentMessage,
    ClearReply,
    DiscoverReply,
    EmptyReply,
    ErrorReply,
    EventsMessage,
    LineSplitter,
    MethodRequest,
    OpenReply,
    SampleReply,
    SlicesReply,
    StartMessage,
    WorkerMessage,
    decode_request,
    encode_message,
    error_kind,
    reject_non_finite,
)
from agent.workers.tape import MAX_TAPE, TapeSession, parse_tape

# one wait: each wakes the processor, and an orderly end may take this long
EVENTS_WAIT_S = 0.5
EVENTS_MIN_TURN_S = 0.1  # a vendor that returns at once without events must not spin
EVENTS_RETRY_S = 30.0
EVENTS_STUCK_S = 60.0  # a wait that takes so much longer than it should is reported, once
EVENTS_STUCK = "EventsStuck"
MAX_MESSAGE = 500  # characters of an error's text


class AgentPipe:
    """The pipe to the agent, shared by two threads.

    If its other end is closed, the process ends.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, number: int, make: Callable[[], WorkerMessage | None]) -> WorkerMessage | None:
        """Send what `make` returns; an exception is sent as an `ErrorReply` with that number."""
        line = b""
        try:
            reply = make()
            if reply is not None:
                line = encode_message(reply)
            if len(line) > MAX_LINE:
                raise WorkerError("", TOO_LONG, f"an answer of {len(line)} bytes")
        except WorkerError as error:
            reply = ErrorReply(number, error.reason, str(error))
        except AgentError as error:
            reply = ErrorReply(number, error_kind(error), str(error))
        except PermissionError as error:
            reply = ErrorReply(number, NO_PERMISSION, str(error))
        except Exception as error:  # noqa: BLE001 - errors of a vendor's library end here
            traceback.print_exc()
            reply = ErrorReply(number, UNEXPECTED, repr(error))
        if isinstance(reply, ErrorReply):
            reply = ErrorReply(number, reply.kind, _encodable(reply.message))
            line = encode_message(reply)
        self._write(line)
        return reply

    def _write(self, line: bytes) -> None:
        unwritten = memoryview(line)
        with self._lock:
            while unwritten:
                try:
                    unwritten = unwritten[os.write(self._fd, unwritten) :]
                except BrokenPipeError:
                    os._exit(0)  # the agent has ended


class SessionServer:
    """Answers requests one at a time; events have a thread of their own."""

    def __init__(
        self, pipe: AgentPipe, session: VendorSession, journal: CallJournal | None = None
    ) -> None:
        self._pipe = pipe
        self._session = session
        self._journal = journal or CallJournal()
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="events", daemon=True)
        self._turn_s: float | None = None  # monotonic, since when the library waits for events
        self._reported_turn_s: float | None = None  # the wait that was reported as stuck

    def run(self, requests: Iterator[AgentMessage], *, events: bool) -> None:
        """Answer until `close` or the end of the requests."""
        if events:
            self._watcher.start()
            self._pipe.send(0, self._hang_event)
        for request in requests:
            if not isinstance(request, MethodRequest):
                raise WorkerError("", GARBAGE, "a second start")
            self._report_if_stuck()
            self._pipe.send(request.id, partial(self._answer, request))
            if request.method == "close":
                return

    def _answer(self, request: MethodRequest) -> WorkerMessage:
        if request.method == "discover":
            return DiscoverReply(request.id, self._journal.annotate(self._session.discover()))
        if request.method == "sample":
            return SampleReply(request.id, reject_non_finite(self._session.sample()))
        if request.method == "clear":
            return ClearReply(request.id, clear_fault(self._session, request.device))
        if request.method == "slices":
            return SlicesReply(
                request.id, apply_slices(self._session, request.slice_requests, request.pods)
            )
        if request.method == "close":
            self._close()
        return EmptyReply(request.id)

    def _close(self) -> None:
        self._stop.set()
        if self._watcher.is_alive():
            self._watcher.join(EVENTS_WAIT_S + EVENTS_MIN_TURN_S)
        # while the library waits for events it must not be closed: the process ends instead
        if not self._watcher.is_alive():
            self._session.close()

    def _report_if_stuck(self) -> None:
        """Report that no more events will arrive; requests are still answered."""
        turn_s = self._turn_s
        if turn_s is None or turn_s == self._reported_turn_s:
            return
        if time.monotonic() - turn_s >= EVENTS_STUCK_S:
            self._reported_turn_s = turn_s
            detail = f"a wait for events has not returned for {EVENTS_STUCK_S:g} s; none is heard"
            self._pipe.send(0, lambda: ErrorReply(0, EVENTS_STUCK, detail))

    def _hang_event(self) -> WorkerMessage | None:
        events = self._journal.events()
        return EventsMessage(events) if events else None

    def _events(self) -> WorkerMessage | None:
        events = self._session.events(EVENTS_WAIT_S)
        return EventsMessage(events) if events else None

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._turn_s = began_s = time.monotonic()
            reply = self._pipe.send(0, self._events)
            self._turn_s = None
            if isinstance(reply, ErrorReply) and reply.kind == NOT_SUPPORTED:
                return
            if isinstance(reply, ErrorReply):
                self._stop.wait(EVENTS_RETRY_S)
            elif reply is None:
                self._stop.wait(max(0.0, EVENTS_MIN_TURN_S - (time.monotonic() - began_s)))


def _encodable(message: str) -> str:
    return message[:MAX_MESSAGE].encode("utf-8", "replace").decode()


PR_SET_PDEATHSIG = 1

READ_BYTES = 64 * 1024


class WorkerArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The command line."""

    vendor: str
    host: str | None = None  # a recorded host; None: this machine
    tape: str | None = None  # play these answers instead of the vendor's
    parent: int = 0  # the process whose end also ends this one


def parse_arguments(argv: Sequence[str]) -> WorkerArguments:
    """Parse `--name value` pairs; only the agent writes them, so an error is a bug."""
    pairs = {
        name.removeprefix("--"): value for name, value in zip(argv[::2], argv[1::2], strict=True)
    }
    return msgspec.convert(pairs, WorkerArguments, strict=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until `close` or until the agent has ended; end without a vendor's exit hooks."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    end_with_parent(arguments.parent)
    close_inherited_files()
    requests_fd, answers_fd = detach_pipes()
    try:
        serve(arguments, requests_fd, AgentPipe(answers_fd))
    except WorkerError as error:  # the agent sent an invalid message, or has ended
        print(error, file=sys.stderr)  # noqa: T201 - standard error is this process's log
    sys.stderr.flush()
    # a hung thread of a vendor's library, or its exit hooks, must not keep the process
    os._exit(0)


def serve(arguments: WorkerArguments, requests_fd: int, pipe: AgentPipe) -> None:
    """Open the session that the arguments name and answer on `pipe`."""
    requests = read_requests(arguments.vendor, requests_fd)
    start = next(requests, None)
    if not isinstance(start, StartMessage):
        raise WorkerError(arguments.vendor, GARBAGE if start else CLOSED, "no start came first")
    serve_session(requests, pipe, start, lambda: open_vendor_session(arguments, start))


def serve_session(
    requests: Iterator[AgentMessage],
    pipe: AgentPipe,
    start: StartMessage,
    open_vendor: Callable[[], VendorSession],
) -> None:
    """Open a session and serve it, with the journal of calls that the agent named."""
    journal = CallJournal(start.journal, record=start.record, hung_call=start.hung_call)
    sessions: list[VendorSession] = []

    def open_session() -> WorkerMessage:
        session = open_vendor()
        set_call_journal(session, journal)
        sessions.append(session)
        return OpenReply()

    reply = pipe.send(0, open_session)
    gc.freeze()
    gc.enable()
    if not isinstance(reply, ErrorReply):
        SessionServer(pipe, sessions[0], journal).run(requests, events=start.events)


def open_vendor_session(arguments: WorkerArguments, start: StartMessage) -> VendorSession:
    """Open the vendor, or the tape of a recorded host.

    On a recorded host without a tape the vendor must not load its library, which would describe
    this machine. The state folder also belongs to this machine.
    """
    vendor, context = arguments.vendor, start.context
    host: HostFiles = LiveHostFiles()
    tape = _read_tape(arguments.tape) if arguments.tape is not None else None
    if tape is None and arguments.host is not None:
        recorded = open_host(arguments.host)
        host, recorded_tape = recorded.files, recorded.tape(vendor)
        tape = (
            recorded_tape
            if recorded_tape is None or isinstance(recorded_tape, bytes)
            else _read_tape(str(recorded_tape))
        )
        if recorded.spec is not None:
            context = SessionContext(is_replay=True)
    if tape is not None:
        return TapeSession(parse_tape(tape, vendor))
    vendor_module = load_vendor(vendor)
    return vendor_module.open(
        host, decode_vendor_settings(start, vendor_module.description), context
    )


def decode_vendor_settings(start: StartMessage, vendor: VendorDescription) -> VendorSettings:
    """Return the settings that the agent sent; raises `BadConfig`."""
    try:
        return msgspec.json.decode(start.settings, type=vendor.settings)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"discovery.{vendor.name}: {error}") from error


def read_requests(vendor: str, fd: int) -> Iterator[AgentMessage]:
    """Yield the agent's requests until it closes its end."""
    splitter = LineSplitter(vendor)
    while data := os.read(fd, READ_BYTES):
        for line in splitter.feed(data):
            yield decode_request(vendor, line)


def detach_pipes() -> tuple[int, int]:
    """Move the pipes to other descriptors.

    A library that reads or prints must not reach the agent.
    """
    requests_fd, answers_fd = os.dup(0), os.dup(1)  # not inherited by children
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.close(null_fd)
    os.dup2(2, 1)
    return requests_fd, answers_fd


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if parent and os.getppid() != parent:  # it ended before the call
        os._exit(0)


def close_inherited_files() -> None:
    """Close all files but the pipes: a vendor's library must not have files of the agent."""
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    os.closerange(3, highest + 1)


def _read_tape(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a worker imports no pathlib
            return file.read(MAX_TAPE + 1)
    except OSError as error:
        raise HostFileError(path, error.errno or 0) from error


if __name__ == "__main__":
    main()
