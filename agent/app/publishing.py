"""Renders the objects of one publisher and hands them to a sink; the sink of standalone mode.

Where what is published goes: into a folder here, to an API server in `agent.daemon.cluster`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.errors import AgentError, PublishError
from agent.objects.event_log import EventLog
from agent.objects.files import FileSink, SinkResult
from agent.objects.publishers import Publisher
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.publications import DesiredObject, Publication, PublisherStatus
from agent.snapshot.self_check import SelfCheck
from agent.state_writer import NO_ANSWER, StateWriter
from agent.wire_formats.event import Event

log = logging.getLogger(__name__)


class ObjectSink(Protocol):
    """Makes objects exist as desired: as files, or at an API server."""

    def apply(self, desired: Iterable[DesiredObject]) -> SinkResult:
        """Say what was written; raise `PublishError` for what could not be."""
        ...

    def where(self, desired: DesiredObject) -> str:
        """Say where an object is written to."""
        ...


class FilePublisherRunner:
    """One publisher with its applier. `run_once` belongs to one thread, the applier to the same."""

    def __init__(
        self,
        publisher: Publisher,
        applier: ObjectSink,
        store: SnapshotStore,
        clock: Clock,
        before: Callable[[], None] | None = None,
    ) -> None:
        """`before` prepares the snapshot for a rendering, as computing the report does."""
        self.publisher = publisher
        self.status = PublisherStatus(name=publisher.name)
        self._rendered: tuple[DesiredObject, ...] = ()
        self._sink = applier
        self._store = store
        self._clock = clock
        self._prepare = before

    @property
    def is_usage_report(self) -> bool:
        """Say whether this publisher tells of usage, which is known only after two cycles."""
        return self._prepare is not None

    def run_once(self) -> None:
        """Publish what is desired now; a failure stays in `status` until a run succeeds."""
        began_s = self._clock.monotonic()
        try:
            written, unchanged = self._publish()
        except AgentError as error:
            if self.status.success:
                log.error(
                    "publish_failed",
                    extra={"publisher": self.publisher.name, "error": str(error)},
                )
            changes: dict[str, object] = {
                "success": False,
                "failed": self.status.failed + 1,
                "error": str(error),
            }
        else:
            if not self.status.success:
                log.info("publish_recovered", extra={"publisher": self.publisher.name})
            changes = {
                "success": True,
                "error": "",
                "last_success_s": self._clock.wall(),
                "written": self.status.written + written,
                "unchanged": self.status.unchanged + unchanged,
            }
        duration_s = self._clock.monotonic() - began_s
        self.status = msgspec.structs.replace(
            self.status,
            duration_s=duration_s,
            **changes,
        )

    def check(self) -> SelfCheck:
        """Return whether the last run went well; part of being ready."""
        return SelfCheck(
            name=f"publisher:{self.publisher.name}",
            ok=self.status.success and self.status.duration_s is not None,
            message=self.status.error or f"{self.status.written} written",
        )

    def publications(self) -> tuple[Publication, ...]:
        """Return the objects as they were rendered last. For any thread."""
        return tuple(
            Publication(
                desired=desired,
                where=self._sink.where(desired),
                problem=self.status.error,
            )
            for desired in self._rendered
        )

    def _publish(self) -> tuple[int, int]:
        if self._prepare is not None:
            self._prepare()
        self._rendered = self.publisher.render(self._store.current, self._clock.wall())
        applied = self._sink.apply(self._rendered)
        return len(applied.written), len(applied.unchanged)


WRITE_DEADLINE_S = 2.0  # for the files of one publisher


class PublisherRunner(Protocol):
    """One publisher and what became of its objects. `run_once` belongs to one thread."""

    publisher: Publisher

    @property
    def status(self) -> PublisherStatus:
        """Say how it does."""
        ...

    @property
    def is_usage_report(self) -> bool:
        """Say whether this publisher tells of usage, which is known only after two cycles."""
        ...

    def run_once(self) -> None:
        """Publish what is desired now."""
        ...

    def check(self) -> SelfCheck:
        """Return whether all is written; part of being ready."""
        ...

    def publications(self) -> tuple[Publication, ...]:
        """Return the objects as they were rendered last. For any thread."""
        ...


class EventOutput(Protocol):
    """Takes events; belongs to the devices' thread."""

    @property
    def error(self) -> str:
        """Return why the last events were not taken, for people."""
        ...

    def record(self, events: Iterable[Event], snapshot: NodeSnapshot) -> int:
        """Take them and return how many are told; raise `PublishError` if they wait here."""
        ...


class PublishSink(Protocol):
    """Makes runs of publishers, and takes events."""

    def runner(
        self, publisher: Publisher, before: Callable[[], None] | None = None
    ) -> PublisherRunner:
        """Return a publisher's run; `before` prepares the snapshot for a rendering."""
        ...

    def event_output(self) -> EventOutput:
        """Return where events go."""
        ...


class DeadlineObjectSink:
    """Applies files on a writer's thread; a file system that hangs is waited for only once."""

    def __init__(self, applier: ObjectSink, writer: StateWriter) -> None:
        self._applier = applier
        self._writer = writer

    def where(self, desired: DesiredObject) -> str:
        """Return the path of an object's file."""
        return self._applier.where(desired)

    def apply(self, desired: Iterable[DesiredObject]) -> SinkResult:
        """Return what was written; raise `PublishError` for what could not be, or not in time."""
        items = tuple(desired)
        path = self.where(items[0]) if items else ""
        try:
            return self._writer.call(partial(self._applier.apply, items), path, WRITE_DEADLINE_S)
        except OSError as error:
            raise PublishError(path, error.strerror or NO_ANSWER, error.errno or 0) from error


class DeadlineEventLog:
    """Appends events on a writer's thread, as `BoundedApplier` applies files."""

    def __init__(self, events: EventLog, path: str, writer: StateWriter) -> None:
        self._events = events
        self._path = path
        self._writer = writer
        self._late_error = ""

    @property
    def error(self) -> str:
        """Return why the last events are not in the file; empty if they are."""
        return self._late_error or self._events.error

    def record(self, events: Iterable[Event], snapshot: NodeSnapshot) -> int:
        """Write the events and return how many lines; raise `PublishError`.

        What the thread has taken is written once the file system answers.
        """
        batch = tuple(events)
        late = self._writer.is_late(WRITE_DEADLINE_S)
        try:
            if late and not batch:
                raise OSError(errno.ETIMEDOUT, NO_ANSWER)
            work = self._writer.begin(partial(self._events.record, batch, snapshot), self._path)
            count = work.result(0.0 if late else WRITE_DEADLINE_S)
        except (OSError, TimeoutError) as error:
            failure = PublishError(self._path, NO_ANSWER, errno.ETIMEDOUT)
            self._late_error = str(failure)
            raise failure from error
        self._late_error = ""
        return count


class FolderPublishSink:
    """The outlet of standalone mode: files."""

    def __init__(self, path: str, store: SnapshotStore, clock: Clock) -> None:
        self._path = path
        self._store = store
        self._clock = clock
        self._writer = StateWriter("output folder")

    def runner(
        self, publisher: Publisher, before: Callable[[], None] | None = None
    ) -> PublisherRunner:
        """Return a run with an applier of its own."""
        applier = DeadlineObjectSink(FileSink(self._path, self._clock.wall), self._writer)
        return FilePublisherRunner(publisher, applier, self._store, self._clock, before)

    def event_output(self) -> EventOutput:
        """Return the event log of the folder."""
        return DeadlineEventLog(EventLog(self._path), self._path, self._writer)
