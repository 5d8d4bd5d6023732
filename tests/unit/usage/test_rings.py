from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.usage.series import PERCENTILES, SeriesTable, percentile_index

A, B = ("a", "cpu"), ("b", "cpu")


def board(values: list[float | None], capacity: int = 4) -> SeriesTable:
    """Put one value a second, from second 0."""
    series_table = SeriesTable(capacity, max_series=8)
    for now_s, value in enumerate(values):
        series_table.begin_moment(float(now_s))
        series_table.set_values([(A, value)])
    return series_table


def test_a_window_is_closed_at_both_ends() -> None:
    created = board([10, 11, 12, 13])
    assert created.values(A, created.window(1, 2)) == [11, 12]
    assert created.values(A, created.window(0.5, 2.5)) == [11, 12]


def test_the_oldest_moment_makes_room() -> None:
    created = board([10, 11, 12, 13, 14, 15])
    assert created.values(A, created.window(0, 9)) == [12, 13, 14, 15]


def test_moments_without_a_value_are_left_out_and_old_values_do_not_return() -> None:
    created = board([10, 11, 12, 13, None, None])
    assert created.values(A, created.window(0, 9)) == [12, 13]
    created.begin_moment(6.0)
    created.set_values([(A, 16)])
    assert created.values(A, created.window(0, 9)) == [13, 16]


def test_a_series_that_pauses_longer_than_the_ring_is_empty() -> None:
    created = board([10, *[None] * 9])
    assert created.values(A, created.window(0, 99)) == []
    assert created.span_s(A, created.window(0, 99)) == 0.0


def test_series_that_start_late_have_no_values_before() -> None:
    created = board([1, 2])
    created.set_values([(B, 5)])
    assert created.values(B, created.window(0, 9)) == [5]


def test_an_unknown_series_and_an_empty_window_have_no_values() -> None:
    created = board([1, 2])
    assert created.values(B, created.window(0, 9)) == []
    assert created.values(A, created.window(5, 9)) == []


def test_the_span_is_from_first_to_last_value() -> None:
    created = board([None, 11, None, 13])
    assert created.span_s(A, created.window(0, 9)) == 2.0


def test_no_more_series_are_stored_than_allowed() -> None:
    series_table = SeriesTable(2, max_series=2)
    series_table.begin_moment(0.0)
    series_table.set_values([((str(i), "cpu"), i) for i in range(5)])
    assert len(series_table.series_keys()) == 2


def test_other_series_are_dropped() -> None:
    created = board([1])
    created.set_values([(B, 2)])
    created.retain(lambda key: key == B)
    assert created.series_keys() == (B,)


def test_series_without_recent_values_are_forgotten() -> None:
    created = board([1, None, None])
    created.set_values([(B, 2)])
    created.drop_before(1.0)
    assert created.series_keys() == (B,)


@given(
    st.lists(st.none() | st.integers(-5, 5), max_size=40),
    st.integers(1, 9),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_a_ring_returns_the_same_as_a_list(
    values: list[int | None], capacity: int, start: int, end: int
) -> None:
    created = board(list(values), capacity)
    records = list(enumerate(values))[-capacity:]
    desired = [v for now_s, v in records if v is not None and start <= now_s <= end]
    assert created.values(A, created.window(start, end)) == desired


@given(
    values=st.lists(st.none() | st.floats(-1e9, 1e9), max_size=20),
    capacity=st.integers(1, 8),
    start_s=st.integers(-1, 20),
    length_s=st.integers(0, 20),
    fraction=st.sampled_from((0.0, 0.5, 0.9, 0.99, 1.0)),
    jumps=st.booleans(),
)
def test_means_and_percentiles_are_those_of_the_values_in_the_window(
    values: list[float | None],
    capacity: int,
    start_s: int,
    length_s: int,
    fraction: float,
    jumps: bool,
) -> None:
    created = board(values, capacity)
    window = created.window(start_s, start_s + length_s)
    present = created.values(A, window)
    # in a table of its own: `values` marks missing moments
    (average,) = board(values, capacity).means([A], window)
    ranked = board(values, capacity).percentiles([A, B], window, fraction, jumps=jumps)
    assert average == (sum(present) / len(present) if present else None)
    rank = percentile_index(len(present), fraction)
    assert ranked == [sorted(present)[rank] if present else None, None]


@given(
    values=st.lists(st.none() | st.floats(0, 100), min_size=1, max_size=40),
    lengths_s=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    fraction=st.sampled_from((0.0, 0.5, 0.9, 1.0)),
)
def test_a_percentile_does_not_depend_on_those_that_were_computed_before(
    values: list[float | None], lengths_s: list[int], fraction: float
) -> None:
    created = board(values, capacity=40)
    for length_s in lengths_s:
        window = created.window(0, length_s)
        present = sorted(created.values(A, window))
        (value,) = created.percentiles([A], window, fraction, jumps=True)
        rank = percentile_index(len(present), fraction)
        assert value == (present[rank] if present else None)


@given(
    values=st.lists(st.none() | st.floats(-1e9, 1e9), max_size=20)
    | st.lists(st.just(7.5), max_size=20),
    capacity=st.integers(1, 25),
    lengths_s=st.lists(st.integers(0, 20), max_size=3),
)
def test_aggregates_of_each_window_are_those_of_its_values(
    values: list[float | None], capacity: int, lengths_s: list[int]
) -> None:
    created, end_s = board(values, capacity), float(len(values))
    windows = [created.window(end_s - length_s, end_s) for length_s in lengths_s]
    results = created.aggregates(A, windows)
    assert len(results) == len(windows)
    for window, (average, *ranked) in zip(windows, results, strict=True):
        present = sorted(created.values(A, window))
        if not present:
            assert (average, *ranked) == (None,) * 5
            continue
        assert average == pytest.approx(sum(present) / len(present), abs=1e-6)
        ranks = [percentile_index(len(present), fraction) for _, fraction in PERCENTILES]
        assert ranked == [present[rank] for rank in ranks]
