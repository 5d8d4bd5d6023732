"""Telling events to an API server that refuses, fails, or is away for hours; time is simulated."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from agent.clock import ManualClock
from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.errors import (
    ApiError,
    BadResponse,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    StatusCause,
    Throttled,
    TooLarge,
    Unauthorized,
    Unreachable,
)
from agent.kube.event_backlog import MAX_WAITING
from agent.kube.events import (
    BLOCKED_S,
    FORBIDDEN_S,
    NAMESPACE_TERMINATING,
    EventOutcome,
    EventSink,
    classify_event_error,
)
from agent.snapshot.pod import PodRef
from agent.wire_formats.event import Event, EventReporter
from tests.patience import PATIENCE_S

ENDING = (StatusCause("namespace", "is being terminated", NAMESPACE_TERMINATING),)


class Line:
    """The wire to an API server: `fails` says what an error a request meets, if any."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []  # method, path, body
        self.calls = 0
        self.error: ApiError | None = None
        self.bad: dict[str, ApiError] = {}  # by text in the body

    async def call(self, request: ApiRequest) -> ApiResponse:
        self.calls += 1
        await asyncio.sleep(0)
        text = request.body.decode()
        error = self.error or next((e for key, e in self.bad.items() if key in text), None)
        if error is not None:
            raise error
        self.sent.append((request.method, request.path, json.loads(text)))
        return ApiResponse(status=201, headers={}, body=b"{}")

    def stream(self, request: ApiRequest, idle_s: float) -> AbstractAsyncContextManager[Any]:
        raise AssertionError(f"{request} {idle_s}: events are not watched")

    def notes(self) -> list[str]:
        return [body["note"] for method, _, body in self.sent if method == "POST"]


def event(message: str, at_s: float = 0.0, namespace: str = "") -> Event:
    pod = PodRef(namespace=namespace, name=message) if namespace else None
    about = "Pod" if pod else "Node"
    return Event(
        type="Normal", reason=f"R{message}", message=message, object_kind=about, at_s=at_s, pod=pod
    )


REPORTER = EventReporter(name="node-a")


class SameUid:
    """One uid for every object."""

    def uid(self, kind: str) -> str:
        return "u-1" if kind else ""


def sink_of(line: Line, clock: ManualClock) -> EventSink:
    return EventSink(line, REPORTER, clock, uids=SameUid(), uniform=lambda _, high: high)


def step(sink: EventSink) -> float | None:
    return asyncio.run(sink.step())


@pytest.mark.parametrize(
    ("error", "posted", "patched"),
    [
        (Forbidden("w", "d", code=403), EventOutcome.FORBIDDEN, EventOutcome.FORBIDDEN),
        (Forbidden("w", "d", code=403, causes=ENDING), EventOutcome.REFUSED, EventOutcome.REFUSED),
        (NotFound("w", "d", code=404), EventOutcome.REFUSED, EventOutcome.RENEW),
        (Invalid("w", "d", code=422), EventOutcome.REFUSED, EventOutcome.REFUSED),
        (Invalid("w", "d", code=400), EventOutcome.REFUSED, EventOutcome.REFUSED),
        (TooLarge("w", "d", code=413), EventOutcome.REFUSED, EventOutcome.REFUSED),
        (Invalid("w", "d", code=415), EventOutcome.REFUSED, EventOutcome.REFUSED),
        (Conflict("w", "d", code=409), EventOutcome.EXISTS, EventOutcome.RETRY),
        (Unreachable("w", "d"), EventOutcome.RETRY, EventOutcome.RETRY),
        (Unauthorized("w", "d", code=401), EventOutcome.RETRY, EventOutcome.RETRY),
        (Expired("w", "d", code=410), EventOutcome.RETRY, EventOutcome.RETRY),
        (Throttled("w", "d", code=429), EventOutcome.RETRY, EventOutcome.RETRY),
        (ServerError("w", "d", code=500), EventOutcome.RETRY, EventOutcome.RETRY),
        (BadResponse("w", "d"), EventOutcome.RETRY, EventOutcome.RETRY),
    ],
)
def test_every_error_has_its_meaning(
    error: ApiError, posted: EventOutcome, patched: EventOutcome
) -> None:
    assert classify_event_error(error, creating=True, of_pod=False) is posted
    assert classify_event_error(error, creating=False, of_pod=False) is patched


@pytest.mark.parametrize("creating", [True, False])
def test_what_a_users_namespace_forbids_is_forbidden_there_only(creating: bool) -> None:
    quota = Forbidden("POST", "exceeded quota: events, limited: count/events=10", code=403)
    assert classify_event_error(quota, creating=creating, of_pod=True) is EventOutcome.REFUSED


def test_repeats_are_a_patch_of_the_same_object() -> None:
    line, clock = Line(), ManualClock()
    sink = sink_of(line, clock)
    sink.offer([event("a", 1.0)])
    assert step(sink) is None
    sink.offer([event("a", 2.0), event("a", 3.0)])
    assert step(sink) == 60.0
    clock.advance(60)
    assert step(sink) is None
    (post, created_at, created), (patch, patched_at, patched) = line.sent
    assert (post, patch) == ("POST", "PATCH")
    assert patched_at == f"{created_at}/{created['metadata']['name']}"
    assert patched == {"series": {"count": 3, "lastObservedTime": "1970-01-01T00:00:03.000000Z"}}
    assert created["regarding"]["uid"] == "u-1"


def test_events_wait_until_the_node_is_known_to_be_this_machine() -> None:
    line, is_own_node = Line(), [False]
    sink = EventSink(line, REPORTER, ManualClock(), may_send=lambda: is_own_node[0])
    sink.offer([event("a")])
    assert step(sink) == BLOCKED_S
    assert (line.sent, sink.state.counts.waiting) == ([], 1)
    is_own_node[0] = True
    assert step(sink) is None
    assert line.notes() == ["a"]


def test_an_api_that_is_away_for_six_hours_costs_no_memory_and_keeps_the_order() -> None:
    line, clock = Line(), ManualClock()
    sink = sink_of(line, clock)
    line.error = Unreachable("POST /apis", "connection refused")
    sink.offer([event("warm")])
    step(sink)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for minute in range(360):
        sink.offer([event(f"{minute:03}"), event("flapping", minute * 60.0)])
        clock.advance(60)
        step(sink)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 5_000_000
    assert line.calls <= 362, "backed off: at most one try a minute"
    state = sink.state
    assert state.counts.waiting == MAX_WAITING
    assert state.counts.dropped >= 360 - MAX_WAITING
    assert "connection refused" in state.error
    line.error = None
    clock.advance(60)
    while step(sink) is not None:
        clock.advance(60)
    notes = [note for note in line.notes() if note != "flapping"]
    assert notes == sorted(notes)
    assert notes[-1] == "359"
    assert sink.state.error == ""
    assert len(line.sent) >= MAX_WAITING


def test_without_the_right_it_is_off_with_one_line_and_tried_ever_more_seldom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line, clock = Line(), ManualClock()
    sink = sink_of(line, clock)
    line.error = Forbidden("POST events", "cannot create events", code=403)
    sink.offer([event("a")])
    pauses = []
    for _ in range(10):
        pauses.append(step(sink) or 0.0)
        clock.advance(pauses[-1])
        sink.offer([event("b")])
    # an API server that starts refuses everything for some seconds, before it has read the roles
    assert pauses[:2] == [60.0, 120.0]
    assert pauses[-1] == FORBIDDEN_S
    assert line.calls == len(pauses)
    assert sink.state.is_forbidden
    assert [record.getMessage() for record in caplog.records] == ["events_off"]
    line.error = None
    step(sink)
    assert line.notes() == ["a", "b"]
    assert not sink.state.is_forbidden
    line.error = Forbidden("POST events", "cannot create events", code=403)
    sink.offer([event("c")])
    assert step(sink) == 60.0


@pytest.mark.parametrize(
    "error",
    [
        Invalid("POST", "note: too long", code=422),
        NotFound("POST", "no namespace", code=404),
        Forbidden("POST", "being terminated", code=403, causes=ENDING),
        Forbidden("POST", "exceeded quota: events", code=403),
        TooLarge("POST", "entity", code=413),
    ],
)
def test_one_bad_event_costs_itself_only(error: ApiError) -> None:
    line, clock = Line(), ManualClock()
    sink = sink_of(line, clock)
    line.bad["bad"] = error
    sink.offer([event("bad", namespace="gone"), event("good")])
    assert step(sink) is None
    assert line.notes() == ["good"]
    assert sink.state.counts.refused == 1
    count = line.calls
    sink.offer([event("bad", namespace="gone")])
    clock.advance(120)
    assert step(sink) is None
    assert line.calls == count


def test_an_object_that_expired_is_followed_by_a_new_one() -> None:
    line, clock = Line(), ManualClock()
    sink = sink_of(line, clock)
    sink.offer([event("a", 1.0)])
    step(sink)
    sink.offer([event("a", 90.0)])
    clock.advance(90)
    line.bad["lastObservedTime"] = NotFound("PATCH", "not found", code=404)
    assert step(sink) is None
    names = [body["metadata"]["name"] for method, _, body in line.sent if method == "POST"]
    assert len(set(names)) == 2


def test_an_event_with_a_lost_answer_is_not_sent_twice() -> None:
    line, clock = Line(), ManualClock()
    sink = sink_of(line, clock)
    line.error = Conflict("POST", "already exists", code=409, reason="AlreadyExists")
    sink.offer([event("a")])
    assert step(sink) is None
    assert line.calls == 1
    assert sink.state.counts.created == 1


def test_an_event_that_the_server_stumbles_over_does_not_hold_up_the_others() -> None:
    line, clock = Line(), ManualClock()
    sink = sink_of(line, clock)
    line.bad['"bad"'] = ServerError("POST", "webhook failed", code=500)
    sink.offer([event("bad"), *(event(f"good{n}") for n in range(5))])
    for _ in range(12):
        clock.advance(step(sink) or 0.0)
    assert line.notes() == [f"good{n}" for n in range(5)]
    assert sink.state.counts.waiting == 1


def test_a_retry_after_of_the_server_is_respected() -> None:
    line, clock = Line(), ManualClock()
    sink = sink_of(line, clock)
    line.error = Throttled("POST", "slow down", code=429, retry_after_s=40.0)
    sink.offer([event("a")])
    assert (step(sink) or 0) >= 40.0
    clock.advance(30)
    assert step(sink) is not None
    assert line.calls == 1


def test_offers_of_other_threads_wake_it_and_never_wait() -> None:
    line = Line()
    sink = sink_of(line, ManualClock())

    async def scenario() -> None:
        running = asyncio.create_task(sink.run())
        await asyncio.sleep(0)
        for number in range(5):
            thread = threading.Thread(target=sink.offer, args=([event(str(number))],))
            thread.start()
            thread.join()
        while len(line.sent) < 5:
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert line.notes() == ["0", "1", "2", "3", "4"]
    sink.offer([event("after the end")])
    assert sink.state.counts.waiting == 1
