"""A vendor's worker process: opens one session and answers the agent's requests, one at a time.

    python -m agent.workers.worker --vendor NAME [--host SPEC] [--tape FILE] [--parent PID]

Settings arrive as the first message on standard input; answers leave on the original standard
output. Imports are few because every worker on every node pays for them.
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
from agent.snapshot.vendor import (
    SessionContext,
    VendorDescription,
    VendorSession,
    VendorSettings,
)
from agent.workers.abilities import apply_slices, clear_fault, set_call_journal
from agent.workers.call_journal import CallJournal
from agent.workers.load import load_vendor
from agent.workers.protocol import (
    CLOSED,
    GARBAGE,
    MAX_LINE,
    NOT_SUPPORTED,
    TOO_LONG,
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
    drop_non_finite,
    encode_message,
    error_kind,
)
from agent.workers.tape import MAX_TAPE, TapeSession, parse_tape

EVENTS_WAIT_S = 0.25  # one turn of waiting; an orderly end may take this long

EVENTS_MIN_TURN_S = 0.1  # a vendor that returns at once without events must not spin

EVENTS_RETRY_S = 30.0

EVENTS_STUCK_S = 60.0  # of a turn that should have ended long ago; then it is told, once

EVENTS_STUCK = "EventsStuck"

MAX_MESSAGE = 500  # characters of an error's text


class AgentPipe:
    """The way to the agent, shared by two threads. When nobody reads it, the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, number: int, make: Callable[[], WorkerMessage | None]) -> WorkerMessage | None:
        """Send what `make` returns; whatever it raises is sent as a `Failed` of that number."""
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
        except Exception as error:  # noqa: BLE001 - the faults of a vendor's library end here
            traceback.print_exc()
            reply = ErrorReply(number, "UnexpectedError", repr(error))
        if isinstance(reply, ErrorReply):
            reply = ErrorReply(number, reply.kind, _encodable(reply.message))
            line = encode_message(reply)
        self._write(line)
        return reply

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        with self._lock:
            while left:
                try:
                    left = left[os.write(self._fd, left) :]
                except BrokenPipeError:
                    os._exit(0)  # the agent is gone, and with it the reason to be


class SessionServer:
    """Answers serially; events have a thread of their own."""

    def __init__(
        self, pipe: AgentPipe, session: VendorSession, journal: CallJournal | None = None
    ) -> None:
        self._pipe = pipe
        self._session = session
        self._journal = journal or CallJournal()
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="events", daemon=True)
        self._turn_s: float | None = None  # monotonic, since when the library is asked for events
        self._told_s: float | None = None  # the turn that was told to be stuck

    def run(self, requests: Iterator[AgentMessage], *, events: bool) -> None:
        """Answer until `close` or the end of the requests."""
        if events:
            self._watcher.start()
            self._pipe.send(0, self._happened_before)
        for ask in requests:
            if not isinstance(ask, MethodRequest):
                raise WorkerError("", GARBAGE, "a second start")
            self._tell_if_stuck()
            self._pipe.send(ask.id, partial(self._answer, ask))
            if ask.method == "close":
                return

    def _answer(self, ask: MethodRequest) -> WorkerMessage:
        if ask.method == "discover":
            return DiscoverReply(ask.id, self._journal.annotate(self._session.discover()))
        if ask.method == "sample":
            return SampleReply(ask.id, drop_non_finite(self._session.sample()))
        if ask.method == "clear":
            return ClearReply(ask.id, clear_fault(self._session, ask.device))
        if ask.method == "slices":
            return SlicesReply(ask.id, apply_slices(self._session, ask.wishes, ask.pods))
        if ask.method == "close":
            self._close()
        return EmptyReply(ask.id)

    def _close(self) -> None:
        self._stop.set()
        if self._watcher.is_alive():
            self._watcher.join(EVENTS_WAIT_S + EVENTS_MIN_TURN_S)
        # a library that still waits for events is not closed under that call: the process ends
        if not self._watcher.is_alive():
            self._session.close()

    def _tell_if_stuck(self) -> None:
        """Say that no event will be heard; questions are answered, which is worth more."""
        turn_s = self._turn_s
        if turn_s is None or turn_s == self._told_s:
            return
        if time.monotonic() - turn_s >= EVENTS_STUCK_S:
            self._told_s = turn_s
            detail = f"a wait for events has not returned for {EVENTS_STUCK_S:g} s; none is heard"
            self._pipe.send(0, lambda: ErrorReply(0, EVENTS_STUCK, detail))

    def _happened_before(self) -> WorkerMessage | None:
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
    """What the command line says."""

    vendor: str
    host: str | None = None  # a recorded host; None: this machine
    tape: str | None = None  # play these answers instead of the vendor's
    parent: int = 0  # the process to die with


def parse_arguments(argv: Sequence[str]) -> WorkerArguments:
    """Read `--name value` pairs; only the agent writes them, a mistake is a bug of ours."""
    pairs = {
        name.removeprefix("--"): value for name, value in zip(argv[::2], argv[1::2], strict=True)
    }
    return msgspec.convert(pairs, WorkerArguments, strict=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until told to close, or until the agent is gone; end without a vendor's exit hooks."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    die_with(arguments.parent)
    questions, answers = take_pipes()
    try:
        serve(arguments, questions, AgentPipe(answers))
    except WorkerError as error:  # the agent talks nonsense, or is gone
        print(error, file=sys.stderr)  # noqa: T201 - standard error is this process's log
    sys.stderr.flush()
    # a hung thread of a vendor's library, or its exit hooks, must not keep the process
    os._exit(0)


def serve(arguments: WorkerArguments, questions: int, pipe: AgentPipe) -> None:
    """Open the session that the arguments name and answer on `pipe`."""
    requests = read_requests(arguments.vendor, questions)
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
    journal = CallJournal(start.journal, record=start.record, hung=start.hung)
    opened: list[VendorSession] = []

    def open_first() -> WorkerMessage:
        session = open_vendor()
        set_call_journal(session, journal)
        opened.append(session)
        return OpenReply()

    reply = pipe.send(0, open_first)
    gc.freeze()
    gc.enable()
    if not isinstance(reply, ErrorReply):
        SessionServer(pipe, opened[0], journal).run(requests, events=start.events)


def open_vendor_session(arguments: WorkerArguments, start: StartMessage) -> VendorSession:
    """Open the vendor; a recorded host's tape stands for it.

    On a recorded host without one, the vendor must not load its library, which would describe
    this machine. The folder for lasting state is of this machine, too.
    """
    vendor, context = arguments.vendor, start.context
    host: HostFiles = LiveHostFiles()
    tape = _read_tape(arguments.tape) if arguments.tape is not None else None
    if tape is None and arguments.host is not None:
        recorded = open_host(arguments.host)
        host, found = recorded.files, recorded.tape(vendor)
        tape = found if found is None or isinstance(found, bytes) else _read_tape(str(found))
        if recorded.spec is not None:
            context = SessionContext(is_replay=True)
    if tape is not None:
        return TapeSession(parse_tape(tape, vendor))
    loaded = load_vendor(vendor)
    return loaded.open(host, decode_vendor_settings(start, loaded.description), context)


def decode_vendor_settings(start: StartMessage, vendor: VendorDescription) -> VendorSettings:
    """Return the settings that the agent sent; raise `BadConfig`."""
    try:
        return msgspec.json.decode(start.settings, type=vendor.settings)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"discovery.{vendor.name}: {error}") from error


def read_requests(vendor: str, fd: int) -> Iterator[AgentMessage]:
    """Yield what the agent asks, until it closes its end."""
    splitter = LineSplitter(vendor)
    while data := os.read(fd, READ_BYTES):
        for line in splitter.feed(data):
            yield decode_request(vendor, line)


def take_pipes() -> tuple[int, int]:
    """Keep the pipes for ourselves: what a library reads or prints must not reach the agent."""
    questions, answers = os.dup(0), os.dup(1)  # not inherited by children
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return questions, answers


def die_with(parent: int) -> None:
    """Have the kernel end this process when the thread that started it ends, whatever it does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if parent and os.getppid() != parent:  # it died before we asked
        os._exit(0)


def _read_tape(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - no worker of a real host needs pathlib
            return file.read(MAX_TAPE + 1)
    except OSError as error:
        raise HostFileError(path, error.errno or 0) from error


if __name__ == "__main__":
    main()
