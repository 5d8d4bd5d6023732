"""The outlet of a cluster: publishers' objects and events on their way to the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from agent.app.publishing import EventOutput, PublisherRunner
from agent.clock import Clock
from agent.kube.events import EventSink
from agent.objects.publishers import Publisher
from agent.snapshot.cluster import ANOTHER_MACHINE, WritePermission
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.publications import DesiredObject, Publication, PublisherStatus, WriterState
from agent.snapshot.self_check import SelfCheck
from agent.wire_formats.event import Event


class ObjectQueue(Protocol):
    """Writes objects at the API server; see `agent.kube.writer.api_writer.ApiWriter`."""

    def offer(self, publisher: str, desired: tuple[DesiredObject, ...]) -> None:
        """Take what is wanted now; the latest counts. Belongs to the loop thread."""
        ...

    def states(self) -> tuple[WriterState, ...]:
        """Say how each object does."""
        ...


class ClusterPublishSink:
    """Makes runs that hand their objects to the loop thread, where they are written."""

    def __init__(
        self,
        writer: ObjectQueue,
        sink: EventSink | None,
        store: SnapshotStore,
        clock: Clock,
        standing: Callable[[], WritePermission],
        event_loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`standing` says whether anything may be written for this Node; of any thread."""
        self._writer = writer
        self._sink = sink
        self._store = store
        self._clock = clock
        self._write_permission = standing
        self._event_loop = event_loop

    def runner(
        self, publisher: Publisher, before: Callable[[], None] | None = None
    ) -> PublisherRunner:
        """Return a publisher's run."""
        return ClusterPublisherRunner(self, publisher, before)

    def event_output(self) -> EventOutput:
        """Return where events go."""
        return ClusterEventOutput(self._sink, self._write_permission)

    def render(self, publisher: Publisher) -> tuple[DesiredObject, ...]:
        """Return what is wanted now; nothing while the Node is not known to be this machine's."""
        if not self._write_permission().is_allowed:
            return ()
        return publisher.render(self._store.current, self._clock.wall())

    def offer(self, name: str, desired: tuple[DesiredObject, ...]) -> None:
        """Hand objects to the writer; for any thread."""
        self._event_loop.call_soon_threadsafe(self._writer.offer, name, desired)

    def states(self, name: str) -> tuple[WriterState, ...]:
        """Return how the objects of one publisher do."""
        return tuple(state for state in self._writer.states() if state.publisher == name)

    def now_s(self) -> float:
        """Return the monotonic time."""
        return self._clock.monotonic()


class ClusterPublisherRunner:
    """One publisher. `run_once` renders on the thread it is called on; writing happens apart."""

    def __init__(
        self, outlet: ClusterPublishSink, publisher: Publisher, before: Callable[[], None] | None
    ) -> None:
        self.publisher = publisher
        self._sink = outlet
        self._prepare = before
        self._duration_s: float | None = None
        self._offered: tuple[DesiredObject, ...] = ()

    @property
    def is_usage_report(self) -> bool:
        """Say whether this publisher tells of usage."""
        return self._prepare is not None

    def run_once(self) -> None:
        """Render, and offer what differs from the last time; a failure is the loop's to tell."""
        began_s = self._sink.now_s()
        if self._prepare is not None:
            self._prepare()
        desired = self._sink.render(self.publisher)
        if desired != self._offered:
            self._sink.offer(self.publisher.name, desired)
            self._offered = desired
        self._duration_s = self._sink.now_s() - began_s

    @property
    def status(self) -> PublisherStatus:
        """Say how the objects do; counts are of objects, as the API server acknowledged them."""
        states = self._sink.states(self.publisher.name)
        acks = [state.last_ack_s for state in states if state.last_ack_s is not None]
        behind = [state for state in states if state.is_behind]
        return PublisherStatus(
            name=self.publisher.name,
            success=not behind,
            duration_s=self._duration_s,
            last_success_s=max(acks, default=None),
            written=sum(state.written for state in states),
            unchanged=sum(state.unchanged for state in states),
            failed=sum(state.failed for state in states),
            error="; ".join(_state_message(state) for state in behind),
        )

    def check(self) -> SelfCheck:
        """Say what became of the objects.

        It does not gate readiness: an agent out of service would not bring the API server back,
        and its metrics and grants are needed meanwhile.
        """
        states = self._sink.states(self.publisher.name)
        words = "; ".join(_state_message(state) for state in states) or "nothing to publish yet"
        return SelfCheck(
            name=f"publisher:{self.publisher.name}",
            ok=self._duration_s is not None and not any(state.is_behind for state in states),
            message=words,
            gates_ready=False,
        )

    def publications(self) -> tuple[Publication, ...]:
        """Return the objects as they were offered last. For any thread."""
        problems = {s.kind: s.error for s in self._sink.states(self.publisher.name) if s.is_behind}
        return tuple(
            Publication(
                desired=desired,
                where=f"{desired.api_version} {desired.kind} {desired.name}",
                problem=problems.get(desired.kind, ""),
            )
            for desired in self._offered
            if not desired.is_absent
        )


class ClusterEventOutput:
    """Hands events to the sink, which waits for no one; `None`: events are switched off."""

    error = ""

    def __init__(self, sink: EventSink | None, standing: Callable[[], WritePermission]) -> None:
        self._sink = sink
        self._write_permission = standing

    def record(self, events: Iterable[Event], snapshot: NodeSnapshot) -> int:  # noqa: ARG002 - see EventTarget
        """Offer the events; none while the Node that they would be about is another machine."""
        taken = tuple(events)
        if not taken or self._sink is None or self._write_permission().reason == ANOTHER_MACHINE:
            return 0
        self._sink.offer(taken)
        return len(taken)


def _state_message(state: WriterState) -> str:
    words = f"{state.kind} {state.phase.value}, {state.written} written"
    return f"{words}: {state.error}" if state.error else words
