"""Where what is published goes: into a folder here, to an API server in `agent.daemon.cluster`."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from agent.clock import Clock
from agent.daemon.telling.publishing import Applier, PublisherRun
from agent.errors import PublishError
from agent.model.selfcheck import Check
from agent.model.snapshot import NodeSnapshot
from agent.node.store import SnapshotStore
from agent.publish.base import Desired, Publisher
from agent.publish.event_log import EventLog
from agent.publish.eventing.event import Event
from agent.publish.files import Applied, FileApplier
from agent.publish.status import PublisherStatus
from agent.state_writer import HANGS, StateWriter
from agent.web.base import PublishedObject

WRITE_S = 2.0  # for the files of one publisher


class Run(Protocol):
    """One publisher and what became of its objects. `run_once` belongs to one thread."""

    publisher: Publisher

    @property
    def status(self) -> PublisherStatus:
        """Say how it does."""
        ...

    @property
    def reports(self) -> bool:
        """Say whether this publisher tells of usage, which is known only after two cycles."""
        ...

    def run_once(self) -> None:
        """Publish what is desired now."""
        ...

    def check(self) -> Check:
        """Return whether all is written; part of being ready."""
        ...

    def objects(self) -> tuple[PublishedObject, ...]:
        """Return what is desired now, as text."""
        ...


class EventTarget(Protocol):
    """Takes events; belongs to the devices' thread."""

    @property
    def error(self) -> str:
        """Return why the last events were not taken, for people."""
        ...

    def record(self, events: Iterable[Event], snapshot: NodeSnapshot) -> int:
        """Take them and return how many are told; raise `PublishError` if they wait here."""
        ...


class Outlet(Protocol):
    """Makes runs of publishers, and takes events."""

    def run(self, publisher: Publisher, before: Callable[[], None] | None = None) -> Run:
        """Return a publisher's run; `before` prepares the snapshot for a rendering."""
        ...

    def events(self) -> EventTarget:
        """Return where events go."""
        ...


class BoundedApplier:
    """Applies files on a writer's thread; a file system that hangs is waited for only once."""

    def __init__(self, applier: Applier, writer: StateWriter) -> None:
        self._applier = applier
        self._writer = writer

    def where(self, desired: Desired) -> str:
        """Return the path of an object's file."""
        return self._applier.where(desired)

    def apply(self, desired: Iterable[Desired]) -> Applied:
        """Return what was written; raise `PublishError` for what could not be, or not in time."""
        items = tuple(desired)
        path = self.where(items[0]) if items else ""
        try:
            return self._writer.call(partial(self._applier.apply, items), path, WRITE_S)
        except OSError as error:
            raise PublishError(path, error.strerror or HANGS, error.errno or 0) from error


class BoundedEventLog:
    """Appends events on a writer's thread, as `BoundedApplier` applies files."""

    def __init__(self, events: EventLog, path: str, writer: StateWriter) -> None:
        self._events = events
        self._path = path
        self._writer = writer
        self._late = ""

    @property
    def error(self) -> str:
        """Return why the last events are not in the file; empty if they are."""
        return self._late or self._events.error

    def record(self, events: Iterable[Event], snapshot: NodeSnapshot) -> int:
        """Write the events and return how many lines; raise `PublishError`.

        What the thread has taken is written once the file system answers.
        """
        batch = tuple(events)
        late = self._writer.is_late(WRITE_S)
        try:
            if late and not batch:
                raise OSError(errno.ETIMEDOUT, HANGS)
            work = self._writer.begin(partial(self._events.record, batch, snapshot), self._path)
            count = work.result(0.0 if late else WRITE_S)
        except (OSError, TimeoutError) as error:
            failure = PublishError(self._path, HANGS, errno.ETIMEDOUT)
            self._late = str(failure)
            raise failure from error
        self._late = ""
        return count


class Folder:
    """The outlet of standalone mode: files."""

    def __init__(self, path: str, store: SnapshotStore, clock: Clock) -> None:
        self._path = path
        self._store = store
        self._clock = clock
        self._writer = StateWriter("output folder")

    def run(self, publisher: Publisher, before: Callable[[], None] | None = None) -> Run:
        """Return a run with an applier of its own."""
        applier = BoundedApplier(FileApplier(self._path, self._clock.wall), self._writer)
        return PublisherRun(publisher, applier, self._store, self._clock, before)

    def events(self) -> EventTarget:
        """Return the event log of the folder."""
        return BoundedEventLog(EventLog(self._path), self._path, self._writer)
