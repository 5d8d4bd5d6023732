"""A value with its age and the error of the last attempt: a part of the snapshot."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class SnapshotPart(msgspec.Struct, Generic[T], frozen=True):
    """A value with the monotonic time at which it was read, and the error of the last attempt."""

    value: T
    taken_s: float | None = None  # None: never read
    error: str = ""  # error of the last attempt; the value is then an earlier one

    def age_s(self, now_s: float) -> float | None:
        """Return the age of the value; `None` if it was never read."""
        return None if self.taken_s is None else max(0.0, now_s - self.taken_s)


Counts = tuple[tuple[str, int], ...]  # by name, in order


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Durations by upper bound, as Prometheus counts them: each bucket contains those before it."""

    bounds: tuple[float, ...] = ()  # seconds, ascending
    buckets: tuple[int, ...] = ()  # one for each bound, and one for all
    sum_s: float = 0.0


class HistogramCounter:
    """Counts durations. One thread adds; any thread may read."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # between the bounds; the last is above them all
        self._sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(self._bounds, duration_s)] += 1
        self._sum_s += duration_s

    @property
    def histogram(self) -> Histogram:
        """Return the present counts."""
        counts = tuple(accumulate(self._counts))
        return Histogram(bounds=self._bounds, buckets=counts, sum_s=self._sum_s)
