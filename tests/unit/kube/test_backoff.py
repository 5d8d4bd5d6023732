"""How long to wait before the next try."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.flow_control import Backoff


@pytest.mark.parametrize(
    ("failures", "ceiling_s"), [(0, 0.8), (1, 0.8), (2, 1.6), (3, 3.2), (7, 30.0), (10**9, 30.0)]
)
def test_the_ceiling_doubles_up_to_its_bound(failures: int, ceiling_s: float) -> None:
    waits = [Backoff().wait_s(failures, uniform=pick) for pick in (min, max)]
    assert waits == [pytest.approx(ceiling_s / 10), pytest.approx(ceiling_s)]


@given(st.integers(0, 100), st.none() | st.floats(0, 300))
def test_the_wait_is_between_the_servers_request_and_the_bound(
    failures: int, retry_after_s: float | None
) -> None:
    wait_s = Backoff().wait_s(failures, retry_after_s)
    requested_s = retry_after_s or 0.0
    assert requested_s + 0.08 <= wait_s <= requested_s + max(30.0, requested_s / 4)


def test_a_fleet_with_a_requested_wait_does_not_return_at_once() -> None:
    waits = {Backoff().wait_s(1, 10.0) for _ in range(20)}
    assert len(waits) == 20


def test_a_fleet_with_a_requested_wait_of_one_second_is_spread() -> None:
    rolls = [random.Random(node).uniform for node in range(5000)]
    tenths = Counter(int(Backoff().wait_s(1, 1.0, roll) * 10) for roll in rolls)
    assert min(tenths) >= 10
    assert max(tenths.values()) < 1000
