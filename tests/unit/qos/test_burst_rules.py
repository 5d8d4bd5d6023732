"""Formulas of CPU burst, with Koordinator's results and where ours differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.containers.cpu_quota import quota_of
from agent.qos.burst_rules import (
    BurstBucket,
    QuotaChange,
    burst_of,
    granted_change,
    new_bucket,
    step_bucket,
    target_quota,
    wished_change,
)
from agent.qos.share_pool import PoolState, pool_state, share_ratio

IDLE, COOLING, OVERLOADED, UNKNOWN = (
    PoolState.IDLE,
    PoolState.COOLING,
    PoolState.OVERLOADED,
    PoolState.UNKNOWN,
)


@pytest.mark.parametrize(
    ("limit_milli", "percent", "koordinator", "ours"),
    [
        (5000, 1000, 5000000, 500000),
        (3000, 500, 1500000, 300000),
        (1500, 100, 150000, 150000),
        (100, 70, 6999, 7000),  # floating point makes it one less
        (200, 57, 11399, 11400),
        (-1, 1000, 0, 0),
    ],
)
def test_a_burst_is_a_part_of_the_limit_and_never_more_than_the_quota(
    limit_milli: int, percent: int, koordinator: int, ours: int
) -> None:
    quota_us = quota_of(limit_milli)
    assert burst_of(limit_milli, percent, quota_us) == ours
    unbounded = burst_of(limit_milli, percent, 1 << 60)
    assert unbounded - koordinator in (0, 1)
    floating = int(max(limit_milli, 0) / 1000 * percent / 100 * 100000)
    assert math.isclose(floating, unbounded, abs_tol=1)


@pytest.mark.parametrize(
    ("cpus", "pinned", "node", "outside", "ratio", "state"),
    [
        (16, 8, 10, 7, 0.3750, IDLE),
        (16, 8, 10, 5, 0.6250, OVERLOADED),
        (16, 8, 10, 6.25, 0.4688, COOLING),
        (16, 8, 10, 6, 0.5000, OVERLOADED),
        (16, 16, 3, 3, 1.0000, OVERLOADED),
        (64, 0, 28.7, 0, 0.4484, IDLE),
        (64, 0, 28.9, 0, 0.4516, COOLING),
        (64, 20, 30, 40, -0.2273, IDLE),
    ],
)
def test_state_of_the_shared_cpus(
    cpus: int, pinned: float, node: float, outside: float, ratio: float, state: PoolState
) -> None:
    computed = share_ratio(cpus, pinned, node, outside)
    assert round(computed, 4) == pytest.approx(ratio, abs=1e-4)
    assert pool_state(computed, 50) is state


def test_without_a_sample_the_state_is_unknown() -> None:
    assert pool_state(None, 50) is UNKNOWN


@pytest.mark.parametrize(
    ("base", "current", "percent", "allowed", "throttled", "pool", "change", "target"),
    [
        (200000, 400000, 300, True, 0.5, COOLING, QuotaChange.KEEP, 400000),
        (200000, 202000, 300, True, 0.5, OVERLOADED, QuotaChange.LOWER, 200000),
        (200000, 400000, 300, True, 0.5, OVERLOADED, QuotaChange.LOWER, 320000),
        (200000, 400000, 300, False, 0.5, IDLE, QuotaChange.LOWER, 320000),
        (200000, 400000, 90, True, 0.5, IDLE, QuotaChange.RAISE, 200000),
        (200000, 580000, 300, True, 0.0, IDLE, QuotaChange.KEEP, 580000),
        (200000, 580000, 300, True, 0.5, IDLE, QuotaChange.RAISE, 600000),
        (200000, 200000, 300, True, 0.5, IDLE, QuotaChange.RAISE, 240000),
        (100000, 248832, 300, True, 0.2, IDLE, QuotaChange.RAISE, 298598),
        (100000, 248832, 300, True, None, UNKNOWN, QuotaChange.KEEP, 248832),
        (100000, 122880, 300, True, 0.0, OVERLOADED, QuotaChange.LOWER, 100000),
    ],
)
def test_the_next_quota(
    base: int,
    current: int,
    percent: int,
    allowed: bool,
    throttled: float | None,
    pool: PoolState,
    change: QuotaChange,
    target: int,
) -> None:
    allocations = granted_change(wished_change(throttled, is_allowed=allowed), pool)
    assert allocations is change
    assert target_quota(allocations, current, base, percent) == target


def test_the_ladder_up_and_down() -> None:
    up, down, quota_us = [], [], 100000
    while quota_us < 300000:
        quota_us = target_quota(QuotaChange.RAISE, quota_us, 100000, 300)
        up.append(quota_us)
    while quota_us > 100000:
        quota_us = target_quota(QuotaChange.LOWER, quota_us, 100000, 300)
        down.append(quota_us)
    assert up == [120000, 144000, 172800, 207360, 248832, 298598, 300000]
    assert down == [240000, 192000, 153600, 122880, 100000]


@pytest.mark.parametrize("pool", [COOLING, UNKNOWN])
def test_a_throttled_container_waits_while_the_node_is_not_idle(pool: PoolState) -> None:
    assert granted_change(QuotaChange.RAISE, pool) is QuotaChange.KEEP


@pytest.mark.parametrize("pool", list(PoolState))
def test_a_container_without_tokens_goes_down_whatever_the_node_says(pool: PoolState) -> None:
    assert granted_change(wished_change(0.5, is_allowed=False), pool) is QuotaChange.LOWER


@pytest.mark.parametrize(
    ("capacity", "tokens", "usage", "seconds", "after", "allowed"),
    [
        (5000, 5000, 150, 10, 4500, True),
        (5000, 50, 200, 10, -950, False),
        (500, 5, 200, 10, -500, False),
        (5000, 500, 40, 10, 1100, True),
        (5000, 4500, 40, 10, 5000, True),
        (5000, 100, 60, 10, 100, True),
        (5000, 100, 99, 10, 100, True),
        (0, 0, 10, 5, 0, False),
        (5000, 10, 110, 1.9, -9, False),  # Koordinator counts one second, and has 0
    ],
)
def test_tokens_after_a_step(
    capacity: int, tokens: int, usage: int, seconds: float, after: float, allowed: bool
) -> None:
    bucket = step_bucket(BurstBucket(capacity, tokens, 100.0), usage, 100.0 + seconds)
    assert bucket.tokens == pytest.approx(after)
    assert bucket.is_allowed is allowed
    assert bucket.stepped_s == 100.0 + seconds


def test_a_new_bucket_is_filled_by_less_than_a_half() -> None:
    assert new_bucket(5000, 1.0, 0.0).tokens == 0
    assert new_bucket(5000, 1.0, 0.5).tokens == 1250
    assert new_bucket(5001, 1.0, 0.9999).tokens < 2501


def test_a_clock_that_goes_back_changes_no_tokens() -> None:
    assert step_bucket(BurstBucket(100, 50, 100.0), 300, 90.0).tokens == 50


@given(
    st.sampled_from(QuotaChange),
    st.integers(1000, 1 << 40),
    st.integers(1000, 1 << 40),
    st.integers(0, 1000),
)
def test_a_quota_is_never_below_its_base_nor_above_its_ceiling(
    change: QuotaChange, current: int, base: int, percent: int
) -> None:
    target = target_quota(change, current, base, percent)
    assert base <= target <= max(base * max(percent, 100) // 100, base)
