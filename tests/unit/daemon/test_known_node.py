"""The Node on its way from the watch into the snapshot: not there yet, there, gone, made anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.daemon.cluster.known import Known
from agent.daemon.cluster.outlet import ClusterOutlet
from agent.kube.base import Request, Response
from agent.model.cluster.facts import NodeFacts
from agent.model.snapshot import NodeIdentity, NodeSnapshot
from agent.node.identity import Machine
from agent.node.store import SnapshotStore
from agent.publish.base import Desired
from agent.publish.cluster.state import Phase, WriterState
from agent.publish.eventing.event import Event
from agent.publish.eventing.sink import EventSink
from tests.clustered import NAME, node

OURS, OTHER = "a" * 32, "b" * 32
EVENT = Event(type="Warning", reason="DeviceFailed", message="m", about="Node", at_s=0.0)


class Uid:
    """Publishes the uid of the Node: what most objects have of it."""

    name = "uid"
    interval_s = 60.0

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:  # noqa: ARG002 - see Publisher
        name, body = snapshot.node.name, {"uid": snapshot.node.uid}
        return (Desired(file_name="d", api_version="v1", kind="Device", name=name, body=body),)


class Shelf:
    """A writer that writes at once."""

    def __init__(self) -> None:
        self.offers: list[list[object]] = []
        self.state = WriterState(kind="Device", name=NAME, publisher="uid", phase=Phase.IDLE)

    def offer(self, publisher: str, desired: tuple[Desired, ...]) -> None:
        assert publisher == "uid"
        self.offers.append([item.body["uid"] for item in desired])

    def states(self) -> tuple[WriterState, ...]:
        return (self.state,)


class Case:
    """A node's agent between what it is told of its Node and what it hands to be written."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name=NAME)))
        self.changes = 0
        machine = Machine(machine_id=OURS)
        self.known = Known(NAME, machine, self.store, self.clock, self.changed)
        self.shelf, self.sink = Shelf(), EventSink(NoApi(), NAME, self.clock, uid_of=str)
        event_loop = asyncio.get_running_loop()
        self.outlet = ClusterOutlet(
            self.shelf, self.sink, self.store, self.clock, self.known.standing, event_loop
        )
        self.run = self.outlet.run(Uid())
        self.events = self.outlet.events()

    def changed(self) -> None:
        self.changes += 1

    async def publish(self) -> list[list[object]]:
        self.run.run_once()
        await asyncio.sleep(0)
        return self.shelf.offers

    def say(self, *nodes: NodeFacts) -> None:
        self.known.nodes({found.name: found for found in nodes})


class NoApi:
    """Is never asked."""

    async def call(self, request: Request) -> Response:
        raise AssertionError(request)

    def stream(
        self, request: Request, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError(request, idle_s)


def own(uid: str, machine_id: str = OURS) -> NodeFacts:
    return replace(node(), uid=uid, machine_id=machine_id)


def test_nothing_is_offered_before_the_node_was_read_and_when_there_is_none() -> None:
    async def scenario() -> None:
        case = Case()
        assert await case.publish() == []
        assert case.known.standing().reason == "NodeNotRead"
        case.say()
        assert await case.publish() == []
        assert case.known.standing().reason == "NodeAbsent"
        assert case.run.check().message == "Device idle, 0 written"
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
        case.known.confirmed("node", read_s + 30, "")
        case.clock.advance(6 * 3600)
        case.known.confirmed("node", read_s + 30, "GET /api/v1/nodes: down")
        part = case.store.current.cluster.node
        assert (part.taken_s, part.error) == (read_s + 30, "GET /api/v1/nodes: down")
        assert await case.publish() == [["one"]]

    asyncio.run(scenario())


def test_of_a_node_that_was_never_read_the_age_is_unknown_whatever_the_server_says() -> None:
    async def scenario() -> None:
        case = Case()
        case.known.confirmed("node", 7.0, "GET /api/v1/nodes: 403 no")
        part = case.store.current.cluster.node
        assert (part.taken_s, part.error) == (None, "GET /api/v1/nodes: 403 no")
        assert "403 no" in case.known.standing().message

    asyncio.run(scenario())


def test_for_a_node_that_is_another_machine_nothing_is_offered_and_nothing_told_about_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        case = Case()
        for _ in range(3):
            case.say(own("theirs", OTHER))
        assert await case.publish() == []
        assert case.events.record([EVENT], case.store.current) == 0
        assert case.sink.state.counts.waiting == 0
        case.say(own("ours"))
        assert await case.publish() == [["ours"]]
        assert case.events.record([EVENT], case.store.current) == 1
        assert case.sink.state.counts.waiting == 1

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    said = [(one.message, vars(one)["reason"]) for one in caplog.records]
    assert said == [("node_judged", "NodeOfAnotherMachine"), ("node_judged", "")]


def test_events_wait_for_an_api_server_that_nobody_has_met_yet() -> None:
    async def scenario() -> None:
        case = Case()
        assert case.events.record([EVENT], case.store.current) == 1
        assert case.sink.state.counts.waiting == 1

    asyncio.run(scenario())


def test_an_object_that_the_server_lacks_fails_its_check_and_leaves_the_agent_ready() -> None:
    async def scenario() -> None:
        case = Case()
        case.say(own("one"))
        assert not case.run.check().ok  # it has not run yet
        await case.publish()
        assert case.run.check().ok
        case.shelf.state = replace(case.shelf.state, phase=Phase.FORBIDDEN, error="403", failed=2)
        check, status = case.run.check(), case.run.status
        assert (check.ok, check.gates_ready) == (False, False)
        assert check.message == "Device forbidden, 0 written: 403"
        assert (status.success, status.failed, status.error) == (False, 2, check.message)
        (shown,) = case.run.objects()
        assert (shown.where, shown.problem) == (f"v1 Device {NAME}", "403")

    asyncio.run(scenario())
