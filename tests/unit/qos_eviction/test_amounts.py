"""Amounts and valid configurations of evictions, as Koordinator's tests and formulas have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qos.eviction.amounts import (
    BestEffortCpu,
    EvictionFeature,
    Formula,
    UsageLimits,
    allocatable_release,
    configuration_problem,
    satisfaction_release,
    usage_limits,
    usage_release,
)
from agent.snapshot.slo import ResourceThresholds

GI, GB = 1 << 30, 10**9
BOTH = pytest.mark.parametrize("formula", list(Formula))


def satisfaction(usage_percent: int = 90) -> ResourceThresholds:
    return ResourceThresholds(
        cpu_evict_satisfaction_lower_percent=30,
        cpu_evict_satisfaction_upper_percent=40,
        cpu_evict_usage_threshold_percent=usage_percent,
    )


@BOTH
@pytest.mark.parametrize(
    ("mean", "last", "percent", "limit", "release"),
    [
        pytest.param((9500, 50000, 10000), (13000, 50000, 14000), 90, None, 6000, id="E1"),
        pytest.param((12000, 50000, 13000), (10000, 50000, 11000), 90, None, 7000, id="E2"),
        pytest.param((6000, 50000, 10000), (8000, 50000, 14000), 50, None, 6000, id="E3"),
        pytest.param((6000, 50000, 10000), (4000, 50000, 10000), 50, None, 0, id="E4"),
        pytest.param((6000, 50000, 10000), (4000, 50000, 10000), 50, 8000, 12000, id="E5"),
        pytest.param((6000, 50000, 10000), (4000, 50000, 10000), 50, 1, 19999, id="E6"),
        pytest.param((19000, 40000, 20000), (19000, 40000, 20000), 90, None, 0, id="E7"),
        pytest.param((100, 5000, 900), (100, 5000, 900), 90, None, 1100, id="E8"),
        pytest.param((9500, 33000, 10000), (9500, 33000, 10000), 90, None, 0, id="E9"),
        pytest.param((9500, 50000, 10000), (0, 0, 0), 90, None, 0, id="E10"),
        pytest.param((9500, 50000, 10000), (9500, 50000, 10000), 90, -1, 0, id="E11"),
    ],
)
def test_best_effort_requests_beyond_the_satisfied_part_are_released(
    mean: tuple[int, int, int],
    last: tuple[int, int, int],
    percent: int,
    limit: int | None,
    release: int,
    formula: Formula,
) -> None:
    mean_tier, last_tier = (
        BestEffortCpu(usage, request, real if limit is None else limit)
        for usage, request, real in (mean, last)
    )
    assert satisfaction_release(mean_tier, last_tier, satisfaction(percent), formula) == release


def test_without_a_last_sample_no_best_effort_request_is_released() -> None:
    mean = BestEffortCpu(9500, 50000, 10000)
    assert satisfaction_release(mean, None, satisfaction()) == 0


@pytest.mark.parametrize(
    ("used", "capacity", "limits", "upstream", "exact"),
    [
        pytest.param(81000, 100000, (80, 78), 3000, 3000, id="U1"),
        pytest.param(81000, 100000, (80, 80), 1000, 1000, id="U2"),
        pytest.param(11000, 100000, (80, 78), 0, 0, id="U3"),
        pytest.param(79999, 100000, (80, 78), 0, 0, id="U4"),
        pytest.param(90500, 96000, (90, 85), 8640, 8900, id="U5"),
        pytest.param(115 * GB, 120 * GB, (80, 78), 20400000000, 21400000000, id="U6"),
        pytest.param(115 * GB, 120 * GB, (80, 80), 18000000000, 19000000000, id="U7"),
        pytest.param(200 * GI, 256 * GI, (78, 76), 5497558138, 5841155523, id="U8"),
        pytest.param(179 * GI, 256 * GI, (70, 68), 0, 0, id="U9"),
    ],
)
def test_usage_beyond_the_lower_limit_is_released_once_the_threshold_is_reached(
    used: int, capacity: int, limits: tuple[int, int], upstream: int, exact: int
) -> None:
    assert usage_release(used, capacity, UsageLimits(*limits), Formula.UPSTREAM) == upstream
    assert usage_release(used, capacity, UsageLimits(*limits)) == exact


@given(
    used=st.integers(0, 2**63),
    capacity=st.integers(1, 2**63),
    threshold=st.integers(1, 100),
    gap=st.integers(1, 100),
)
def test_after_the_release_the_usage_is_the_lower_limit(
    used: int, capacity: int, threshold: int, gap: int
) -> None:
    limits = UsageLimits(threshold, threshold - gap)
    release = usage_release(used, capacity, limits)
    if used * 100 < capacity * threshold:
        assert release == 0
    else:
        assert used - release == capacity * limits.lower // 100


@pytest.mark.parametrize(
    ("requested", "allocatable", "limits", "is_memory", "upstream", "exact"),
    [
        pytest.param(85000, 100000, (80, 70), False, 15000, 15000, id="A1"),
        pytest.param(85000, 100000, (0, 0), False, 85000, 85000, id="A2"),
        pytest.param(85000, None, (80, 70), False, 85000, 0, id="A3"),
        pytest.param(85 * GI, 100 * GI, (80, 70), True, 16106127360, 16106127360, id="A4"),
        pytest.param(110000, 100000, (110, 100), False, 0, 0, id="A5"),
        pytest.param(110001, 100000, (110, 100), False, 10001, 10001, id="A6"),
        pytest.param(50 * GI, 0, (110, 100), True, 53687091200, 53687091200, id="A7"),
    ],
)
def test_requests_beyond_the_allocatable_amount_are_released(
    requested: int,
    allocatable: int | None,
    limits: tuple[int, int],
    is_memory: bool,
    upstream: int,
    exact: int,
) -> None:
    arguments = (requested, allocatable, UsageLimits(*limits))
    result = allocatable_release(*arguments, Formula.UPSTREAM, is_memory=is_memory)
    # Koordinator's float64 loses a byte where the ratio has no exact binary form
    assert abs(result - upstream) <= 1
    assert allocatable_release(*arguments) == exact


F = EvictionFeature


def tier_limits(lower: int, upper: int) -> ResourceThresholds:
    return ResourceThresholds(
        cpu_evict_satisfaction_lower_percent=lower, cpu_evict_satisfaction_upper_percent=upper
    )


def requests_limits(lower: int | None, priority: int) -> ResourceThresholds:
    return ResourceThresholds(
        cpu_allocatable_evict_threshold_percent=110,
        cpu_allocatable_evict_lower_percent=lower,
        allocatable_evict_priority_threshold=priority,
    )


EQUAL_LIMITS = ResourceThresholds(memory_evict_threshold_percent=70, memory_evict_lower_percent=70)
ONE_PERCENT = ResourceThresholds(
    memory_evict_threshold_percent=1, evict_enabled_priority_threshold=5999
)


@pytest.mark.parametrize(
    ("feature", "slo", "is_valid"),
    [
        pytest.param(F.BE_CPU, tier_limits(60, 80), True, id="G1"),
        pytest.param(F.BE_CPU, tier_limits(61, 80), False, id="G2-lower-61"),
        pytest.param(F.BE_CPU, tier_limits(0, 80), False, id="G2-lower-0"),
        pytest.param(F.BE_CPU, tier_limits(60, 100), False, id="G2-upper-100"),
        pytest.param(F.BE_CPU, tier_limits(60, 50), False, id="G2-upper-50"),
        pytest.param(F.CPU, ResourceThresholds(cpu_evict_threshold_percent=80), False, id="G3"),
        pytest.param(F.BE_MEMORY, EQUAL_LIMITS, False, id="G4"),
        pytest.param(F.MEMORY, ONE_PERCENT, True, id="G5"),
        pytest.param(
            F.BE_MEMORY, ResourceThresholds(memory_evict_threshold_percent=0), False, id="zero"
        ),
        pytest.param(F.CPU_ALLOCATABLE, requests_limits(100, 7999), True, id="G6"),
        pytest.param(F.CPU_ALLOCATABLE, requests_limits(100, 8000), False, id="G6-8000"),
        pytest.param(F.CPU_ALLOCATABLE, requests_limits(None, 1), False, id="G7"),
    ],
)
def test_a_rule_runs_with_a_valid_configuration_only(
    feature: EvictionFeature, slo: ResourceThresholds, is_valid: bool
) -> None:
    assert (configuration_problem(feature, slo) == "") is is_valid


def test_the_lower_limit_is_two_percent_below_the_threshold_by_default() -> None:
    slo = ResourceThresholds(memory_evict_threshold_percent=1)
    assert usage_limits(F.MEMORY, slo) == UsageLimits(1, -1)
