"""The Node on its way from the watch into the snapshot: not there yet, there, gone, made anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace

from agent.app.cluster_facts import ClusterFactsUpdater
from agent.app.cluster_sink import ClusterPublishSink
from agent.app.identity import MachineIdentity
from agent.clock import ManualClock
from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.events import EventSink
from agent.messages import MessageQueue
from agent.snapshot.cluster import NodeView
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.publications import DesiredObject, WriterPhase, WriterState
from agent.wire_formats.event import Event, EventReporter
from tests.clustered import NAME, node

OURS, OTHER = "a" * 32, "b" * 32
EVENT = Event(type="Warning", reason="DeviceFailed", message="m", object_kind="Node", at_s=0.0)


class Uid:
    """Publishes the uid of the Node: what most objects have of it."""

    name = "uid"
    interval_s = 60.0

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:  # noqa: ARG002 - see Publisher
        name, body = snapshot.node.name, {"uid": snapshot.node.uid}
        return (
            DesiredObject(file_name="d", api_version="v1", kind="Device", name=name, body=body),
        )


class Shelf:
    """A writer that writes at once."""

    def __init__(self) -> None:
        self.offers: list[list[object]] = []
        self.state = WriterState(kind="Device", name=NAME, publisher="uid", phase=WriterPhase.IDLE)

    def offer(self, publisher: str, desired: tuple[DesiredObject, ...]) -> None:
        assert publisher == "uid"
        self.offers.append([item.body["uid"] for item in desired])

    def states(self) -> tuple[WriterState, ...]:
        return (self.state,)


class Case:
    """A node's agent between what it is told of its Node and what it hands to be written."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name=NAME)))
        self.messages = MessageQueue()
        machine = MachineIdentity(machine_id=OURS)
        self.known = ClusterFactsUpdater(NAME, machine, self.store, self.clock, self.messages)
        self.shelf, self.sink = Shelf(), EventSink(NoApi(), EventReporter(name=NAME), self.clock)
        event_loop = asyncio.get_running_loop()
        self.outlet = ClusterPublishSink(
            self.shelf, self.sink, self.store, self.clock, machine, event_loop
        )
        self.runner = self.outlet.runner(Uid())
        self.event_output = self.outlet.event_output()

    @property
    def changes(self) -> int:
        """Count the messages since the last call."""
        return len(self.messages.drain())

    async def publish(self) -> list[list[object]]:
        self.runner.run_once()
        await asyncio.sleep(0)
        return self.shelf.offers

    def say(self, *nodes: NodeView) -> None:
        self.known.update_node({result.name: result for result in nodes})


class NoApi:
    """Is never asked."""

    async def call(self, request: ApiRequest) -> ApiResponse:
        raise AssertionError(request)

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError(request, idle_s)


def own(uid: str, machine_id: str = OURS) -> NodeView:
    return replace(node(), uid=uid, machine_id=machine_id)


def test_nothing_is_offered_before_the_node_was_read_and_when_there_is_none() -> None:
    async def scenario() -> None:
        case = Case()
        assert await case.publish() == []
        assert case.known.write_permission().reason == "NodeNotRead"
        case.say()
        assert await case.publish() == []
        assert case.known.write_permission().reason == "NodeAbsent"
        assert case.runner.check().message == "Device idle, 0 written"
        case.say(own("one"))
        assert await case.publish() == [["one"]]
        assert case.changes == 2

    asyncio.run(scenario())


def test_a_node_that_goes_leaves_its_objects_and_one_made_anew_owns_them() -> None:
    async def scenario() -> None:
        case = Case()
        case.say(own("one"))
        await case.publish()
        case.say()
        # no object is named any more: what the server has stays as it is
        assert await case.publish() == [["one"], []]
        assert case.store.current.node.uid == "one"
        case.say(own("two"))
        assert await case.publish() == [["one"], [], ["two"]]

    asyncio.run(scenario())


def test_while_the_api_server_is_away_the_node_stays_what_it_was_and_its_age_grows() -> None:
    async def scenario() -> None:
        case = Case()
        case.say(own("one"))
        read_s = case.clock.monotonic()
        case.clock.advance(30)
        case.known.confirm("node", read_s + 30, "")
        case.clock.advance(6 * 3600)
        case.known.confirm("node", read_s + 30, "GET /api/v1/nodes: down")
        part = case.store.current.cluster.node
        assert (part.taken_s, part.error) == (read_s + 30, "GET /api/v1/nodes: down")
        assert await case.publish() == [["one"]]

    asyncio.run(scenario())


def test_of_a_node_that_was_never_read_the_age_is_unknown_whatever_the_server_says() -> None:
    async def scenario() -> None:
        case = Case()
        case.known.confirm("node", 7.0, "GET /api/v1/nodes: 403 no")
        part = case.store.current.cluster.node
        assert (part.taken_s, part.error) == (None, "GET /api/v1/nodes: 403 no")
        assert "403 no" in case.known.write_permission().message

    asyncio.run(scenario())


def test_for_the_node_of_another_machine_nothing_is_offered_or_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        case = Case()
        for _ in range(3):
            case.say(own("theirs", OTHER))
        assert await case.publish() == []
        case.event_output.offer([EVENT], case.store.current)
        assert case.sink.state.counts.waiting == 0
        case.say(own("ours"))
        assert await case.publish() == [["ours"]]
        case.event_output.offer([EVENT], case.store.current)
        assert case.sink.state.counts.waiting == 1

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    output = [(record.message, vars(record)["reason"]) for record in caplog.records]
    assert output == [("node_judged", "NodeOfAnotherMachine"), ("node_judged", "")]


def test_events_wait_for_an_api_server_that_nobody_has_met_yet() -> None:
    async def scenario() -> None:
        case = Case()
        case.event_output.offer([EVENT], case.store.current)
        assert case.sink.state.counts.waiting == 1

    asyncio.run(scenario())


def test_an_object_that_the_server_lacks_fails_its_check_and_leaves_the_agent_ready() -> None:
    async def scenario() -> None:
        case = Case()
        case.say(own("one"))
        assert not case.runner.check().ok  # it has not run yet
        await case.publish()
        assert case.runner.check().ok
        case.shelf.state = replace(
            case.shelf.state, phase=WriterPhase.FORBIDDEN, error="403", failed=2
        )
        check, status = case.runner.check(), case.runner.status
        assert (check.ok, check.gates_ready) == (False, False)
        assert check.message == "Device forbidden, 0 written: 403"
        assert (status.success, status.failed, status.error) == (False, 2, check.message)
        (shown,) = case.runner.publications()
        assert (shown.where, shown.problem) == (f"v1 Device {NAME}", "403")

    asyncio.run(scenario())
