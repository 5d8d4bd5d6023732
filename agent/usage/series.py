"""Series of measured values with common times, in rings, and their means and percentiles.

Means and percentiles are those of Koordinator's metric cache.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf, isnan
from operator import attrgetter

import msgspec

SeriesKey = tuple[str, ...]  # ("pod", uid, "cpu"); at least a kind and a name
Aggregates = tuple[float | None, ...]  # in the order of `AGGREGATE_NAMES`

NAN = float("nan")
PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
AGGREGATE_NAMES = ("avg", *(name for name, _ in PERCENTILES))


class MomentRange(msgspec.Struct, frozen=True):
    """Moments `first` to `last` (exclusive) of the table, counted since its start."""

    first: int
    last: int


class _RingSeries:
    """Values at the table's slots; none is missing in the moments `complete_from` to `end`.

    `end` is the number of the moment after the last value. A high percentile is searched among the
    values from `floor` on, if there are enough of them.
    """

    __slots__ = ("complete_from", "end", "floor", "values")

    def __init__(self, capacity: int, moment: int) -> None:
        self.values = array("d", [NAN]) * capacity
        self.complete_from = self.end = moment
        self.floor = -inf


class SeriesTable:
    """Series by key with common times; the newest moment replaces the oldest.

    A series without a value at a moment has NaN there, which `values` leaves out.
    """

    def __init__(self, capacity: int, max_series: int) -> None:
        self.capacity = capacity
        self.max_series = max_series
        self._times = array("d", [NAN]) * capacity
        self._moments = 0
        self._series: dict[SeriesKey, _RingSeries] = {}
        self._names: dict[str, set[str]] = {}  # second parts of the keys, by first part

    def begin_moment(self, now_s: float) -> None:
        """Begin the next moment; times must increase."""
        self._times[self._moments % self.capacity] = now_s
        self._moments += 1

    def set_values(self, items: Iterable[tuple[SeriesKey, float | None]]) -> None:
        """Set values of the current moment; absent ones are left out."""
        moment, capacity, series = self._moments, self.capacity, self._series
        slot = (moment - 1) % capacity
        for key, value in items:
            if value is None:
                continue
            ring = series.get(key)
            if ring is None:
                if len(series) >= self.max_series:
                    continue
                ring = series[key] = _RingSeries(capacity, moment - 1)
                self._names.setdefault(key[0], set()).add(key[1])
            elif ring.end != moment - 1:
                self._mark_missing(ring, moment - 1)
            ring.values[slot] = value
            ring.end = moment

    def retain(self, is_retained: Callable[[SeriesKey], bool]) -> None:
        """Drop the series whose key is not to be retained."""
        removed = [key for key in self._series if not is_retained(key)]
        for key in removed:
            del self._series[key]
        if removed:
            self._names = {}
            for key in self._series:
                self._names.setdefault(key[0], set()).add(key[1])

    def drop_before(self, oldest_s: float) -> None:
        """Drop the series without a value since that time."""
        window = self.window(oldest_s, inf)
        self.retain(lambda key: self._has_values(key, window))

    def series_keys(self) -> tuple[SeriesKey, ...]:
        """Return the keys that have a series."""
        return tuple(self._series)

    def names(self, kind: str) -> list[str]:
        """Return the sorted second parts of the keys whose first part is `kind`."""
        return sorted(self._names.get(kind, ()))

    def window(self, start_s: float, end_s: float) -> MomentRange:
        """Return the moments of the closed interval that are still stored."""
        oldest = max(0, self._moments - self.capacity)
        moments = range(oldest, self._moments)
        first = bisect_left(moments, start_s, key=self._time)
        last = bisect_right(moments, end_s, key=self._time)
        return MomentRange(oldest + first, oldest + last)

    def values(self, key: SeriesKey, window: MomentRange) -> list[float]:
        """Return the series' values in the window, oldest first."""
        ((values, is_complete),) = self._slots((key,), window)
        return values.tolist() if is_complete else present_values(values)

    def aggregates(self, key: SeriesKey, windows: Sequence[MomentRange]) -> list[Aggregates]:
        """Return the series' aggregates in windows that end together."""
        if not windows:
            return []
        ((values, is_complete),) = self._slots((key,), min(windows, key=attrgetter("first")))
        lengths = [window.last - window.first for window in windows]
        return aggregate_suffixes(values, lengths, is_complete=is_complete)

    def means(self, keys: Iterable[SeriesKey], window: MomentRange) -> list[float | None]:
        """Return the arithmetic mean of each series' values; `None` without values."""
        means: list[float | None] = []
        for values, is_complete in self._slots(keys, window):
            present = values if is_complete else present_values(values)
            means.append(sum(present) / len(present) if present else None)
        return means

    def percentiles(
        self, keys: Iterable[SeriesKey], window: MomentRange, fraction: float, *, jumps: bool
    ) -> list[float | None]:
        """Return that percentile of each series' values in the window; `None` without values.

        `jumps` says that the values go up and down, as CPU does. It changes the cost alone: memory,
        which drifts, is nearly sorted already.
        """
        ranked: list[float | None] = []
        # values of a series, those of them that are not below the percentile, and three times these
        count = upper = enough = 0
        series, begin, moments = self._series, window.first, self._moments
        first, last = begin % self.capacity, (window.last - 1) % self.capacity + 1
        is_one_piece = begin < window.last and first < last
        for key in keys:
            ring = series.get(key)
            # no value is missing, in nearly all series: without a call for each of hundreds
            if (
                ring is not None
                and is_one_piece
                and ring.end == moments
                and ring.complete_from <= begin
            ):
                values = ring.values[first:last]
            else:
                values = array("d", self.values(key, window))
            if len(values) != count:  # most series have the same number of values
                count = len(values)
                upper = count - percentile_index(count, fraction)
                enough = 3 * upper
            if ring is None or not count:
                ranked.append(None)
                continue
            if not jumps:
                high = values.tolist()
                high.sort()
                ranked.append(high[-upper])
                continue
            floor = ring.floor
            high = [value for value in values if value >= floor]
            if len(high) < upper:
                high = values.tolist()
            high.sort()
            ranked.append(high[-upper])
            # nearly always enough values of the next call are above it
            ring.floor = high[-enough] if len(high) >= enough else high[0]
        return ranked

    def span_s(self, key: SeriesKey, window: MomentRange) -> float:
        """Return the seconds between the series' first and last value in the window."""
        ring = self._series.get(key)
        if ring is None:
            return 0.0
        moments: Sequence[int] = range(window.first, min(window.last, ring.end))
        if ring.complete_from > window.first:
            moments = [m for m in moments if not isnan(ring.values[m % self.capacity])]
        return self._time(moments[-1]) - self._time(moments[0]) if moments else 0.0

    def _slots(
        self, keys: Iterable[SeriesKey], window: MomentRange
    ) -> Iterator[tuple[array[float], bool]]:
        """Yield each series' slots in the window, oldest first, and whether none is NaN.

        One call reads hundreds of series, whose positions are computed once.
        """
        series, begin, moments = self._series, window.first, self._moments
        is_empty = begin >= window.last
        first, last = begin % self.capacity, (window.last - 1) % self.capacity + 1
        for key in keys:
            ring = series.get(key)
            if ring is None or is_empty:
                yield array("d"), True
                continue
            if ring.end != moments:
                self._mark_missing(ring, moments)
            slots = ring.values
            values = slots[first:last] if first < last else slots[first:] + slots[:last]
            yield values, ring.complete_from <= begin  # usually no value is missing

    def _has_values(self, key: SeriesKey, window: MomentRange) -> bool:
        """Return whether a window that ends now has a value; reading marks its end as missing."""
        ring = self._series[key]
        if ring.complete_from < ring.end:
            return ring.end > window.first
        return bool(self.values(key, window))

    def _time(self, moment: int) -> float:
        return self._times[moment % self.capacity]

    def _mark_missing(self, ring: _RingSeries, moment: int) -> None:
        """Mark the moments since the last value as missing."""
        for missing in range(max(ring.end, moment - self.capacity), moment):
            ring.values[missing % self.capacity] = NAN
        ring.complete_from = ring.end = max(ring.end, moment)


def _float32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


@lru_cache(maxsize=4096)  # few different counts and percentiles
def percentile_index(count: int, percentile: float) -> int:
    """Return max(floor(count x percentile) - 1, 0), multiplied in single precision."""
    return max(int(_float32(_float32(count) * _float32(percentile))) - 1, 0)


def present_values(values: Iterable[float]) -> list[float]:
    """Return the values without NaN."""
    return [value for value in values if value == value]  # noqa: PLR0124 - faster than `isnan`


def aggregate_values(values: Sequence[float]) -> Aggregates:
    """Return avg, p50, p90, p95, p99 without interpolation; all `None` without values."""
    (aggregates,) = aggregate_suffixes(array("d", values), (len(values),))
    return aggregates


def aggregate_suffixes(
    values: array[float], lengths: Sequence[int], *, is_complete: bool = True
) -> list[Aggregates]:
    """Return the aggregates of the last values of a series, for each of these lengths.

    Unless it is complete, NaN values count for the lengths only. From the shortest to the longest,
    so that each value is sorted once: what is sorted already costs one merge.
    """
    results: dict[int, Aggregates] = {}
    ranked: list[float] = []
    total, shorter = 0.0, 0
    first = values[:1]
    # an idle card, or the memory of a job: nothing needs an order
    is_constant = is_complete and values.tobytes() == first.tobytes() * len(values)
    for length in sorted({*lengths}):
        part = values[len(values) - length : len(values) - shorter]
        shorter = length
        older = first.tolist() * len(part) if is_constant else part.tolist()
        if not is_complete:
            older = present_values(older)
        total += sum(older)
        ranked += older
        if not is_constant:
            ranked.sort()
        results[length] = _ranked_aggregates(total, ranked)
    return [results[length] for length in lengths]


def _ranked_aggregates(total: float, ranked: Sequence[float]) -> Aggregates:
    count = len(ranked)
    if not count:
        return (None,) * len(AGGREGATE_NAMES)
    p50, p90, p95, p99 = _ranks(count)
    return total / count, ranked[p50], ranked[p90], ranked[p95], ranked[p99]


@lru_cache(maxsize=4096)
def _ranks(count: int) -> tuple[int, ...]:
    return tuple(percentile_index(count, fraction) for _, fraction in PERCENTILES)
