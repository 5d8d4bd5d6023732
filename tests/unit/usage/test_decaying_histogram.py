"""The decaying histogram counts, forgets and restores as Koordinator's does."""

from __future__ import annotations

import functools
import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.usage.decaying_histogram import (
    CPU_CORES,
    MEMORY_BYTES,
    DecayingHistogram,
    HistogramCheckpoint,
)
from tests.captures import SHARED, needs_shared

DAY_S = 86400.0
START_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z
SCALES = {"cpu": CPU_CORES, "memory": MEMORY_BYTES}


@functools.cache
def recorded_cases() -> list[dict[str, Any]]:
    text = (SHARED / "oracle" / "formulas.json").read_text()
    cases: list[dict[str, Any]] = json.loads(text)["histograms"]
    return cases


def filled(case: dict[str, Any]) -> DecayingHistogram:
    histogram = DecayingHistogram(SCALES[case["resource"]], case["half_life_s"])
    for at_s, value in case["samples"]:
        histogram.add(value, at_s)
    return histogram


@needs_shared
def test_percentiles_are_those_that_koordinator_computed_from_the_same_samples() -> None:
    for case in recorded_cases():
        histogram = filled(case)
        for fraction, value in case["percentiles"].items():
            assert histogram.percentile(float(fraction)) == pytest.approx(value, rel=1e-12)


@given(
    st.lists(
        st.tuples(st.floats(0, 40), st.sampled_from((0.0, 60.0, 6 * 3600.0, 101 * DAY_S, -DAY_S))),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from((0.5, 0.95, 1.0)),
)
def test_a_percentile_does_not_depend_on_those_of_earlier_samples(
    samples: list[tuple[float, float]], fraction: float
) -> None:
    often = DecayingHistogram(CPU_CORES, DAY_S)
    at_s = START_S
    for value, step_s in samples:
        at_s += step_s
        often.add(value, at_s)
        percentile = often.percentile(fraction)
    once = DecayingHistogram(CPU_CORES, DAY_S)
    at_s = START_S
    for value, step_s in samples:
        at_s += step_s
        once.add(value, at_s)
    assert percentile == once.percentile(fraction)


@needs_shared
def test_a_percentile_after_each_sample_ends_at_the_one_that_koordinator_computed() -> None:
    for case in recorded_cases():
        for fraction, value in case["percentiles"].items():
            histogram = DecayingHistogram(SCALES[case["resource"]], case["half_life_s"])
            for at_s, sample in case["samples"]:
                histogram.add(sample, at_s)
                histogram.percentile(float(fraction))
            assert histogram.percentile(float(fraction)) == pytest.approx(value, rel=1e-12)


@needs_shared
def test_checkpoints_are_those_that_koordinator_wrote() -> None:
    for case in recorded_cases():
        checkpoint, expected = filled(case).checkpoint(), case["checkpoint"]
        written = datetime.fromisoformat(expected["referenceTimestamp"])
        weights = {str(bucket): weight for bucket, weight in checkpoint.bucket_weights.items()}
        assert checkpoint.reference_timestamp == written.timestamp()
        assert weights == expected["bucketWeights"]
        assert checkpoint.total_weight == pytest.approx(expected["totalWeight"], rel=1e-12)


@needs_shared
def test_a_restored_histogram_has_the_percentiles_of_koordinator_s_restored_one() -> None:
    for case in recorded_cases():
        histogram = DecayingHistogram(SCALES[case["resource"]], case["half_life_s"])
        histogram.restore(filled(case).checkpoint())
        for fraction, value in case["percentiles_after_restore"].items():
            assert histogram.percentile(float(fraction)) == pytest.approx(value, rel=1e-12)


def test_cpu_has_158_buckets_and_memory_205() -> None:
    assert (len(CPU_CORES.starts()), len(MEMORY_BYTES.starts())) == (158, 205)


def test_an_empty_histogram_has_percentile_zero() -> None:
    assert DecayingHistogram(CPU_CORES, DAY_S).percentile(0.95) == 0.0


def test_the_percentile_of_a_value_above_the_maximum_is_the_start_of_the_last_bucket() -> None:
    histogram = DecayingHistogram(CPU_CORES, DAY_S)
    histogram.add(1e9, START_S)
    assert histogram.percentile(0.95) == CPU_CORES.starts()[157]


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_percentile_is_at_least_the_value_it_stands_for_and_little_more(
    values: list[float], fraction: float
) -> None:
    histogram = DecayingHistogram(CPU_CORES, DAY_S)
    for value in values:
        histogram.add(value, START_S)
    ranked = sorted(values)
    exact = ranked[max(0, -int(-fraction * len(values) // 1) - 1)]
    assert histogram.percentile(fraction) >= exact * (1 - 1e-9)
    assert histogram.percentile(0.001) <= ranked[0] * 1.05 + 0.026


def test_old_samples_yield_to_new_ones_after_some_half_lives() -> None:
    histogram = DecayingHistogram(CPU_CORES, DAY_S)
    for minute in range(60):
        histogram.add(8.0, START_S + 60 * minute)
    histogram.add(1.0, START_S + 12 * DAY_S)
    assert histogram.percentile(0.95) < 1.1


def test_after_the_clock_was_set_back_the_histogram_begins_anew() -> None:
    histogram = DecayingHistogram(CPU_CORES, DAY_S)
    histogram.add(8.0, START_S + 4000 * DAY_S)
    histogram.add(1.0, START_S)
    assert histogram.percentile(1.0) < 1.1


@pytest.mark.parametrize("moved_days", [0.0, 0.4, -0.4])
def test_samples_keep_their_ages_when_the_reference_time_moves(moved_days: float) -> None:
    histogram = DecayingHistogram(CPU_CORES, DAY_S)
    histogram.add(1.0, START_S - moved_days * DAY_S)
    histogram.move_samples(moved_days * DAY_S)
    histogram.add(1.0, START_S + 99 * DAY_S)
    histogram.add(2.0, START_S + 101 * DAY_S)
    old, new = histogram.checkpoint().bucket_weights.values()
    assert (old, new) == (2500, 10_000)  # two half-lives apart


def test_a_clock_set_back_by_an_hour_costs_nothing() -> None:
    histogram = DecayingHistogram(CPU_CORES, DAY_S)
    histogram.add(8.0, START_S)
    histogram.add(1.0, START_S - 3600)
    assert histogram.percentile(1.0) > 8.0


@pytest.mark.parametrize("weights", [{0: 1, 50: 10_000}, {50: 10_000, 60: 1}])
def test_a_restored_weight_that_counts_as_empty_does_not_empty_the_histogram(
    weights: dict[int, int],
) -> None:
    histogram = DecayingHistogram(CPU_CORES, DAY_S)
    histogram.restore(HistogramCheckpoint(START_S, weights, 0.6))
    assert histogram.percentile(0.95) == CPU_CORES.starts()[51]
    histogram.add(2.0, START_S + 60)
    assert histogram.percentile(0.3) > 1.0


@pytest.mark.parametrize(
    "checkpoint",
    [
        HistogramCheckpoint(START_S, {158: 10_000}, 1.0),
        HistogramCheckpoint(START_S, {-1: 10_000}, 1.0),
        HistogramCheckpoint(START_S, {0: 10_001}, 1.0),
        HistogramCheckpoint(START_S, {0: -5}, 1.0),
        HistogramCheckpoint(START_S, {0: 1}, float("nan")),
        HistogramCheckpoint(START_S, {0: 1}, -1.0),
        HistogramCheckpoint(float("inf"), {0: 1}, 1.0),
    ],
)
def test_a_checkpoint_that_cannot_be_meant_is_refused_and_changes_nothing(
    checkpoint: HistogramCheckpoint,
) -> None:
    histogram = DecayingHistogram(CPU_CORES, DAY_S)
    histogram.add(2.0, START_S)
    before = histogram.checkpoint()
    with pytest.raises(ValueError, match=r"bucket|weight"):
        histogram.restore(checkpoint)
    assert histogram.checkpoint() == before
