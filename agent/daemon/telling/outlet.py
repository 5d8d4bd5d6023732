"""Where what is published goes: into a folder here, to an API server in `agent.daemon.cluster`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from agent.clock import Clock
from agent.daemon.telling.publishing import PublisherRun
from agent.model.selfcheck import Check
from agent.model.snapshot import NodeSnapshot
from agent.node.store import SnapshotStore
from agent.publish.base import Publisher
from agent.publish.event_log import EventLog
from agent.publish.eventing.event import Event
from agent.publish.files import FileApplier
from agent.publish.status import PublisherStatus
from agent.web.base import PublishedObject


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

    error: str  # of the last attempt, for people

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


class Folder:
    """The outlet of standalone mode: files."""

    def __init__(self, path: str, store: SnapshotStore, clock: Clock) -> None:
        self._path = path
        self._store = store
        self._clock = clock

    def run(self, publisher: Publisher, before: Callable[[], None] | None = None) -> Run:
        """Return a run with an applier of its own: each belongs to the thread of its run."""
        applier = FileApplier(self._path, self._clock.wall)
        return PublisherRun(publisher, applier, self._store, self._clock, before)

    def events(self) -> EventTarget:
        """Return the event log of the folder."""
        return EventLog(self._path)
