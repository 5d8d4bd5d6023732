"""How following one kind of object does: counters, the last contact, and when a person is told."""

from __future__ import annotations

import logging

import msgspec

from agent.clock import Clock
from agent.kube.watch.state import Phase

log = logging.getLogger(__name__)

SAY_AFTER = 3  # failures in a row: streams break, and that alone is no news


class WatchState(msgspec.Struct, frozen=True, kw_only=True):
    """How following one kind of object does; counters since the start."""

    resource: str  # plural
    phase: Phase = Phase.WAITING
    synced: bool = False  # a list was complete once
    objects: int = 0
    lists: int = 0  # complete ones
    relists: int = 0  # of these, those after the first
    watches: int = 0  # streams opened
    events: int = 0
    bookmarks: int = 0
    malformed: int = 0  # objects that could not be read, each time that they came
    errors: int = 0
    last_error: str = ""  # empty again when the server has spoken since, or accepted a stream
    streaming: bool = False  # a stream is open: what the server changes arrives
    # monotonic: a page, an event or a bookmark came, or a stream was accepted or ended in order
    last_contact_s: float | None = None
    absent_s: float | None = None  # monotonic: it said that it does not know the kind, and no more

    def contact_s(self, now_s: float) -> float | None:
        """Return when the view was last confirmed; an open stream confirms it at every moment.

        A quiet stream is healthy: without bookmarks a server sends nothing where nothing changes.
        """
        return now_s if self.streaming else self.last_contact_s


class Account:
    """Keeps the state of one watch. Each kind of trouble is said once, and its end too."""

    def __init__(self, resource: str, clock: Clock) -> None:
        """Begin with nothing known."""
        self._clock = clock
        self._in_a_row = 0
        self._said: Phase | None = None
        self.state = WatchState(resource=resource)

    def stands(self, phase: Phase, objects: int, malformed: int) -> None:
        """Show where the machine stands, and what it has."""
        self._set(phase=phase, objects=objects, malformed=malformed)

    def opened(self) -> None:
        """Count a stream that the server has accepted; what was wrong before it is over."""
        self._set(
            watches=self.state.watches + 1,
            last_error="",
            streaming=True,
            last_contact_s=self._clock.monotonic(),
        )

    def ended(self) -> None:
        """Note that the server ended the stream in order: all that it changed has arrived."""
        self._set(last_contact_s=self._clock.monotonic())

    def closed(self) -> None:
        """Note that no stream is open."""
        self._set(streaming=False)

    def heard(self, *, events: int = 0, bookmarks: int = 0) -> None:
        """Take note that the server has spoken."""
        self._in_a_row = 0
        self._set(
            events=self.state.events + events,
            bookmarks=self.state.bookmarks + bookmarks,
            last_error="",
            last_contact_s=self._clock.monotonic(),
            absent_s=None,
        )
        if self._said is not None:
            self._said = None
            log.info("watch_restored", extra={"resource": self.state.resource})

    def listed(self) -> None:
        """Count a complete list."""
        relists = self.state.relists + self.state.synced
        self._set(lists=self.state.lists + 1, relists=relists, synced=True)

    def failed(self, phase: Phase, error: str) -> None:
        """Count a failure; say it when it lasts, or at once when a person must act."""
        self._in_a_row += 1
        self._set(errors=self.state.errors + 1, last_error=error)
        if phase is Phase.ABSENT:
            self._set(absent_s=self._clock.monotonic())
        telling = phase in (Phase.ABSENT, Phase.FORBIDDEN) or self._in_a_row == SAY_AFTER
        if telling and self._said is not phase:
            self._said = phase
            fields = {"resource": self.state.resource, "state": phase.value, "error": error}
            log.warning("watch_failed", extra=fields)

    def _set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
