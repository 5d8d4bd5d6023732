"""Counters of the NRI plug-in."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from agent.snapshot.container import MethodStatistics, NriStatistics
from agent.snapshot.part import build_histogram

# seconds; the last bound is the runtime's own patience, what is above it cost a connection
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
    """Counts. Belongs to the loop thread; `state` may be read from any."""

    def __init__(self) -> None:
        """Begin at nothing."""
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

    def count_answer(self, method: str, result: str, took_s: float) -> None:
        """Count an answer. Methods are those that are served: their number is bounded."""
        if method not in self._buckets:
            self._results[method] = Counter()
            self._sums_s[method] = 0.0
            self._buckets[method] = [0] * (len(LATENCY_BOUNDS_S) + 1)  # last: who reads goes by it
        self._results[method][result] += 1
        self._buckets[method][bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        self._sums_s[method] += took_s

    @property
    def statistics(self) -> NriStatistics:
        """Return the present values of all counters."""
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
