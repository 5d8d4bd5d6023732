"""A histogram with exponential buckets whose old samples lose weight.

Buckets, decay, percentiles and the form of a checkpoint are those of Koordinator's
`pkg/util/histogram`, so that both predict the same from the same samples.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from math import log

import msgspec

RATIO = 1.05  # of the widths of two neighbouring buckets
_GROWTH = RATIO - 1.0
_LOG_RATIO = math.log(RATIO)
EPSILON = 0.0001  # a bucket with less weight counts as empty
MAX_CHECKPOINT_WEIGHT = 10_000
ROUNDING = 1e-9  # of the total weight: far more than the sums of a week of samples are off by
MAX_HALF_LIVES = 100  # after the reference time; then the reference time moves
MIN_HALF_LIVES = -1.0  # before it: it is rounded to at most half of one after its sample


class BucketScale(msgspec.Struct, frozen=True):
    """Buckets of one resource: the end of the first one and the largest value, in its unit."""

    first: float
    maximum: float

    def starts(self) -> tuple[float, ...]:
        """Return the smallest value of each bucket; the last one has everything above its own."""
        position = math.log(self.maximum * _GROWTH / self.first + 1.0) / _LOG_RATIO
        return tuple(
            self.first * (math.pow(RATIO, bucket) - 1.0) / _GROWTH
            for bucket in range(math.ceil(position) + 1)
        )


CPU_CORES = BucketScale(0.025, 1024.0)
MEMORY_BYTES = BucketScale(5.0 * 2**20, 2.0**41)


@lru_cache
def _ends(scale: BucketScale) -> tuple[float, ...]:
    """Return what stands for each bucket: the start of the next one, of the last one its own."""
    starts = scale.starts()
    return (*starts[1:], starts[-1])


class HistogramCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    """A histogram in a file. `reference_timestamp` is Unix time in seconds."""

    reference_timestamp: float
    bucket_weights: Mapping[int, int]  # by bucket; the largest is 10,000
    total_weight: float  # sum of the weights, which are not scaled to 10,000


class DecayingHistogram:
    """Weights by bucket, and the end of the bucket below which a fraction of the weight lies.

    A sample counts half as much as one that is one half-life younger.
    """

    __slots__ = (
        *("_below", "_ends", "_first", "_fraction", "_half_life_s", "_highest", "_last"),
        *("_lowest", "_ranked", "_reference_s", "_total", "_weights"),
    )
    # the last percentile: its fraction, its bucket, and the weight below that bucket
    _fraction: float
    _ranked: int
    _below: float

    def __init__(self, scale: BucketScale, half_life_s: float) -> None:
        self._first = scale.first
        self._half_life_s = half_life_s
        self._ends = _ends(scale)
        self._last = len(self._ends) - 1
        self._lowest, self._highest = self._last, 0  # buckets that are not empty
        self._clear()

    def add(self, value: float, at_s: float) -> None:
        """Add a sample with weight 1; `at_s` is Unix time.

        After a clock was set back by a half-life and more, the histogram begins anew: samples of
        the future would outweigh all that come.
        """
        age = (at_s - self._reference_s) / self._half_life_s
        if not MIN_HALF_LIVES <= age <= MAX_HALF_LIVES:
            if age < 0:
                self._clear()
            self._move_reference(at_s)
            age = (at_s - self._reference_s) / self._half_life_s
        weight = 2.0**age
        bucket, first = 0, self._first
        if value >= first:
            bucket = int(log(value * _GROWTH / first + 1.0) / _LOG_RATIO)
            if bucket > self._last:  # noqa: PLR1730 - hundreds of calls of `min` a minute
                bucket = self._last
        weights = self._weights
        weights[bucket] += weight
        self._total += weight
        if bucket < self._ranked:
            self._below += weight
        if not self._lowest <= bucket <= self._highest and weights[bucket] >= EPSILON:
            self._lowest = min(self._lowest, bucket)
            self._highest = max(self._highest, bucket)
            self._forget_percentile()

    def move_samples(self, seconds: float) -> None:
        """Add so many seconds to the times of all samples: the clock was set by as much."""
        self._reference_s += seconds

    def percentile(self, fraction: float) -> float:
        """Return the end of the bucket below which that fraction of the weight lies; 0 if empty.

        The bucket seldom changes with one more sample: then no weights are added up. Close to the
        edge of a bucket they are, so that rounding never chooses another one.
        """
        total, ranked = self._total, self._ranked
        threshold, margin = fraction * total, total * ROUNDING
        above = threshold - self._below
        if margin < above < self._weights[ranked] - margin and fraction == self._fraction:
            return self._ends[ranked]
        lowest, highest = self._lowest, self._highest
        if self._weights[lowest] < EPSILON:
            return 0.0
        sums = [0.0, *accumulate(self._weights[lowest:highest])]
        index = bisect_left(sums, threshold, 1) - 1
        self._fraction, self._ranked, self._below = fraction, lowest + index, sums[index]
        return self._ends[self._ranked]

    def checkpoint(self) -> HistogramCheckpoint:
        """Return what a file holds of the histogram; very small weights are left out."""
        largest = max(self._weights)
        weights: dict[int, int] = {}
        for bucket in range(self._lowest, self._highest + 1):
            # half away from zero, as Go rounds
            weight = math.floor(self._weights[bucket] / largest * MAX_CHECKPOINT_WEIGHT + 0.5)
            if weight > 0:
                weights[bucket] = weight
        return HistogramCheckpoint(self._reference_s, weights, self._total)

    def restore(self, checkpoint: HistogramCheckpoint) -> None:
        """Take over a checkpoint; raise `ValueError` if it cannot be one of this histogram."""
        weights, total = checkpoint.bucket_weights, checkpoint.total_weight
        numbers = (total, checkpoint.reference_timestamp)
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError("the total weight or the reference time cannot be meant")
        if any(not 0 <= bucket <= self._last for bucket in weights):
            raise ValueError(f"a bucket is not among 0 to {self._last}")
        if any(not 0 < weight <= MAX_CHECKPOINT_WEIGHT for weight in weights.values()):
            raise ValueError(f"a weight is not among 1 to {MAX_CHECKPOINT_WEIGHT}")
        self._weights = self._no_weights()
        self._reference_s, self._total = checkpoint.reference_timestamp, total
        self._lowest, self._highest = min(weights, default=self._last), max(weights, default=0)
        ratio = total / sum(weights.values()) if weights else 0.0
        for bucket, weight in weights.items():
            self._weights[bucket] = weight * ratio
        self._skip_empty()
        self._forget_percentile()

    def _clear(self) -> None:
        self._reference_s = 0.0  # Unix time at which an added weight counts as it is
        self._weights = self._no_weights()
        self._total = 0.0
        self._lowest, self._highest = self._last, 0
        self._forget_percentile()

    def _forget_percentile(self) -> None:
        self._fraction, self._ranked, self._below = 0.0, 0, 0.0

    def _no_weights(self) -> array[float]:
        # hundreds of histograms are added to in one pass: floats in a list would be a memory access
        # more for each
        return array("d", [0.0]) * (self._last + 1)

    def _move_reference(self, at_s: float) -> None:
        """Move the reference time to a multiple of the half-life and scale the weights to it."""
        # Go rounds a time half up; Unix time 0 is a multiple of 12 h and of 24 h, too
        reference_s = math.floor(at_s / self._half_life_s + 0.5) * self._half_life_s
        if not self._total:  # a new pod's: hundreds of them in a minute
            self._reference_s = reference_s
            return
        factor = math.pow(2.0, (self._reference_s - reference_s) / self._half_life_s)
        self._weights = array("d", [weight * factor for weight in self._weights])
        self._total *= factor
        self._reference_s = reference_s
        self._forget_percentile()
        self._skip_empty()

    def _skip_empty(self) -> None:
        """Move the lowest and the highest bucket to those that are not empty."""
        while self._weights[self._lowest] < EPSILON and self._lowest < self._last:
            self._lowest += 1
        while self._weights[self._highest] < EPSILON and self._highest > 0:
            self._highest -= 1
