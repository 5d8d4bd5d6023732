"""Events at a strict API server: what it stores, refuses, loses and forgets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.clock import ManualClock, SystemClock
from agent.kube.endpoint import InClusterTarget
from agent.kube.events import EventSink
from agent.kube.session import open_session
from agent.snapshot.pod import PodRef
from agent.wire_formats.event import Event, EventReporter
from tests.apiserver import ApiServer, Fault
from tests.apiserver.rbac import read_roles
from tests.patience import PATIENCE_S

ROLES = Path(__file__).parents[3] / "daemonset" / "base" / "rbac.yaml"
AT_S = 1_767_323_045.25


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(nodes=("node-a",), roles=ROLES) as api:
        api.put({"kind": "Namespace", "metadata": {"name": "team-a"}})
        yield api


def send(api: ApiServer, scenario: Callable[[EventSink, ManualClock], Awaitable[None]]) -> None:
    """Run a scenario with a sink whose time is simulated and whose wire is real."""

    async def run() -> None:
        folder = str(api.serviceaccount_dir)
        session = await open_session(InClusterTarget(url=api.url, folder=folder), SystemClock(), {})
        clock = ManualClock()
        node = api.get("Node", "node-a")
        assert node is not None
        uid = node["metadata"]["uid"]
        sink = EventSink(
            session,
            EventReporter(name="node-a"),
            clock,
            uids=NodeUid(uid),
            deadline_s=5.0,
            uniform=lambda low, _: low,
        )
        try:
            await scenario(sink, clock)
        finally:
            await session.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


class NodeUid:
    """The uid of the Node alone."""

    def __init__(self, uid: str) -> None:
        self._uid = uid

    def uid(self, kind: str) -> str:
        return self._uid if kind == "Node" else ""


def event(message: str, about: str = "Node", at_s: float = AT_S, namespace: str = "") -> Event:
    pod = PodRef(namespace=namespace, name="train-0", uid="p-1") if namespace else None
    return Event(
        type="Warning", reason="Something", message=message, object_kind=about, at_s=at_s, pod=pod
    )


def stored(api: ApiServer, namespace: str = "default") -> list[Any]:
    return [item for item in api.list("events") if item["metadata"]["namespace"] == namespace]


def test_events_of_node_device_and_pod_are_stored_where_people_look(server: ApiServer) -> None:
    async def scenario(sink: EventSink, _: ManualClock) -> None:
        sink.offer([event("n"), event("d", "Device"), event("p", "Pod", namespace="team-a")])
        assert await sink.step() is None
        assert sink.state.counts.created == 3

    send(server, scenario)
    kinds = {item["regarding"]["kind"] for item in stored(server)}
    assert kinds == {"Node", "Device"}
    (pods,) = stored(server, "team-a")
    assert pods["regarding"]["uid"] == "p-1"
    assert pods["eventTime"] == "2026-01-02T03:04:05.250000Z"


def test_repeats_become_the_series_of_the_same_object(server: ApiServer) -> None:
    async def scenario(sink: EventSink, clock: ManualClock) -> None:
        sink.offer([event("a")])
        await sink.step()
        sink.offer([event("a", at_s=AT_S + n) for n in range(1, 5)])
        clock.advance(60)
        assert await sink.step() is None

    send(server, scenario)
    (events,) = stored(server)
    assert events["series"] == {"count": 5, "lastObservedTime": "2026-01-02T03:04:09.250000Z"}


def test_what_people_write_wildly_is_stored_all_the_same(server: ApiServer) -> None:
    wild = ["\U0001f600" * 2000, "\0\x1f\ud800", "", "line\nline", "x" * 5000]

    async def scenario(sink: EventSink, _: ManualClock) -> None:
        sink.offer([event(text) for text in wild])
        assert await sink.step() is None
        assert sink.state.counts.refused == 0

    send(server, scenario)
    assert len(stored(server)) == len(wild)


def test_an_answer_that_was_lost_leaves_one_object(server: ApiServer) -> None:
    server.faults.add(Fault(resource="events", lose_answer=True))

    async def scenario(sink: EventSink, clock: ManualClock) -> None:
        sink.offer([event("a")])
        clock.advance(await sink.step() or 0.0)
        assert await sink.step() is None
        assert sink.state.counts.created == 1

    send(server, scenario)
    assert len(stored(server)) == 1


def test_an_event_that_its_time_to_live_took_is_written_anew(server: ApiServer) -> None:
    async def scenario(sink: EventSink, clock: ManualClock) -> None:
        sink.offer([event("a")])
        await sink.step()
        (first,) = stored(server)
        server.delete("events", first["metadata"]["name"], "default")
        sink.offer([event("a", at_s=AT_S + 90)])
        clock.advance(90)
        assert await sink.step() is None

    send(server, scenario)
    (events,) = stored(server)
    assert events["eventTime"] == "2026-01-02T03:05:35.250000Z"
    assert "series" not in events


def test_a_namespace_that_is_gone_costs_its_own_event_only(server: ApiServer) -> None:
    async def scenario(sink: EventSink, _: ManualClock) -> None:
        sink.offer([event("p", "Pod", namespace="gone"), event("n")])
        assert await sink.step() is None
        assert sink.state.counts.refused == 1

    send(server, scenario)
    assert [item["note"] for item in stored(server)] == ["n"]


def test_a_namespace_that_is_being_deleted_does_not_switch_events_off(server: ApiServer) -> None:
    cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace", "message": "ending"}
    server.faults.add(
        Fault(path="/namespaces/team-a/", status=403, reason="Forbidden", causes=(cause,))
    )

    async def scenario(sink: EventSink, _: ManualClock) -> None:
        sink.offer([event("p", "Pod", namespace="team-a"), event("n")])
        assert await sink.step() is None
        assert not sink.state.is_forbidden

    send(server, scenario)
    assert [item["note"] for item in stored(server)] == ["n"]


def test_without_the_right_events_are_off_until_it_is_granted(server: ApiServer) -> None:
    rule = next(rule for rule in read_roles(ROLES) if "events" in rule.resources)
    server.revoke(rule)

    async def scenario(sink: EventSink, clock: ManualClock) -> None:
        sink.offer([event("a")])
        pause_s = await sink.step()
        assert pause_s is not None
        assert sink.state.is_forbidden
        server.grant(rule)
        clock.advance(pause_s)
        assert await sink.step() is None
        assert not sink.state.is_forbidden

    send(server, scenario)
    assert [item["note"] for item in stored(server)] == ["a"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(resource="events", status=500),
        Fault(resource="events", status=503, retry_after_s=5.0),
        Fault(resource="events", status=429, retry_after_s=5.0),
        Fault(resource="events", reset=True),
        Fault(resource="events", html=True, status=502),
    ],
)
def test_an_event_outlives_a_server_in_trouble(server: ApiServer, fault: Fault) -> None:
    server.faults.add(fault)

    async def scenario(sink: EventSink, clock: ManualClock) -> None:
        sink.offer([event("a")])
        waits_s = await sink.step()
        assert waits_s is not None
        assert sink.state.error
        clock.advance(waits_s)
        assert await sink.step() is None

    send(server, scenario)
    assert len(stored(server)) == 1
