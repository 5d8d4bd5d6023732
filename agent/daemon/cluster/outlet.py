"""The outlet of a cluster: publishers' objects and events on their way to the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from agent.clock import Clock
from agent.daemon.telling.outlet import EventTarget, Run
from agent.model.selfcheck import Check
from agent.model.snapshot import NodeSnapshot
from agent.node.identity import ANOTHER_MACHINE, Standing
from agent.node.store import SnapshotStore
from agent.publish.base import Desired, Publisher
from agent.publish.cluster.state import WriterState
from agent.publish.eventing.event import Event
from agent.publish.eventing.sink import EventSink
from agent.publish.status import PublisherStatus
from agent.publish.wire.yaml_text import to_yaml
from agent.web.base import PublishedObject


class Writer(Protocol):
    """Writes objects at the API server; see `agent.publish.cluster.outbox.Outbox`."""

    def offer(self, publisher: str, desired: tuple[Desired, ...]) -> None:
        """Take what is wanted now; the latest counts. Belongs to the loop thread."""
        ...

    def states(self) -> tuple[WriterState, ...]:
        """Say how each object does."""
        ...


class ClusterOutlet:
    """Makes runs that hand their objects to the loop thread, where they are written."""

    def __init__(
        self,
        writer: Writer,
        sink: EventSink | None,
        store: SnapshotStore,
        clock: Clock,
        standing: Callable[[], Standing],
        event_loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`standing` says whether anything may be written for this Node; of any thread."""
        self._writer = writer
        self._sink = sink
        self._store = store
        self._clock = clock
        self._standing = standing
        self._event_loop = event_loop

    def run(self, publisher: Publisher, before: Callable[[], None] | None = None) -> Run:
        """Return a publisher's run."""
        return ClusterRun(self, publisher, before)

    def events(self) -> EventTarget:
        """Return where events go."""
        return SinkTarget(self._sink, self._standing)

    def render(self, publisher: Publisher) -> tuple[Desired, ...]:
        """Return what is wanted now; nothing while the Node is not known to be this machine's."""
        if not self._standing().writes:
            return ()
        return publisher.render(self._store.current, self._clock.wall())

    def offer(self, name: str, desired: tuple[Desired, ...]) -> None:
        """Hand objects to the writer; for any thread."""
        self._event_loop.call_soon_threadsafe(self._writer.offer, name, desired)

    def states(self, name: str) -> tuple[WriterState, ...]:
        """Return how the objects of one publisher do."""
        return tuple(state for state in self._writer.states() if state.publisher == name)

    def now_s(self) -> float:
        """Return the monotonic time."""
        return self._clock.monotonic()


class ClusterRun:
    """One publisher. `run_once` renders on the thread it is called on; writing happens apart."""

    def __init__(
        self, outlet: ClusterOutlet, publisher: Publisher, before: Callable[[], None] | None
    ) -> None:
        self.publisher = publisher
        self._outlet = outlet
        self._before = before
        self._duration_s: float | None = None
        self._offered: tuple[Desired, ...] = ()

    @property
    def reports(self) -> bool:
        """Say whether this publisher tells of usage."""
        return self._before is not None

    def run_once(self) -> None:
        """Render, and offer what differs from the last time; a failure is the loop's to tell."""
        began_s = self._outlet.now_s()
        if self._before is not None:
            self._before()
        desired = self._outlet.render(self.publisher)
        if desired != self._offered:
            self._outlet.offer(self.publisher.name, desired)
            self._offered = desired
        self._duration_s = self._outlet.now_s() - began_s

    @property
    def status(self) -> PublisherStatus:
        """Say how the objects do; counts are of objects, as the API server acknowledged them."""
        states = self._outlet.states(self.publisher.name)
        acks = [state.last_ack_s for state in states if state.last_ack_s is not None]
        behind = [state for state in states if state.behind]
        return PublisherStatus(
            name=self.publisher.name,
            success=not behind,
            duration_s=self._duration_s,
            last_success_s=max(acks, default=None),
            written=sum(state.written for state in states),
            unchanged=sum(state.unchanged for state in states),
            failed=sum(state.failed for state in states),
            error="; ".join(_told(state) for state in behind),
        )

    def check(self) -> Check:
        """Say what became of the objects.

        It does not gate readiness: an agent out of service would not bring the API server back,
        and its metrics and grants are needed meanwhile.
        """
        states = self._outlet.states(self.publisher.name)
        words = "; ".join(_told(state) for state in states) or "nothing to publish yet"
        return Check(
            name=f"publisher:{self.publisher.name}",
            ok=self._duration_s is not None and not any(state.behind for state in states),
            message=words,
            gates_ready=False,
        )

    def objects(self) -> tuple[PublishedObject, ...]:
        """Return what was offered last, as text."""
        problems = {s.kind: s.error for s in self._outlet.states(self.publisher.name) if s.behind}
        return tuple(
            PublishedObject(
                kind=desired.kind,
                text=to_yaml(desired.body).decode(),
                where=f"{desired.api_version} {desired.kind} {desired.name}",
                problem=problems.get(desired.kind, ""),
            )
            for desired in self._offered
            if not desired.absent
        )


class SinkTarget:
    """Hands events to the sink, which waits for no one; `None`: events are switched off."""

    error = ""

    def __init__(self, sink: EventSink | None, standing: Callable[[], Standing]) -> None:
        self._sink = sink
        self._standing = standing

    def record(self, events: Iterable[Event], snapshot: NodeSnapshot) -> int:  # noqa: ARG002 - see EventTarget
        """Offer the events; none while the Node that they would be about is another machine."""
        taken = tuple(events)
        if not taken or self._sink is None or self._standing().reason == ANOTHER_MACHINE:
            return 0
        self._sink.offer(taken)
        return len(taken)


def _told(state: WriterState) -> str:
    words = f"{state.kind} {state.phase.value}, {state.written} written"
    return f"{words}: {state.error}" if state.error else words
