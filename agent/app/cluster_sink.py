"""The sink of a cluster: hands objects and events to the writers for the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from agent.app.identity import MachineIdentity, decide_write_permission
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
    """Queues objects for the writer; see `agent.kube.writer.api_writer.ApiWriter`."""

    def offer(self, publisher: str, desired: tuple[DesiredObject, ...]) -> None:
        """Set the desired objects; the latest ones apply. Belongs to the loop thread."""
        ...

    def states(self) -> tuple[WriterState, ...]:
        """Return the state of each object."""
        ...


class ClusterPublishSink:
    """Creates runners that pass their objects to the loop thread, which writes them."""

    def __init__(
        self,
        writer: ObjectQueue,
        sink: EventSink | None,
        store: SnapshotStore,
        clock: Clock,
        machine: MachineIdentity,
        event_loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Write nothing while the Node is not that of `machine`."""
        self._writer = writer
        self._sink = sink
        self._store = store
        self._clock = clock
        self._machine = machine
        self._event_loop = event_loop

    def runner(self, publisher: Publisher) -> PublisherRunner:
        """Return the runner of a publisher."""
        return ClusterPublisherRunner(self, publisher)

    def event_output(self) -> EventOutput:
        """Return the output of events."""
        return ClusterEventOutput(self._sink, self._machine)

    def render(self, publisher: Publisher) -> tuple[DesiredObject, ...]:
        """Return the desired objects; none while the Node is not known to be this machine's."""
        snapshot = self._store.current
        if not write_permission(self._machine, snapshot).is_allowed:
            return ()
        return publisher.render(snapshot, self._clock.wall())

    def offer(self, name: str, desired: tuple[DesiredObject, ...]) -> None:
        """Pass objects to the writer; may be called from any thread."""
        self._event_loop.call_soon_threadsafe(self._writer.offer, name, desired)

    def states(self, name: str) -> tuple[WriterState, ...]:
        """Return the states of one publisher's objects."""
        return tuple(state for state in self._writer.states() if state.publisher == name)

    def now_s(self) -> float:
        """Return the monotonic time."""
        return self._clock.monotonic()


class ClusterPublisherRunner:
    """One publisher. `run_once` renders on the thread that calls it; the loop thread writes."""

    def __init__(self, sink: ClusterPublishSink, publisher: Publisher) -> None:
        self.publisher = publisher
        self._sink = sink
        self._duration_s: float | None = None
        self._offered: tuple[DesiredObject, ...] = ()

    def run_once(self) -> None:
        """Render, and pass on objects that differ from the last ones.

        The caller's loop logs a failure.
        """
        began_s = self._sink.now_s()
        desired = self._sink.render(self.publisher)
        if desired != self._offered:
            self._sink.offer(self.publisher.name, desired)
            self._offered = desired
        self._duration_s = self._sink.now_s() - began_s

    def flush(self, deadline_s: float) -> bool:  # noqa: ARG002 - see PublisherRunner
        """Return at once: `ClusterService.stop` lets the writer finish."""
        return True

    @property
    def status(self) -> PublisherStatus:
        """Return the state of the objects, counted as the API server acknowledged them."""
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
        """Return whether all objects are written.

        It does not gate readiness: an agent out of service would not bring the API server back,
        and its metrics and grants are needed meanwhile.
        """
        states = self._sink.states(self.publisher.name)
        message = "; ".join(_state_message(state) for state in states) or "nothing to publish yet"
        return SelfCheck(
            name=f"publisher:{self.publisher.name}",
            ok=self._duration_s is not None and not any(state.is_behind for state in states),
            message=message,
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

    def __init__(self, sink: EventSink | None, machine: MachineIdentity) -> None:
        self._sink = sink
        self._machine = machine

    def offer(self, events: Iterable[Event], snapshot: NodeSnapshot) -> None:
        """Pass on the events; none while their Node is another machine."""
        if self._sink is None or write_permission(self._machine, snapshot).reason == (
            ANOTHER_MACHINE
        ):
            return
        self._sink.offer(events)

    def flush(self, deadline_s: float) -> bool:  # noqa: ARG002 - see EventOutput
        """Return at once: `ClusterService.stop` lets the sink finish."""
        return True


def write_permission(machine: MachineIdentity, snapshot: NodeSnapshot) -> WritePermission:
    """Return whether anything may be written for the Node now."""
    return decide_write_permission(machine, snapshot.node.name, snapshot.cluster.node)


def _state_message(state: WriterState) -> str:
    message = f"{state.kind} {state.phase.value}, {state.written} written"
    return f"{message}: {state.error}" if state.error else message
