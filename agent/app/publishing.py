"""Renders the objects of publishers and hands them to sinks; the sink of standalone mode: files.

A sink takes the newest objects and returns at once. The sink of a cluster is in
`agent.app.cluster_sink`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.config.settings import PublishSettings, Settings
from agent.errors import AgentError, PublishError
from agent.loop import Loop
from agent.objects.device_info_file import DeviceInfoFilePublisher, DeviceInfoFileSink
from agent.objects.event_log import EventLog
from agent.objects.files import FileSink, SinkResult
from agent.objects.publishers import USAGE_REPORT, Publisher, enabled_publishers
from agent.runbook.runbook import OWN_RUNBOOK, Runbook
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.publications import DesiredObject, Publication, PublisherStatus
from agent.snapshot.self_check import SelfCheck
from agent.state_writer import NO_ANSWER, StateWriter
from agent.wire_formats.event import Event

log = logging.getLogger(__name__)

WRITE_DEADLINE_S = 2.0  # a write of one sink that takes longer is an error

MAX_WAITING_EVENTS = 256  # that wait for the thread; the oldest are dropped first


class ObjectSink(Protocol):
    """Makes objects exist as desired, and waits for that."""

    def apply(self, desired: Iterable[DesiredObject]) -> SinkResult:
        """Return what was written; raise `PublishError` for what could not be."""
        ...

    def where(self, desired: DesiredObject) -> str:
        """Return where an object is written to."""
        ...


class PublisherRunner(Protocol):
    """One publisher with its sink.

    `run_once` belongs to one thread; any thread may call the others.
    """

    publisher: Publisher

    @property
    def status(self) -> PublisherStatus:
        """Return the counters and the last error."""
        ...

    def run_once(self) -> None:
        """Render the objects and pass them to the sink, without waiting for it."""
        ...

    def flush(self, deadline_s: float) -> bool:
        """Wait until files with the last objects are written; return whether they are."""
        ...

    def check(self) -> SelfCheck:
        """Return whether all objects are written; part of being ready."""
        ...

    def publications(self) -> tuple[Publication, ...]:
        """Return the objects as they were rendered last."""
        ...


class EventOutput(Protocol):
    """Takes events. `offer` belongs to the devices thread."""

    @property
    def error(self) -> str:
        """Return why the last events are not written, for people."""
        ...

    def offer(self, events: Iterable[Event], snapshot: NodeSnapshot) -> None:
        """Pass on the events and return at once.

        Without events, retry those that were not written.
        """
        ...

    def flush(self, deadline_s: float) -> bool:
        """Wait until files with the last events are written; return whether they are."""
        ...


class PublishSink(Protocol):
    """A destination of published objects, one class for each mode of the agent."""

    def runner(self, publisher: Publisher) -> PublisherRunner:
        """Return the runner of a publisher."""
        ...

    def event_output(self) -> EventOutput:
        """Return the output of events."""
        ...


class DeferredWriter(ABC):
    """Writes on the thread of a `StateWriter`; `request` never waits for it.

    All requests before the write begins are one write, and so are all requests during it.
    """

    def __init__(self, name: str, path: str, writer: StateWriter, clock: Clock) -> None:
        """`path` is for messages, `name` for the log."""
        self._path = path
        self._clock = clock
        self._writer = writer
        self._loop = Loop(name, 0.0, self.write)
        self._condition = threading.Condition()
        self._is_requested = False
        self._waiting_since_s: float | None = None  # monotonic; None: all is written

    @abstractmethod
    def write(self) -> None:
        """Write the newest content; for the writer's thread."""

    def request(self) -> None:
        """Request that the thread calls `write`."""
        with self._condition:
            if self._waiting_since_s is None:
                self._waiting_since_s = self._clock.monotonic()
            if self._is_requested:
                return
            self._is_requested = True
            try:
                self._writer.begin(self._run, self._path)
            except OSError:  # too much waits for a file system that hangs; `hang_error` shows it
                self._is_requested = False

    def hang_error(self) -> str:
        """Return why the requested content is still not written; empty while it is in time."""
        with self._condition:
            since_s = self._waiting_since_s
        if since_s is None or self._clock.monotonic() - since_s <= WRITE_DEADLINE_S:
            return self._loop.last_error
        return str(PublishError(self._path, NO_ANSWER, errno.ETIMEDOUT))

    def flush(self, deadline_s: float) -> bool:
        """Wait until everything requested is written; return whether it is."""
        with self._condition:
            return self._condition.wait_for(lambda: self._waiting_since_s is None, deadline_s)

    def _run(self) -> None:
        with self._condition:
            self._is_requested = False
        self._loop.step(self._clock.monotonic())
        with self._condition:
            self._waiting_since_s = self._clock.monotonic() if self._is_requested else None
            self._condition.notify_all()


class RenderedObjects(msgspec.Struct, frozen=True):
    """The objects of one run, and its monotonic start time."""

    objects: tuple[DesiredObject, ...]
    began_s: float


class FilePublisherRunner(DeferredWriter):
    """Writes a publisher's objects as files. The newest objects wait in one slot for the thread."""

    def __init__(
        self,
        publisher: Publisher,
        sink: ObjectSink,
        writer: StateWriter,
        store: SnapshotStore,
        clock: Clock,
    ) -> None:
        """`writer` owns the thread on which `sink` is called."""
        super().__init__(f"write-{publisher.name}", "", writer, clock)
        self.publisher = publisher
        self._status = PublisherStatus(name=publisher.name)
        self._rendered: tuple[DesiredObject, ...] = ()
        self._slot: RenderedObjects | None = None
        self._sink = sink
        self._store = store

    @property
    def status(self) -> PublisherStatus:
        """Return the counters and the last error; a write that hangs is an error."""
        error = self.hang_error()
        return (
            msgspec.structs.replace(self._status, success=False, error=error)
            if error
            else (self._status)
        )

    def run_once(self) -> None:
        """Render the objects and pass them on.

        `status` has a failure until the objects are written.
        """
        began_s = self._clock.monotonic()
        try:
            objects = self.publisher.render(self._store.current, self._clock.wall())
        except AgentError as error:
            self._record_failure(str(error), began_s)
            return
        self._rendered = objects
        self._slot = RenderedObjects(objects, began_s)
        self._path = self._sink.where(objects[0]) if objects else ""
        self.request()
        if hang_error := self.hang_error():
            self._record_failure(hang_error, began_s)

    def write(self) -> None:
        """Write the objects in the slot."""
        rendered, self._slot = self._slot, None
        if rendered is None:
            return
        try:
            result = self._sink.apply(rendered.objects)
        except AgentError as error:
            self._record_failure(str(error), rendered.began_s)
            return
        if not self._status.success:
            log.info("publish_recovered", extra={"publisher": self.publisher.name})
        self._change_status(
            rendered.began_s,
            success=True,
            error="",
            last_success_s=self._clock.wall(),
            written=self._status.written + len(result.written),
            unchanged=self._status.unchanged + len(result.unchanged),
        )

    def check(self) -> SelfCheck:
        """Return whether the last objects are written; part of being ready."""
        status = self.status
        return SelfCheck(
            name=f"publisher:{self.publisher.name}",
            ok=status.success and status.duration_s is not None,
            message=status.error or f"{status.written} written",
        )

    def publications(self) -> tuple[Publication, ...]:
        """Return the objects as they were rendered last. For any thread."""
        error = self.status.error
        return tuple(
            Publication(desired=desired, where=self._sink.where(desired), problem=error)
            for desired in self._rendered
        )

    def _record_failure(self, error: str, began_s: float) -> None:
        if self._status.success:
            fields = {"publisher": self.publisher.name, "error": error}
            log.error("publish_failed", extra=fields)
        self._change_status(began_s, success=False, failed=self._status.failed + 1, error=error)

    def _change_status(self, began_s: float, **changes: object) -> None:
        duration_s = self._clock.monotonic() - began_s
        with self._condition:
            self._status = msgspec.structs.replace(self._status, duration_s=duration_s, **changes)


class FolderEventOutput(DeferredWriter):
    """Appends events to the log of a folder."""

    def __init__(self, folder: str, writer: StateWriter, clock: Clock) -> None:
        """`writer` owns the thread that writes."""
        super().__init__("write-events", folder, writer, clock)
        self._log = EventLog(folder)
        self._waiting: deque[Event] = deque(maxlen=MAX_WAITING_EVENTS)
        self._snapshot: NodeSnapshot | None = None  # of the last events

    @property
    def error(self) -> str:
        """Return why the last events are not in the file; empty if they are."""
        return self.hang_error() or self._log.error

    def offer(self, events: Iterable[Event], snapshot: NodeSnapshot) -> None:
        """Request a write of the events, and of those that could not be written before."""
        with self._condition:
            self._waiting.extend(events)
            self._snapshot = snapshot
        self.request()

    def write(self) -> None:
        """Write the waiting events; the log keeps events that cannot be written."""
        with self._condition:
            events, snapshot = tuple(self._waiting), self._snapshot
            self._waiting.clear()
        if snapshot is None:
            return
        # the log has the error, and the recorder tries again
        with contextlib.suppress(PublishError):
            self._log.record(events, snapshot)


class FolderPublishSink:
    """The sink of standalone mode: files in one folder, written on a thread of its own."""

    def __init__(self, path: str, store: SnapshotStore, clock: Clock) -> None:
        self._path = path
        self._store = store
        self._clock = clock
        self._writer = StateWriter("output folder")

    def runner(self, publisher: Publisher) -> PublisherRunner:
        """Return a runner that manages only its own files."""
        sink = FileSink(self._path, self._clock)
        return FilePublisherRunner(publisher, sink, self._writer, self._store, self._clock)

    def event_output(self) -> EventOutput:
        """Return the event log of the folder."""
        return FolderEventOutput(self._path, self._writer, self._clock)


def device_runners(
    settings: Settings,
    store: SnapshotStore,
    clock: Clock,
    sink: PublishSink,
    runbook: Runbook = OWN_RUNBOOK,
) -> list[PublisherRunner]:
    """Return the runners of all publishers but the one of usage."""
    publishers = enabled_publishers(settings, runbook)
    runners = [sink.runner(item) for name, item in publishers.items() if name != USAGE_REPORT]
    if settings.publish.device_info_files:
        runners.append(device_info_runner(settings.publish, store, clock))
    return runners


def device_info_runner(
    settings: PublishSettings, store: SnapshotStore, clock: Clock
) -> FilePublisherRunner:
    """Return the runner of the device-info file, which has a folder of its own."""
    writer = StateWriter("device-info files")
    sink = DeviceInfoFileSink(settings.device_info_directory)
    publisher = DeviceInfoFilePublisher(interval_s=settings.interval_s)
    return FilePublisherRunner(publisher, sink, writer, store, clock)
