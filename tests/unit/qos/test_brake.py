"""The brake that stops all enforcement for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.config.containers import BrakeSettings
from agent.qos.brake import BrakeState, step_brake

LIMITS = BrakeSettings(
    max_refusals=10, max_evictions=3, window_s=600.0, hold_s=60.0, max_hold_s=300.0
)


def test_more_refused_writes_than_allowed_within_the_window_stop_enforcement_for_a_minute() -> None:
    state = step_brake(BrakeState(), LIMITS, 0.0, refusals=10)
    assert not state.is_holding(0.0)
    state = step_brake(state, LIMITS, 599.0, refusals=1)
    assert state.is_holding(599.0)
    assert state.is_holding(658.9)
    assert not state.is_holding(659.0)
    assert state.reason == "11 writes were refused within 10 minutes"


def test_refusals_outside_of_the_window_do_not_count() -> None:
    state = step_brake(BrakeState(), LIMITS, 0.0, refusals=10)
    state = step_brake(state, LIMITS, 600.0, refusals=10)
    assert not state.is_holding(600.0)


def test_too_many_evictions_stop_enforcement() -> None:
    state = step_brake(BrakeState(), LIMITS, 0.0, evictions=4)
    assert state.is_holding(0.0)
    assert state.reason == "4 pods were evicted within 10 minutes"


def holds(times_s: list[float]) -> list[float]:
    """How long each hold is that a burst of refusals at these times causes."""
    state, lengths = BrakeState(), []
    for now_s in times_s:
        before = state.total_holds
        state = step_brake(state, LIMITS, now_s, refusals=100)
        lengths.append(state.holds_until_s - now_s if state.total_holds > before else 0.0)
    return lengths


def test_each_hold_soon_after_another_one_is_twice_as_long_up_to_the_bound() -> None:
    assert holds([0.0, 61.0, 200.0, 500.0, 900.0]) == [60.0, 120.0, 240.0, 300.0, 300.0]


def test_after_a_quiet_window_the_first_hold_is_short_again() -> None:
    assert holds([0.0, 61.0, 61.0 + 120.0 + 600.0]) == [60.0, 120.0, 60.0]


def test_what_happens_during_a_hold_does_not_extend_it() -> None:
    state = step_brake(BrakeState(), LIMITS, 0.0, refusals=100)
    until_s = state.holds_until_s
    for second in range(1, 60):
        state = step_brake(state, LIMITS, float(second))
    assert state.holds_until_s == until_s
    assert not step_brake(state, LIMITS, 60.0).is_holding(60.0)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50), st.integers(0, 10)), max_size=50)
)
def test_a_hold_is_never_longer_than_the_bound_and_memory_stays_bounded(
    rounds: list[tuple[int, int, int]],
) -> None:
    state, now_s = BrakeState(), 0.0
    for step_s, refusals, evictions in rounds:
        now_s += step_s
        state = step_brake(state, LIMITS, now_s, refusals=refusals, evictions=evictions)
        assert state.holds_until_s - now_s <= LIMITS.max_hold_s
        if not state.is_holding(now_s):
            assert sum(count for _, count in state.refusals) <= LIMITS.max_refusals
            assert sum(count for _, count in state.evictions) <= LIMITS.max_evictions
