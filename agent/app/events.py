"""Records the events of changes between two snapshots, and those that services report."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import Executor

import msgspec

from agent.app.publishing import EventOutput
from agent.clock import Clock, rfc3339
from agent.loop import call_or_log
from agent.messages import EventReported, MessageQueue
from agent.objects.events import events_between
from agent.snapshot.node import DeviceView, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import EventLine
from agent.snapshot.self_check import SelfCheck
from agent.wire_formats.api_values import MAX_MESSAGE, clean_text
from agent.wire_formats.event import WARNING, Event

log = logging.getLogger(__name__)
MAX_RECENT = 100


class EventRecorder:
    """Compares snapshots. Every method but `run` belongs to the devices thread."""

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        output: EventOutput,
        messages: MessageQueue | None = None,
    ) -> None:
        self.recent_events: deque[EventLine] = deque(maxlen=MAX_RECENT)
        self._store = store
        self._clock = clock
        self._output = output
        self._messages = messages or MessageQueue()
        self._last_snapshot: NodeSnapshot | None = None
        self._logged_error = ""  # empty: the last events were written

    def record_changes(self) -> None:
        """Record what changed since the last call; log once that the output fails."""
        snapshot = self._without_awaited_devices(self._store.current)
        if self._last_snapshot is None or _may_have_events(self._last_snapshot, snapshot):
            self._output.offer(self._new_events(snapshot), snapshot)
        elif self._output.error:
            self._output.offer((), snapshot)
        self._log_new_error()

    def _without_awaited_devices(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Keep the last devices while a vendor has not answered: sysfs alone gives no event."""
        if not snapshot.devices.value.awaited:
            return snapshot
        devices = (
            SnapshotPart(DeviceView())
            if self._last_snapshot is None
            else self._last_snapshot.devices
        )
        return msgspec.structs.replace(snapshot, devices=devices)

    def _new_events(self, snapshot: NodeSnapshot) -> tuple[Event, ...]:
        events = events_between(self._last_snapshot, snapshot, self._clock.wall())
        self._last_snapshot = snapshot
        for event in events:
            self._log_event(event)
        return events

    async def run(self, executor: Executor) -> None:
        """Record reported events on `executor`, the devices' thread, until cancelled."""
        event_loop = asyncio.get_running_loop()
        while True:
            await self._messages.wait_events()
            await event_loop.run_in_executor(executor, self.record_reported)

    def record_reported(self) -> None:
        """Record the events that services have reported."""
        for reported in self._messages.drain_events():
            call_or_log(self._record_reported, reported, log, "event_not_recorded")

    def _record_reported(self, reported: EventReported) -> None:
        event = Event(
            type=WARNING,
            reason=reported.reason,
            message=clean_text(reported.message, MAX_MESSAGE),
            object_kind="Node" if reported.pod is None else "Pod",
            at_s=self._clock.wall(),
            pod=reported.pod,
        )
        self._log_event(event)
        self._output.offer((event,), self._store.current)

    def _log_event(self, event: Event) -> None:
        level = logging.WARNING if event.type == WARNING else logging.INFO
        log.log(level, "event", extra={"reason": event.reason, "about": event.message})
        self.recent_events.append(
            EventLine(
                time=rfc3339(event.at_s),
                reason=event.reason,
                about=event.object_kind,
                message=event.message,
            )
        )

    def flush(self, deadline_s: float) -> bool:
        """Wait until the last events are written; return whether they are."""
        is_written = self._output.flush(deadline_s)
        self._log_new_error()
        return is_written

    def _log_new_error(self) -> None:
        error = self._output.error
        if error and not self._logged_error:
            log.error("events_not_written", extra={"error": error})
        self._logged_error = error

    def check(self) -> SelfCheck:
        """Return whether all events could be written."""
        error = self._output.error
        messages = [error] if error else []
        if self._messages.dropped_events:
            messages.append(f"{self._messages.dropped_events} events were dropped: too many waited")
        return SelfCheck(
            name="events",
            ok=not error,
            message="; ".join(messages),
            reason="EventFileNotWritten",
        )


def _may_have_events(old: NodeSnapshot, new: NodeSnapshot) -> bool:
    """Return whether devices, workers or annotations may have changed; samples give no event."""
    if old.devices.value is not new.devices.value or len(old.vendors) != len(new.vendors):
        return True
    if old.pods.value is not new.pods.value or old.cluster.node.value != new.cluster.node.value:
        return True
    parts = ("allocations", "verification", "runtime", "host_devices")
    if any(getattr(old, part).value is not getattr(new, part).value for part in parts):
        return True
    pairs = zip(old.vendors, new.vendors, strict=True)
    return any(a.state != b.state or a.reason != b.reason for a, b in pairs)
