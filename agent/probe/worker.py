"""A vendor's worker process: loads one vendor and answers the agent, one question at a time.

    python -m agent.probe.worker --vendor NAME [--host SPEC] [--tape FILE] [--parent PID]

Settings come as the first message on standard input, answers leave on what was standard output.
Imports are few on purpose: they are what every worker on every node pays for.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

from agent.errors import HostFileError, WorkerError
from agent.host.files import HostFiles, LiveRoot
from agent.probe.base import Settings, VendorSession, journal_calls_of, replayed
from agent.probe.call_journal import CallJournal
from agent.probe.service import Pipe, Service
from agent.probe.tape import MAX_TAPE, TapeSession, parse_tape
from agent.probe.vendors import load_vendor
from agent.probe.wire import (
    CLOSED,
    GARBAGE,
    Failed,
    LineSplitter,
    Opened,
    Reply,
    Request,
    Start,
    decode_request,
)

PR_SET_PDEATHSIG = 1
READ_BYTES = 64 * 1024


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the command line says."""

    vendor: str
    host: str | None = None  # a recorded host; None: this machine
    tape: str | None = None  # play these answers instead of the vendor's
    parent: int = 0  # the process to die with


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read `--name value` pairs; only the agent writes them, a mistake is a bug of ours."""
    pairs = {
        name.removeprefix("--"): value for name, value in zip(argv[::2], argv[1::2], strict=True)
    }
    return msgspec.convert(pairs, Arguments, strict=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until told to close, or until the agent is gone; end without a vendor's exit hooks."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    die_with(arguments.parent)
    questions, answers = take_pipes()
    try:
        serve(arguments, questions, Pipe(answers))
    except WorkerError as error:  # the agent talks nonsense, or is gone
        print(error, file=sys.stderr)  # noqa: T201 - standard error is this process's log
    sys.stderr.flush()
    # a hung thread of a vendor's library, or its exit hooks, must not keep the process
    os._exit(0)


def serve(arguments: Arguments, questions: int, pipe: Pipe) -> None:
    """Open the session that the arguments name and answer on `pipe`."""
    requests = read_requests(arguments.vendor, questions)
    start = next(requests, None)
    if not isinstance(start, Start):
        raise WorkerError(arguments.vendor, GARBAGE if start else CLOSED, "no start came first")
    answer(requests, pipe, start, lambda: open_session(arguments, start.settings))


def answer(
    requests: Iterator[Request], pipe: Pipe, start: Start, open_vendor: Callable[[], VendorSession]
) -> None:
    """Open a session and serve it, with the journal of calls that the agent named."""
    journal = CallJournal(start.journal, record=start.record, hung=start.hung)
    opened: list[VendorSession] = []

    def open_first() -> Reply:
        session = open_vendor()
        journal_calls_of(session, journal)
        opened.append(session)
        return Opened()

    reply = pipe.say(0, open_first)
    gc.freeze()
    gc.enable()
    if not isinstance(reply, Failed):
        Service(pipe, opened[0], journal).run(requests, events=start.events)


def open_session(arguments: Arguments, settings: Settings) -> VendorSession:
    """Open the vendor; a recorded host's tape stands for it.

    On a recorded host without one the vendor is told by the setting `replay` that its library
    would speak of another machine, and must be left alone.
    """
    vendor = arguments.vendor
    host: HostFiles = LiveRoot()
    tape = _read_tape(arguments.tape) if arguments.tape is not None else None
    if tape is None and arguments.host is not None:
        # imported here: a worker of this machine needs no archives
        from agent.recording.open import open_host  # noqa: PLC0415 - see above

        recorded = open_host(arguments.host)
        host, found = recorded.files, recorded.tape(vendor)
        tape = found if found is None or isinstance(found, bytes) else _read_tape(str(found))
        if recorded.spec is not None:
            settings = replayed(settings)
    if tape is not None:
        return TapeSession(parse_tape(tape, vendor))
    return load_vendor(vendor).open(host, settings)


def read_requests(vendor: str, fd: int) -> Iterator[Request]:
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
