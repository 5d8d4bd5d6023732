"""What an optional collector is, and how it spreads the work of many files over cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.clock import Clock
from agent.snapshot.inventory import Problem
from agent.snapshot.pod import PodView

CALL_S = 0.003  # the work of one call of a collector that spreads its work


class CollectorInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a cycle knows before the optional collectors run."""

    now_s: float  # monotonic; stands still on a recorded host
    layout: CgroupLayout | None = None
    pods: tuple[PodView, ...] = ()
    applications: tuple[tuple[str, str], ...] = ()  # running host applications: name and cgroup


class CollectorResult(Protocol):
    """What a collector returns: its values, and why others are absent."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Reasons of absent values."""
        ...


K = TypeVar("K")
R = TypeVar("R")
V_co = TypeVar("V_co", bound=CollectorResult, covariant=True)


class Collector(Protocol[V_co]):
    """Measures one ability of the host. Belongs to the collector thread."""

    @property
    def name(self) -> str:
        """The name in settings and metrics."""
        ...

    def collect(self, cycle: CollectorInput) -> V_co | None:
        """Return new values; `None` while a measurement is not complete."""
        ...

    def close(self) -> None:
        """Close all descriptors."""
        ...


class SpreadRound(Generic[K, R]):
    """One reading of many keys, a few milliseconds of it in each call."""

    def __init__(self, keys: Iterable[K]) -> None:
        self._pending = deque(keys)
        self.size = len(self._pending)
        self.values: dict[K, R] = {}

    @property
    def is_complete(self) -> bool:
        """Return whether all keys are read."""
        return not self._pending

    def read_some(self, read: Callable[[K], R | None], clock: Clock) -> bool:
        """Read some keys, at least one; return whether all are read. `None` is no value."""
        deadline_s = clock.monotonic() + CALL_S
        while self._pending:
            key = self._pending.popleft()
            value = read(key)
            if value is not None:
                self.values[key] = value
            if clock.monotonic() >= deadline_s:
                break
        return self.is_complete
