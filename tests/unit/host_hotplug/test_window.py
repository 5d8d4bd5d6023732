"""When to look because of events: together, soon, not too often, and nothing is forgotten."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.host.hotplug import (
    ALL_SCOPES,
    GAP,
    GAP_INTERVAL_S,
    MAX_WINDOW_S,
    MIN_INTERVAL_S,
    QUIET_S,
    Rescan,
    RescanWindow,
)
from agent.host.uevents import RescanScope

RDMA = frozenset((RescanScope.RDMA,))
CARDS = frozenset((RescanScope.ACCELERATORS,))


def due_s(window: RescanWindow) -> float:
    assert window.due_s is not None
    return window.due_s


def test_nothing_is_due_without_an_event() -> None:
    assert RescanWindow().due_s is None
    assert RescanWindow().extend(frozenset(), "event", 1.0) == RescanWindow()
    assert RescanWindow().pop_due(1.0) == (None, RescanWindow())


def test_one_event_is_answered_after_a_fifth_of_a_second_and_no_sooner() -> None:
    window = RescanWindow().extend(RDMA, "event", 10.0)
    assert due_s(window) == 10.0 + QUIET_S
    assert window.pop_due(10.1) == (None, window)
    look, after = window.pop_due(10.2)
    assert look == Rescan(RDMA, "event")
    assert after.due_s is None


def test_events_delay_the_rescan_by_two_seconds_at_most() -> None:
    window = RescanWindow()
    for step in range(100):
        window = window.extend(RDMA if step % 2 else CARDS, "event", 10 + step * 0.15)
    assert due_s(window) == 10 + MAX_WINDOW_S
    assert window.pop_due(12.0)[0] == Rescan(RDMA | CARDS, "event")


def test_rescans_are_a_second_apart() -> None:
    _, window = RescanWindow().extend(RDMA, "event", 10.0).pop_due(10.2)
    assert due_s(window.extend(RDMA, "event", 10.3)) == 10.2 + MIN_INTERVAL_S


def test_gaps_cause_a_full_rescan_now_and_then_and_delay_no_others() -> None:
    first = RescanWindow().extend(ALL_SCOPES, GAP, 10.0)
    look, window = first.pop_due(due_s(first))
    assert look == Rescan(ALL_SCOPES, GAP)
    again = window.extend(ALL_SCOPES, GAP, 11.0)
    assert due_s(again) == 10.2 + GAP_INTERVAL_S
    mixed = again.extend(RDMA, "event", 20.0)
    assert due_s(mixed) == 20.0 + QUIET_S
    assert mixed.pop_due(20.2)[0] == Rescan(ALL_SCOPES, "event")


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from([RDMA, CARDS, ALL_SCOPES])), max_size=300)
)
def test_a_burst_causes_at_most_one_rescan_a_second_and_each_event_gets_one(
    steps: list[tuple[float, frozenset[RescanScope]]],
) -> None:
    now_s, window = 0.0, RescanWindow()
    looks: list[float] = []
    rescan_scopes: frozenset[RescanScope] = frozenset()
    for pause_s, parts in steps:
        while window.due_s is not None and window.due_s <= now_s + pause_s:
            at_s = window.due_s
            look, window = window.pop_due(at_s)
            assert look is not None
            assert look.scopes == rescan_scopes
            rescan_scopes = frozenset()
            looks.append(at_s)
        now_s += pause_s
        window = window.extend(parts, "event", now_s)
        rescan_scopes |= parts
        assert due_s(window) <= max(now_s, *looks[-1:], 0.0) + MAX_WINDOW_S
    assert all(b - a >= MIN_INTERVAL_S - 1e-9 for a, b in pairwise(looks))
