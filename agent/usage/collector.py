"""What every optional collector is: a name, one method, a status with duration and success."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.clock import Clock
from agent.errors import AgentError
from agent.snapshot.inventory import Problem
from agent.snapshot.pod import PodView
from agent.snapshot.usage import CollectorStatus

CALL_S = 0.003  # the work of one call of a collector that spreads its work

COLLECTOR_FAILED = "CollectorFailed"  # reason of a problem


class CollectorInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a cycle knows before the optional collectors run."""

    now_s: float  # monotonic; stands still on a recorded host
    layout: CgroupLayout | None = None
    pods: tuple[PodView, ...] = ()


class CollectorResult(Protocol):
    """What a collector returns: its values, and why others are absent."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Reasons of absent values."""
        ...


log = logging.getLogger(__name__)

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V", bound=CollectorResult)
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


class CollectorRunner(Generic[V]):
    """Runs one collector at its interval, and holds its last values and its status.

    The duration of a run is that of all calls that one measurement took.
    """

    def __init__(self, collector: Collector[V], interval_s: float, clock: Clock) -> None:
        self._collector = collector
        self._interval_s = interval_s
        self._clock = clock
        self._due_s = float("-inf")
        self._spent_s = 0.0  # in calls of a measurement that is not complete
        self.status = CollectorStatus(name=collector.name)
        self.value: V | None = None  # None before the first complete measurement

    def run(self, cycle: CollectorInput) -> V | None:
        """Run the collector if it is due; return its last values."""
        if cycle.now_s < self._due_s:
            return self.value
        begin_s = self._clock.monotonic()
        value: V | None = None
        problems: tuple[Problem, ...] = ()
        try:
            value = self._collector.collect(cycle)
        except (AgentError, OSError) as error:
            problems = (Problem(reason=COLLECTOR_FAILED, message=str(error)),)
        self._spent_s += self._clock.monotonic() - begin_s
        if value is not None or problems:
            self._due_s = cycle.now_s + self._interval_s
            self._finish(value, value.problems if value is not None else problems)
        return self.value

    def close(self) -> None:
        """Close the collector's descriptors."""
        self._collector.close()

    def _finish(self, value: V | None, problems: tuple[Problem, ...]) -> None:
        previous_reasons = {problem.reason for problem in self.status.problems}
        for problem in problems:
            if problem.reason not in previous_reasons:  # once, until a run is without it
                log.warning(
                    "collector_problem",
                    extra={
                        "collector": self.status.name,
                        "reason": problem.reason,
                        "detail": problem.message,
                    },
                )
        last_s = self.status.last_success_s if problems else self._clock.wall()
        self.value = value
        self.status = CollectorStatus(
            name=self.status.name,
            success=not problems,
            duration_s=self._spent_s,
            last_success_s=last_s,
            problems=problems,
        )
        self._spent_s = 0.0
