"""When to look because of events: together, soon, not too often, and nothing is forgotten."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.hotplug.uevent import Part
from agent.hotplug.window import (
    AGAIN_S,
    EVERYTHING,
    GAP,
    GAP_AGAIN_S,
    LONGEST_S,
    QUIET_S,
    Look,
    Window,
)

RDMA = frozenset((Part.RDMA,))
CARDS = frozenset((Part.ACCELERATORS,))


def due_s(window: Window) -> float:
    assert window.due_s is not None
    return window.due_s


def test_nothing_is_due_without_an_event() -> None:
    assert Window().due_s is None
    assert Window().opened(frozenset(), "event", 1.0) == Window()
    assert Window().taken(1.0) == (None, Window())


def test_one_event_is_answered_after_a_fifth_of_a_second_and_no_sooner() -> None:
    window = Window().opened(RDMA, "event", 10.0)
    assert due_s(window) == 10.0 + QUIET_S
    assert window.taken(10.1) == (None, window)
    look, after = window.taken(10.2)
    assert look == Look(RDMA, "event")
    assert after.due_s is None


def test_events_put_the_look_off_for_two_seconds_at_most() -> None:
    window = Window()
    for step in range(100):
        window = window.opened(RDMA if step % 2 else CARDS, "event", 10 + step * 0.15)
    assert due_s(window) == 10 + LONGEST_S
    assert window.taken(12.0)[0] == Look(RDMA | CARDS, "event")


def test_looks_are_a_second_apart() -> None:
    _, window = Window().opened(RDMA, "event", 10.0).taken(10.2)
    assert due_s(window.opened(RDMA, "event", 10.3)) == 10.2 + AGAIN_S


def test_gaps_make_a_full_look_now_and_then_and_do_not_hold_up_others() -> None:
    first = Window().opened(EVERYTHING, GAP, 10.0)
    look, window = first.taken(due_s(first))
    assert look == Look(EVERYTHING, GAP)
    again = window.opened(EVERYTHING, GAP, 11.0)
    assert due_s(again) == 10.2 + GAP_AGAIN_S
    mixed = again.opened(RDMA, "event", 20.0)
    assert due_s(mixed) == 20.0 + QUIET_S
    assert mixed.taken(20.2)[0] == Look(EVERYTHING, "event")


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from([RDMA, CARDS, EVERYTHING])), max_size=300)
)
def test_a_burst_is_at_most_one_look_a_second_and_each_event_gets_one(
    steps: list[tuple[float, frozenset[Part]]],
) -> None:
    now_s, window = 0.0, Window()
    looks: list[float] = []
    asked: frozenset[Part] = frozenset()
    for pause_s, parts in steps:
        while window.due_s is not None and window.due_s <= now_s + pause_s:
            at_s = window.due_s
            look, window = window.taken(at_s)
            assert look is not None
            assert look.parts == asked
            asked = frozenset()
            looks.append(at_s)
        now_s += pause_s
        window = window.opened(parts, "event", now_s)
        asked |= parts
        assert due_s(window) <= max(now_s, *looks[-1:], 0.0) + LONGEST_S
    assert all(b - a >= AGAIN_S - 1e-9 for a, b in pairwise(looks))
