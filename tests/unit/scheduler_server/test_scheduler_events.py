"""Events of the scheduler's own, as a strict API server stores them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.clock import ManualClock, SystemClock
from agent.kube.api import ApiRequest
from agent.kube.endpoint import InClusterTarget
from agent.kube.event_backlog import REPEAT_S
from agent.kube.events import EventSink
from agent.kube.session import ApiSession, open_session
from agent.wire_formats.event import EventReporter
from plugins.scheduler.allocation_audit import AllocationProblem, ProblemKind
from plugins.scheduler.pod_object import PodKey
from plugins.scheduler.server.extender_wire import BindRequest
from plugins.scheduler.server.lease import LeaderApi, NotLeader
from plugins.scheduler.server.scheduler_events import COMPONENT, SchedulerEvents
from tests.apiserver import ApiServer
from tests.apiserver.rbac import read_roles
from tests.patience import PATIENCE_S

ROLES = Path(__file__).parents[3] / "daemonset" / "scheduler" / "rbac.yaml"
BINDING = BindRequest(namespace="team-a", name="p", uid="u-p", node="n")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(roles=ROLES) as api:
        for name in ("team-a", "kube-system"):
            api.put({"kind": "Namespace", "metadata": {"name": name}})
        yield api


def run(api: ApiServer, scenario: Callable[[ApiSession], Awaitable[None]]) -> None:
    async def play() -> None:
        target = InClusterTarget(url=api.url, folder=str(api.serviceaccount_dir))
        session = await open_session(target, SystemClock(), {})
        try:
            await scenario(session)
        finally:
            await session.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))


def report(api: ApiServer, *steps: Callable[[SchedulerEvents], None]) -> list[Any]:
    """Take steps a minute apart, send what they report, and return the stored events."""

    async def scenario(session: ApiSession) -> None:
        clock = ManualClock()
        reporter = EventReporter(component=COMPONENT, name="replica-0")
        sink = EventSink(session, reporter, clock)
        for step in steps:
            step(SchedulerEvents(sink, clock))
            await sink.step()
            clock.advance(REPEAT_S)
        assert await sink.step() is None
        assert not sink.state.error

    run(api, scenario)
    return list(api.list("events"))


def test_a_new_leader_is_reported_on_its_lease(server: ApiServer) -> None:
    (event,) = report(
        server,
        lambda events: events.report_leadership(
            "replica-0_x", "kube-system", "xpu-scheduler", "u-lease"
        ),
    )
    assert event["metadata"]["namespace"] == "kube-system"
    assert event["regarding"] == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "name": "xpu-scheduler",
        "namespace": "kube-system",
        "uid": "u-lease",
    }
    assert (event["reason"], event["type"]) == ("LeaderElection", "Normal")
    assert event["note"] == "replica-0_x became leader"
    assert event["reportingController"] == "xpu-scheduler"
    assert event["reportingInstance"] == "replica-0"


def test_a_binding_that_the_server_refuses_is_reported_on_the_pod(server: ApiServer) -> None:
    (event,) = report(server, lambda events: events.report_failed_binding(BINDING, "no", "refused"))
    assert event["regarding"]["name"] == "p"
    assert event["regarding"]["uid"] == "u-p"
    assert (event["reason"], event["note"]) == ("BindingRefused", "no")


@pytest.mark.parametrize("outcome", ["taken", "gone", "changed", "uncertain", "not_leader"])
def test_what_kube_scheduler_tries_again_and_tells_itself_is_not_reported(
    server: ApiServer, outcome: str
) -> None:
    assert report(server, lambda events: events.report_failed_binding(BINDING, "x", outcome)) == []


def test_devices_that_were_not_marked_are_one_series_of_their_node(server: ApiServer) -> None:
    def fail(name: str) -> Callable[[SchedulerEvents], None]:
        request = BindRequest(namespace="team-a", name=name, uid=name, node="n")
        text = f"{name}: why"
        return lambda events: events.report_failed_binding(request, text, "not_marked", "u-device")

    (event,) = report(server, fail("p"), fail("q"), fail("r"))
    assert event["regarding"]["kind"] == "Device"
    assert event["regarding"]["name"] == "n"
    assert event["regarding"]["uid"] == "u-device"
    assert event["reason"] == "DeviceNotMarked"
    assert event["series"]["count"] == 3


def test_grants_that_cannot_be_are_reported_where_people_look(server: ApiServer) -> None:
    def problems(events: SchedulerEvents) -> None:
        key = PodKey("u-p", "team-a", "p")
        for kind, pod, node in (
            (ProblemKind.UNREADABLE, key, ""),
            (ProblemKind.UNKNOWN_DEVICE, key, ""),
            (ProblemKind.DOUBLE_GRANTED, None, "n"),
        ):
            events.report_problem(AllocationProblem(kind=kind, message="m", pod=pod, node=node))

    events = {one["reason"]: one["regarding"] for one in report(server, problems)}
    assert {reason: (of["kind"], of["name"]) for reason, of in events.items()} == {
        "GrantUnreadable": ("Pod", "p"),
        "GrantOfUnknownDevice": ("Pod", "p"),
        "DeviceDoubleGranted": ("Device", "n"),
    }


def test_the_role_grants_what_events_need(server: ApiServer) -> None:
    report(server, *(lambda events: events.report_leadership("a", "kube-system", "l"),) * 2)
    verbs = {request.verb for request in server.requests(resource="events")}
    rule = next(rule for rule in read_roles(ROLES) if "events" in rule.resources)
    assert verbs == set(rule.verbs)


class Leadership:
    """A lease that the replica holds until `is_leader` is changed."""

    is_leader = True


def test_a_replica_that_lost_the_lease_reads_and_does_not_write(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        elector = Leadership()
        api = LeaderApi(session, elector)
        body = b'{"metadata":{"name":"x"}}'
        write = ApiRequest(method="POST", path="/api/v1/namespaces/team-a/pods", body=body)
        read = ApiRequest(method="GET", path="/api/v1/pods")
        with pytest.raises(Exception, match="403"):
            await api.call(write)
        elector.is_leader = False
        with pytest.raises(NotLeader):
            await api.call(write)
        assert (await api.call(read)).status == 200

    run(server, scenario)
    assert len(server.requests(method="POST", resource="pods")) == 1
