"""What a session says of itself."""

from __future__ import annotations

import pytest

from agent.clock import ManualClock
from agent.kube.errors import Forbidden, Unreachable
from agent.kube.session import SessionStatusTracker, clock_skew_s


@pytest.mark.parametrize(
    ("date_s", "sent_s", "received_s", "skew_s"),
    [
        (100.0, 100.2, 100.3, 0.0),
        (100.0, 100.9, 101.4, 0.0),  # written at 100.99, read half a second later
        (160.0, 100.2, 100.4, 59.6),
        (40.0, 100.2, 100.4, -59.2),
        (101.0, 100.2, 100.4, 0.6),
    ],
)
def test_a_skew_is_what_the_cut_date_and_the_way_cannot_explain(
    date_s: float, sent_s: float, received_s: float, skew_s: float
) -> None:
    assert clock_skew_s(date_s, sent_s, received_s) == pytest.approx(skew_s)


def reachable(keeper: SessionStatusTracker) -> bool | None:
    return keeper.state.reachable


def test_a_refusal_is_an_answer_and_silence_is_not() -> None:
    clock = ManualClock()
    keeper = SessionStatusTracker("https://api", clock)
    assert reachable(keeper) is None
    keeper.record_response("GET", 403)
    keeper.record_failure("GET", Forbidden("GET /x", "no", code=403), answered=True)
    assert reachable(keeper) is True
    assert keeper.state.last_ok_s is None
    assert keeper.state.last_error == "GET /x: 403 no"
    clock.advance(5)
    keeper.record_failure("GET", Unreachable("GET /x", "down"), answered=False)
    assert reachable(keeper) is False
    assert keeper.state.last_answer_s == clock.mono_s - 5
    keeper.record_response("WATCH", 200)
    assert reachable(keeper) is True
    assert keeper.state.last_ok_s == clock.mono_s
    assert keeper.state.requests == {("GET", "403"): 1, ("GET", "none"): 1, ("WATCH", "200"): 1}


def test_a_stream_that_breaks_off_does_not_make_its_server_unreachable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keeper = SessionStatusTracker("https://api", ManualClock())
    keeper.record_response("WATCH", 200)
    keeper.record_failure("WATCH", Unreachable("GET /x", "the answer broke off"), answered=True)
    assert reachable(keeper) is True
    assert keeper.state.last_error == "GET /x: the answer broke off"
    assert keeper.state.requests == {("WATCH", "200"): 1}
    assert caplog.messages == []


def test_an_outage_of_the_server_and_its_end_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    keeper = SessionStatusTracker("https://10.0.0.1:10250", ManualClock())
    for _ in range(3):
        keeper.record_failure("GET", Unreachable("GET /pods/", "down"), answered=False)
    keeper.record_response("GET", 200)
    keeper.record_response("GET", 200)
    assert caplog.messages == ["server_does_not_answer", "server_answers_again"]


def test_a_state_once_read_does_not_change() -> None:
    keeper = SessionStatusTracker("https://api", ManualClock())
    before = keeper.state
    keeper.begin(stream=True)
    keeper.begin(stream=False)
    keeper.record_response("GET", 200)
    keeper.count_retries(1)
    assert (before.streams, before.in_flight, before.requests, before.retries) == (0, 0, {}, 0)
    keeper.end(stream=True)
    keeper.end(stream=False)
    after = keeper.state
    assert (after.streams, after.in_flight, after.retries) == (0, 0, 1)
