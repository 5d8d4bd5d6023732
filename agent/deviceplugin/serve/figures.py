"""What the kubelet asked for and got, counted since the agent's start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import msgspec

from agent.model.snapshot import Counts

# seconds; admission of every pod of the node waits for an answer
BOUNDS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
OK, BUG = "ok", "bug"  # of results; the others are the CamelCase reasons of refusals
MAX_RESULTS = 64  # of one kind


class ResourceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One resource. Results are `ok`, `bug`, or the CamelCase reason of a refusal."""

    name: str
    allocations: Counts = ()  # by result
    buckets: tuple[int, ...] = ()  # allocations up to each of `BOUNDS_S`, and one for the slower
    sum_s: float = 0.0  # of all allocations, from the request until the answer is made
    preferred: Counts = ()  # by result
    starts: Counts = ()  # containers that were asked about before they started, by result
    registrations: Counts = ()  # by result
    streams: int = 0  # open now
    lists_sent: int = 0


class ResourceCounts:
    """Counts of one resource. Belongs to the loop thread."""

    def __init__(self, name: str) -> None:
        self.streams = 0
        self.lists_sent = 0
        self._name = name
        self._allocations: Counter[str] = Counter()
        self._preferred: Counter[str] = Counter()
        self._starts: Counter[str] = Counter()
        self._registrations: Counter[str] = Counter()
        self._buckets = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def allocated(self, result: str, took_s: float) -> None:
        """Count an answer to `Allocate`."""
        _count(self._allocations, result)
        self._buckets[bisect_left(BOUNDS_S, took_s)] += 1
        self._sum_s += took_s

    def advised(self, result: str) -> None:
        """Count an answer to `GetPreferredAllocation`."""
        _count(self._preferred, result)

    def checked(self, result: str) -> None:
        """Count an answer to `PreStartContainer`."""
        _count(self._starts, result)

    def registered(self, result: str) -> None:
        """Count an answer to our registration."""
        _count(self._registrations, result)

    @property
    def registrations(self) -> int:
        """Return how many registrations were answered well."""
        return self._registrations[OK]

    def figures(self) -> ResourceFigures:
        """Return all as it is now; buckets add up, as metrics want them."""
        so_far, buckets = 0, []
        for count in self._buckets:
            so_far += count
            buckets.append(so_far)
        return ResourceFigures(
            name=self._name,
            allocations=_sorted(self._allocations),
            buckets=tuple(buckets),
            sum_s=self._sum_s,
            preferred=_sorted(self._preferred),
            starts=_sorted(self._starts),
            registrations=_sorted(self._registrations),
            streams=self.streams,
            lists_sent=self.lists_sent,
        )


def _count(counter: Counter[str], result: str) -> None:
    """Count; reasons are a closed list, but who adds to it must not make a metric grow for ever."""
    counter[result if result in counter or len(counter) < MAX_RESULTS else "Other"] += 1


def _sorted(counter: Counter[str]) -> Counts:
    return tuple(sorted(counter.items()))
