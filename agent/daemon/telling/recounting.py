"""Tells what changed from one snapshot to the next: into the event log and onto the page."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from concurrent.futures import Executor

import msgspec

from agent.clock import Clock, rfc3339
from agent.daemon.telling.outlet import EventTarget
from agent.errors import PublishError
from agent.model.part import Part
from agent.model.selfcheck import Check
from agent.model.snapshot import DeviceView, NodeSnapshot
from agent.node.store import SnapshotStore
from agent.publish.eventing.event import WARNING, Event, PodRef
from agent.publish.events import events_between
from agent.publish.wire.sanitise import MAX_MESSAGE, plain
from agent.web.base import EventLine

log = logging.getLogger(__name__)
MAX_RECENT = 100
MAX_WAITING = 1024  # events for the thread that records them


class Recounting:
    """Compares snapshots. Belongs to the devices' thread."""

    def __init__(self, store: SnapshotStore, clock: Clock, target: EventTarget) -> None:
        self.recent: deque[EventLine] = deque(maxlen=MAX_RECENT)
        self._store = store
        self._clock = clock
        self._log = target
        self._told: NodeSnapshot | None = None
        self._error = ""
        self.dropped = 0  # events for which there was no room

    def run_once(self) -> None:
        """Tell what has happened since the last time; a log that cannot be written is said once."""
        snapshot = self._before_answers(self._store.current)
        if self._told is None or _differs(self._told, snapshot):
            self._write(self._news(snapshot), snapshot)
        elif self._error:
            self._write((), snapshot)

    def _before_answers(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Leave the devices as last told while an answer is awaited: a sighting is no news."""
        if not snapshot.devices.value.awaited:
            return snapshot
        known = Part(DeviceView()) if self._told is None else self._told.devices
        return msgspec.structs.replace(snapshot, devices=known)

    def _news(self, snapshot: NodeSnapshot) -> tuple[Event, ...]:
        events = events_between(self._told, snapshot, self._clock.wall())
        self._told = snapshot
        for event in events:
            self._show(event)
        return events

    def tell(self, reason: str, message: str, pod: PodRef | None = None) -> None:
        """Tell of something that no snapshot shows: who did what, what a device still lacks.

        It is about the node, or about a pod.
        """
        event = Event(
            type=WARNING,
            reason=reason,
            message=plain(message, MAX_MESSAGE),
            about="Node" if pod is None else "Pod",
            at_s=self._clock.wall(),
            pod=pod,
        )
        self._show(event)
        self._write((event,), self._store.current)

    def _show(self, event: Event) -> None:
        level = logging.WARNING if event.type == WARNING else logging.INFO
        log.log(level, "event", extra={"reason": event.reason, "about": event.message})
        self.recent.append(
            EventLine(
                time=rfc3339(event.at_s),
                reason=event.reason,
                about=event.about,
                message=event.message,
            )
        )

    def _write(self, events: tuple[Event, ...], snapshot: NodeSnapshot) -> None:
        try:
            self._log.record(events, snapshot)
        except PublishError as error:
            if not self._error:
                log.error("events_not_written", extra={"error": str(error)})
        self._error = self._log.error

    def check(self) -> Check:
        """Return whether all events could be written."""
        words = [self._error] if self._error else []
        if self.dropped:
            words.append(f"{self.dropped} events were dropped: too many waited")
        return Check(name="events", ok=not self._error, message="; ".join(words))


class EventQueue:
    """Hands events of any thread to the one that records them; at most so many wait.

    An event for which there is no room is dropped and counted by the check `events`. While the
    agent stops, events are dropped.
    """

    def __init__(
        self, executor: Executor, recounting: Recounting, max_waiting: int = MAX_WAITING
    ) -> None:
        self._executor = executor
        self._recounting = recounting
        self._room = threading.Semaphore(max_waiting)

    def put(self, reason: str, message: str, pod: PodRef | None = None) -> None:
        """Record an event soon; never waits."""
        if not self._room.acquire(blocking=False):
            self._recounting.dropped += 1
            return
        with contextlib.suppress(RuntimeError):  # the executor takes nothing any more
            work = self._executor.submit(self._recounting.tell, reason, message, pod)
            work.add_done_callback(lambda _: self._room.release())


def _differs(old: NodeSnapshot, new: NodeSnapshot) -> bool:
    """Say whether devices, workers or annotations may have changed; samples are no news."""
    if old.devices.value is not new.devices.value or len(old.vendors) != len(new.vendors):
        return True
    if old.pods.value is not new.pods.value or old.cluster.node.value != new.cluster.node.value:
        return True
    parts = ("grants", "proof", "runtime", "means")
    if any(getattr(old, part).value is not getattr(new, part).value for part in parts):
        return True
    pairs = zip(old.vendors, new.vendors, strict=True)
    return any(a.state != b.state or a.reason != b.reason for a, b in pairs)
