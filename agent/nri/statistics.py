"""Counters of the NRI plug-in."""

from __future__ import annotations

from collections import Counter

from agent.snapshot.container import MethodStatistics, NriStatistics
from agent.snapshot.part import HistogramCounter

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
        self._latencies: dict[str, HistogramCounter] = {}
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
        if method not in self._latencies:
            self._results[method] = Counter()
            # assigned last: readers iterate over it
            self._latencies[method] = HistogramCounter(LATENCY_BOUNDS_S)
        self._results[method][result] += 1
        self._latencies[method].add(duration_s)

    @property
    def statistics(self) -> NriStatistics:
        """Return the current values of all counters."""
        return NriStatistics(
            methods=tuple(map(self._method, sorted(self._latencies))),
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
            latency=self._latencies[name].histogram,
        )
