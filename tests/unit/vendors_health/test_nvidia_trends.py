from __future__ import annotations

import pytest

from plugins.vendors.nvidia.health.trends import (
    LinkTrend,
    follow_links,
    lasting_throttle,
    link_fields,
    link_totals,
    throttle_starts,
)
from plugins.vendors.nvidia.library.performance import EXPENSIVE_EVERY, CallRateLimiter


def slowed(*masks: int | None, every_s: float = 10.0) -> str | None:
    since: dict[int, float] = {}
    for step, mask in enumerate(masks):
        since = throttle_starts(since, mask, step * every_s)
    return lasting_throttle(since, (len(masks) - 1) * every_s)


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        pytest.param([0x4] * 361, None, id="V43-power-cap-for-an-hour"),
        pytest.param([0x40] * 7, "hw_thermal", id="V43-heat-for-a-minute"),
        pytest.param([0x40] * 6, None, id="V43-not-yet"),
        pytest.param([0x8 | 0x80 | 0x1] * 7, "hw_slowdown, hw_power_brake", id="two"),
        pytest.param([0x40] * 6 + [0x1] + [0x40] * 6, None, id="interrupted"),
        pytest.param([0x40] * 6 + [None] + [0x40], None, id="not-told-in-between"),
        pytest.param([0x20] * 100, None, id="software-heat"),
    ],
)
def test_clocks_held_back_for_a_minute_are_a_warning(
    masks: list[int | None], expected: str | None
) -> None:
    assert slowed(*masks) == expected


def link_problems(*totals: dict[str, float], every_s: float = 60.0) -> list[bool]:
    trend, problems = LinkTrend(), []
    for step, total in enumerate(totals):
        trend, problem = follow_links(trend, total, step * every_s)
        problems.append(problem is not None)
    assert len(trend.steps) <= 64
    return problems


@pytest.mark.parametrize(
    ("totals", "every_s", "expected"),
    [
        pytest.param([{"recovery_failed": 3.0}] * 2, 60.0, False, id="old-failures"),
        pytest.param([{"recovery_failed": 3.0}, {"recovery_failed": 4.0}], 60.0, True, id="fails"),
        pytest.param([{"recovery": float(n)} for n in range(12)], 60.0, True, id="eleven-an-hour"),
        pytest.param([{"recovery": float(n)} for n in range(11)], 60.0, False, id="ten-an-hour"),
        pytest.param([{"recovery": float(n)} for n in range(60)], 600.0, False, id="slowly"),
        pytest.param([{"recovery": 900.0}, {"recovery": 0.0}], 60.0, False, id="reset"),
        pytest.param([{}, {}], 60.0, False, id="not-told"),
    ],
)
def test_links_that_recover_too_often_are_a_warning(
    totals: list[dict[str, float]], every_s: float, expected: bool
) -> None:
    assert link_problems(*totals, every_s=every_s)[-1] is expected


def test_a_burst_of_recoveries_is_forgotten_after_an_hour() -> None:
    totals = [{"recovery": 0.0}, *([{"recovery": 50.0}] * 70)]
    problems = link_problems(*totals)
    assert problems[1]
    assert not problems[-1]


def test_many_recoveries_are_remembered_in_few_steps() -> None:
    assert link_problems(*({"recovery": float(n)} for n in range(500)), every_s=10.0)[-1]


def test_counters_of_all_links_are_added_up_by_kind() -> None:
    link_field_ids = link_fields(2)
    assert (161, 0) in link_field_ids
    assert (221, 1) in link_field_ids
    fields = {(161, 0): 1.0, (161, 1): 2.0, (215, 0): 5.0, (230, 0): 1.0}
    assert link_totals(fields) == {"replay": 3.0, "recovery": 5.0}


@pytest.mark.parametrize(
    ("seconds", "gap"),
    [
        ([0.0001] * 5, 1),
        ([0.5], 1),
        ([0.5, 0.5, 0.0001], 1),
        ([0.009] * 3, 3),
        ([9.0] * 3, EXPENSIVE_EVERY),
    ],
)
def test_the_rate_of_a_call_depends_on_its_duration(seconds: list[float], gap: int) -> None:
    pace, cycle = CallRateLimiter(), 0
    for took in seconds:
        cycle += EXPENSIVE_EVERY
        pace.record_duration(cycle, took)
    assert [pace.is_due(cycle + step) for step in (gap - 1, gap)] == [False, True]
