"""Inside the worker: one open session, the questions it is asked, and its events."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from agent.errors import AgentError, WorkerError
from agent.probe.base import VendorSession, clear_in, slices_in
from agent.probe.call_journal import CallJournal
from agent.probe.wire import (
    GARBAGE,
    MAX_LINE,
    NO_PERMISSION,
    NOT_SUPPORTED,
    TOO_LONG,
    Ask,
    Cleared,
    Discovered,
    Done,
    Failed,
    Happened,
    Reply,
    Request,
    Sampled,
    Sliced,
    encode,
    finite,
    kind_of,
)

EVENTS_WAIT_S = 0.25  # one turn of waiting; an orderly end may take this long
EVENTS_MIN_TURN_S = 0.1  # a vendor that returns at once without events must not spin
EVENTS_RETRY_S = 30.0
EVENTS_STUCK_S = 60.0  # of a turn that should have ended long ago; then it is told, once
EVENTS_STUCK = "EventsStuck"
MAX_MESSAGE = 500  # characters of an error's text


class Pipe:
    """The way to the agent, shared by two threads. When nobody reads it, the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def say(self, number: int, make: Callable[[], Reply | None]) -> Reply | None:
        """Send what `make` returns; whatever it raises is sent as a `Failed` of that number."""
        line = b""
        try:
            reply = make()
            if reply is not None:
                line = encode(reply)
            if len(line) > MAX_LINE:
                raise WorkerError("", TOO_LONG, f"an answer of {len(line)} bytes")
        except WorkerError as error:
            reply = Failed(number, error.reason, str(error))
        except AgentError as error:
            reply = Failed(number, kind_of(error), str(error))
        except PermissionError as error:
            reply = Failed(number, NO_PERMISSION, str(error))
        except Exception as error:  # noqa: BLE001 - the faults of a vendor's library end here
            import traceback  # noqa: PLC0415 - for a bug, which no start should pay for

            traceback.print_exc()
            reply = Failed(number, "UnexpectedError", repr(error))
        if isinstance(reply, Failed):
            reply = Failed(number, reply.kind, _sayable(reply.message))
            line = encode(reply)
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


class Service:
    """Answers serially; events have a thread of their own."""

    def __init__(
        self, pipe: Pipe, session: VendorSession, journal: CallJournal | None = None
    ) -> None:
        self._pipe = pipe
        self._session = session
        self._journal = journal or CallJournal()
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="events", daemon=True)
        self._turn_s: float | None = None  # monotonic, since when the library is asked for events
        self._told_s: float | None = None  # the turn that was told to be stuck

    def run(self, requests: Iterator[Request], *, events: bool) -> None:
        """Answer until `close` or the end of the requests."""
        if events:
            self._watcher.start()
            self._pipe.say(0, self._happened_before)
        for ask in requests:
            if not isinstance(ask, Ask):
                raise WorkerError("", GARBAGE, "a second start")
            self._tell_if_stuck()
            self._pipe.say(ask.id, partial(self._answer, ask))
            if ask.method == "close":
                return

    def _answer(self, ask: Ask) -> Reply:
        if ask.method == "discover":
            return Discovered(ask.id, self._journal.mark(self._session.discover()))
        if ask.method == "sample":
            return Sampled(ask.id, finite(self._session.sample()))
        if ask.method == "clear":
            return Cleared(ask.id, clear_in(self._session, ask.device))
        if ask.method == "slices":
            return Sliced(ask.id, slices_in(self._session, ask.wishes, ask.pods))
        if ask.method == "close":
            self._close()
        return Done(ask.id)

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
            self._pipe.say(0, lambda: Failed(0, EVENTS_STUCK, detail))

    def _happened_before(self) -> Reply | None:
        events = self._journal.events()
        return Happened(events) if events else None

    def _events(self) -> Reply | None:
        events = self._session.events(EVENTS_WAIT_S)
        return Happened(events) if events else None

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._turn_s = began_s = time.monotonic()
            reply = self._pipe.say(0, self._events)
            self._turn_s = None
            if isinstance(reply, Failed) and reply.kind == NOT_SUPPORTED:
                return
            if isinstance(reply, Failed):
                self._stop.wait(EVENTS_RETRY_S)
            elif reply is None:
                self._stop.wait(max(0.0, EVENTS_MIN_TURN_S - (time.monotonic() - began_s)))


def _sayable(message: str) -> str:
    return message[:MAX_MESSAGE].encode("utf-8", "replace").decode()
