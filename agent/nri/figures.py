"""What the plug-in of the runtime did so far, in figures for metrics and people."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import msgspec

from agent.model.snapshot import Counts

# seconds; the last bound is the runtime's own patience, what is above it cost a connection
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2)


class MethodFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One method's requests; counters since the agent's start."""

    method: str
    results: Counts = ()  # ok, late, failed, broken, malformed
    buckets: tuple[int, ...] = ()  # answers up to each of `BOUNDS_S`, and one count for the slower
    sum_s: float = 0.0  # of all answers, from the frame's arrival until it is written


class NriState(msgspec.Struct, frozen=True, kw_only=True):
    """How the plug-in does; counters since the agent's start."""

    methods: tuple[MethodFigures, ...] = ()  # by name
    connections: int = 0  # opened
    registrations: int = 0  # of these, those that came as far as the first Synchronize
    ends: Counts = ()  # connections and tries that ended, by reason
    late: int = 0  # answers that the budget cut short: each would have cost the connection
    adjustments: int = 0  # containers that were changed
    updates: int = 0  # of running containers that were changed
    unknown_methods: int = 0
    oversized: int = 0  # messages above what ttrpc carries
    left_out: int = 0  # pods and containers that could not be read, or were too many
    in_flight: int = 0  # requests that wait for their hooks now
    since_s: float | None = None  # monotonic, of the present connection; None: there is none


class Figures:
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
        self.left_out = 0
        self.in_flight = 0
        self.since_s: float | None = None

    def answered(self, method: str, result: str, took_s: float) -> None:
        """Count an answer. Methods are those that are served: their number is bounded."""
        if method not in self._buckets:
            self._results[method] = Counter()
            self._sums_s[method] = 0.0
            self._buckets[method] = [0] * (len(BOUNDS_S) + 1)  # last: who reads goes by it
        self._results[method][result] += 1
        self._buckets[method][bisect_left(BOUNDS_S, took_s)] += 1
        self._sums_s[method] += took_s

    @property
    def state(self) -> NriState:
        """Return all figures as they are now; buckets add up, as metrics want them."""
        return NriState(
            methods=tuple(map(self._method, sorted(self._buckets))),
            connections=self.connections,
            registrations=self.registrations,
            ends=tuple(sorted(self.ends.items())),
            late=sum(results["late"] for results in tuple(self._results.values())),
            adjustments=self.adjustments,
            updates=self.updates,
            unknown_methods=self.unknown_methods,
            oversized=self.oversized,
            left_out=self.left_out,
            in_flight=self.in_flight,
            since_s=self.since_s,
        )

    def _method(self, name: str) -> MethodFigures:
        so_far, buckets = 0, []
        for count in self._buckets[name]:
            so_far += count
            buckets.append(so_far)
        return MethodFigures(
            method=name,
            results=tuple(sorted(self._results[name].items())),
            buckets=tuple(buckets),
            sum_s=self._sums_s[name],
        )
