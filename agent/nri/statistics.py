"""Counters of the NRI plug-in."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from agent.snapshot.container import MethodStatistics, NriStatistics
from agent.snapshot.part import build_histogram

# seconds; the last bound is the runtime's time limit, after which the connection ends
LATENCY_BOUNDS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2,
)


class NriCounters:
    """Counts calls and connections. Of the loop thread; any thread may read `statistics`."""

    def __init__(self) -> None:
        """Start all counters at 0."""
        self._results: dict[str, Counter[str]] = {}
        self._buckets: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}
        self.ends: Counter[str] = Counter()
        self.connections = 0
        self.registrations = 0
        self.adjustments = 0
        self.updates = 0
        self.unknown_methods = 0
        self.oversized = 0
        self.dropped = 0
        self.in_flight = 0
        self.since_s: float | None = None

    def count_answer(self, method: str, result: str, duration_s: float) -> None:
        """Count an answer; the number of methods is bounded."""
        if method not in self._buckets:
            self._results[method] = Counter()
            self._sums_s[method] = 0.0
            self._buckets[method] = [0] * (
                len(LATENCY_BOUNDS_S) + 1
            )  # assigned last: readers iterate over it
        self._results[method][result] += 1
        self._buckets[method][bisect_left(LATENCY_BOUNDS_S, duration_s)] += 1
        self._sums_s[method] += duration_s

    @property
    def statistics(self) -> NriStatistics:
        """Return the current values of all counters."""
        return NriStatistics(
            methods=tuple(map(self._method, sorted(self._buckets))),
            connections=self.connections,
            registrations=self.registrations,
            ends=tuple(sorted(self.ends.items())),
            late=sum(results["late"] for results in tuple(self._results.values())),
            adjustments=self.adjustments,
            updates=self.updates,
            unknown_methods=self.unknown_methods,
            oversized=self.oversized,
            dropped=self.dropped,
            in_flight=self.in_flight,
            since_s=self.since_s,
        )

    def _method(self, name: str) -> MethodStatistics:
        return MethodStatistics(
            method=name,
            results=tuple(sorted(self._results[name].items())),
            latency=build_histogram(LATENCY_BOUNDS_S, self._buckets[name], self._sums_s[name]),
        )
