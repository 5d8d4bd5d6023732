from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from agent.clock import ManualClock
from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.errors import Expired, Forbidden, NotFound, ServerError, Unreachable
from agent.kube.resources import OWN_NODE, OWN_NODE_METRIC, OWN_NODE_SLO, OWN_PODS
from agent.kube.watch import machine
from agent.kube.watch.machine import (
    NODE_LIMITS,
    RELIST,
    RETRY,
    DelayCommand,
    ListWatchState,
    PageSummary,
    StreamCommand,
    StreamEnd,
    WatchFailure,
    WatchFailureReason,
)
from agent.kube.watch.reflector import Reflector
from tests.unit.kube_watch.script import (
    EndOfScript,
    Followed,
    Moment,
    ScriptedApi,
    bookmark,
    line,
    page,
    pod,
    status,
)

HOUR_S = 3600.0


class Outage(ScriptedApi):
    """A server with one pod that is away between two moments, and has compacted when it is back."""

    def __init__(self, clock: ManualClock, *, since_s: float, until_s: float, end_s: float) -> None:
        super().__init__(clock)
        self.since_s, self.until_s, self.end_s = since_s, until_s, end_s
        self.served: Counter[str] = Counter()
        self.request_count = 0

    @property
    def back(self) -> bool:
        return self.clock.mono_s >= self.until_s

    def _here(self) -> None:
        if self.clock.mono_s >= self.end_s:
            raise EndOfScript
        if self.since_s <= self.clock.mono_s < self.until_s:
            raise Unreachable("GET", "connection refused")

    async def call(self, request: ApiRequest) -> ApiResponse:
        assert request.method == "GET"
        self.request_count += 1
        self._here()
        self.served["lists after the outage" if self.back else "lists"] += 1
        version = 90_000 if self.back else 7
        body = page(version, pod("new" if self.back else "old", 3))
        return ApiResponse(status=200, headers={}, body=body)

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        assert idle_s > float(dict(request.query)["timeoutSeconds"])
        return self._opened(request)

    @contextlib.asynccontextmanager
    async def _opened(self, request: ApiRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        self.request_count += 1
        self._here()
        if self.back and int(dict(request.query)["resourceVersion"]) < 90_000:
            raise Expired("GET", "too old", code=410)
        yield self._quiet()

    async def _quiet(self) -> AsyncIterator[bytes]:
        self.clock.advance(300.0)
        if self.since_s <= self.clock.mono_s < self.until_s:
            raise Unreachable("GET", "connection refused")
        return
        yield b""


def away(hours: float, seed: int = 1) -> tuple[Outage, Followed]:
    followed = Followed(uniform=random.Random(seed).uniform)
    clock = followed.clock
    since_s = clock.mono_s + 1000
    until_s = since_s + hours * HOUR_S
    api = Outage(clock, since_s=since_s, until_s=until_s, end_s=until_s + 1000)
    followed.watch = Reflector(
        OWN_PODS,
        api,
        on_change=followed.views.append,
        clock=clock,
        sleep=followed.slept,
        uniform=random.Random(seed).uniform,
    )
    return api, followed.run()


def test_after_six_hours_without_a_server_one_list_brings_the_view_back() -> None:
    api, followed = away(6)
    assert api.served == {"lists": 1, "lists after the outage": 1}
    assert followed.names == ["d/new"]
    assert [sorted(view) for view in followed.views] == [["d/old"], ["d/new"]]


def test_an_unreachable_server_is_called_every_half_minute_at_most() -> None:
    api, followed = away(6)
    assert api.request_count < 6 * HOUR_S / 10
    assert max(followed.waits) <= RETRY.max_s
    assert min(followed.waits) >= 0.08


def test_an_outage_leaves_nothing_behind() -> None:
    away(0.1)  # what is made once
    remaining_bytes = []
    for hours in (0.5, 6):
        gc.collect()
        tracemalloc.start()
        try:
            followed = away(hours)[1]
            followed.waits.clear()
            gc.collect()
            remaining_bytes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert remaining_bytes[1] - remaining_bytes[0] < 16 * 1024


def test_a_fleet_that_must_list_anew_spreads_over_seconds() -> None:
    state = ListWatchState(version="7")
    seconds = Counter(
        int(step.command.seconds)
        for node in range(5000)
        if isinstance(
            (step := machine.step(state, EXPIRY, random.Random(node).uniform)).command, DelayCommand
        )
    )
    assert sum(seconds.values()) == 5000
    assert max(seconds.values()) < 800
    assert min(seconds) >= 1


EXPIRY = WatchFailure(reason=WatchFailureReason.EXPIRED)


def test_lists_that_never_help_become_rare() -> None:
    state, waited_s = ListWatchState(), 0.0
    for _ in range(100):
        listed = machine.step(state, PageSummary(version="7", token="", objects=1, bytes=1), min)
        assert isinstance(listed.command, StreamCommand)
        refused = machine.step(listed.state, EXPIRY, min)
        assert isinstance(refused.command, DelayCommand)
        state, waited_s = refused.state, waited_s + refused.command.seconds
    assert waited_s > 90 * RELIST.max_s / 10


def test_a_server_that_answers_nothing_but_errors_is_listed_anew_in_the_end() -> None:
    busy = WatchFailure(reason=WatchFailureReason.ANSWERED)
    state = ListWatchState(version="7")
    for _ in range(machine.MAX_REFUSED_ANSWERS - 1):
        state = machine.step(state, busy).state
        assert state.version == "7"
    assert machine.step(state, busy).state.version == ""


def test_a_server_that_is_away_is_never_doubted() -> None:
    state = ListWatchState(version="7")
    for _ in range(1000):
        state = machine.step(state, WatchFailure(reason=WatchFailureReason.UNREACHABLE)).state
    assert state.version == "7"


def test_a_server_that_is_overloaded_is_not_listed_anew_for_that() -> None:
    # thousands of nodes would read the most recent lists at the moment at which it recovers
    overloaded = WatchFailure(reason=WatchFailureReason.UNAVAILABLE)
    state = ListWatchState(version="7")
    for _ in range(1000):
        state = machine.step(state, overloaded).state
        assert state.version == "7"
    for _ in range(machine.MAX_REFUSED_ANSWERS - 1):
        state = machine.step(state, WatchFailure(reason=WatchFailureReason.ANSWERED)).state
        state = machine.step(state, overloaded).state
        assert state.version == "7"


def test_streams_that_end_at_once_are_opened_ever_more_slowly() -> None:
    state, waits = ListWatchState(version="7"), []
    for _ in range(10):
        step = machine.step(state, StreamEnd(lasted_s=0.1), max)
        assert isinstance(step.command, DelayCommand)
        state = step.state
        waits.append(step.command.seconds)
    assert waits[0] == 0.8
    assert waits[-1] == 30.0
    steady = machine.step(state, StreamEnd(lasted_s=400.0), max).command
    assert steady == DelayCommand(0.8)


def test_a_list_without_end_is_given_up_and_the_old_view_stays() -> None:
    followed = Followed().listing(page(7, pod("a", 3)))
    followed.streaming(Expired("GET", "too old", code=410))
    followed.listing(*[page(9, token=f"t{i}") for i in range(NODE_LIMITS.pages)]).run()
    assert followed.names == ["d/a"]
    assert len(followed.views) == 1
    assert followed.waits[-1] >= 30.0
    assert "without end" in followed.watch.state.last_error


def test_a_token_that_leads_to_itself_is_given_up_at_once() -> None:
    followed = Followed().listing(page(9, token="t"), page(9, token="t"), page(9, token="t")).run()
    assert len(followed.waits) == 1
    assert "resourceVersion" not in followed.api.queries()[2]  # from elsewhere than the cache


def test_errors_after_long_streams_are_no_row_of_failures() -> None:
    followed = Followed().listing(page(7, pod("a", 3)))
    broken: list[Moment] = [60.0, bookmark(7), status(500, "InternalError")]
    followed.streaming(*[broken] * 8).run()
    assert followed.waits == [RETRY.base_s] * 8


def test_a_list_of_far_too_many_objects_is_given_up() -> None:
    page = PageSummary(version="7", token="", objects=NODE_LIMITS.objects + 1, bytes=1)
    assert isinstance(machine.step(ListWatchState(), page, max).command, DelayCommand)


def test_a_stream_that_outlasts_the_requested_time_is_closed() -> None:
    events = [moment for i in range(20) for moment in (60.0, line("ADDED", pod(f"p{i}", 10 + i)))]
    followed = Followed().listing(page(7)).streaming([*events], []).run()
    assert followed.api.queries()[2]["resourceVersion"] == "21"


def test_a_burst_of_events_lets_other_work_have_its_turn() -> None:
    followed = Followed().listing(page(7))
    followed.streaming([line("ADDED", pod(f"p{i}", 10 + i)) for i in range(1000)])
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> None:
        beside = asyncio.create_task(other())
        with contextlib.suppress(EndOfScript):
            await followed.watch.run()
        beside.cancel()

    asyncio.run(both())
    assert len(followed.names) == 1000
    assert turns >= 1000 * 4096 // (128 << 10)


def test_a_waiting_task_ends_also_if_there_is_no_view() -> None:
    busy = ServerError("GET", "busy", code=503)

    async def wait(followed: Followed) -> bool:
        work = asyncio.create_task(followed.watch.run())
        waiting = asyncio.create_task(followed.watch.wait_ready())
        await asyncio.wait((work,))
        await asyncio.sleep(0)
        outcome = waiting.done()
        waiting.cancel()
        assert isinstance(work.exception(), EndOfScript)
        return outcome

    assert asyncio.run(wait(Followed().listing(page(7))))
    assert asyncio.run(wait(Followed().listing(NotFound("GET", "no", code=404))))
    assert asyncio.run(wait(Followed().listing(Forbidden("GET", "no", code=403))))
    assert not asyncio.run(wait(Followed().listing(busy)))


def test_every_kind_selects_its_own() -> None:
    kinds = (OWN_NODE, OWN_NODE_SLO, OWN_NODE_METRIC)
    assert {kind.node_selector("n") for kind in kinds} == {"metadata.name=n"}
    assert OWN_PODS.node_selector("n") == "spec.nodeName=n"


def test_a_single_break_is_not_logged_and_a_lasting_one_once_with_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    busy = ServerError("GET", "busy", code=503)
    followed = Followed().listing(page(7, pod("a", 3)))
    followed.streaming(busy, busy, [20.0, bookmark(8)], busy, busy, [20.0, bookmark(9)]).run()
    assert caplog.records == []
    followed.streaming(*[busy] * 5, [bookmark(10)]).run()
    assert [record.getMessage() for record in caplog.records] == ["watch_failed", "watch_restored"]
