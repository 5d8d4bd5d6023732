"""Runs the collectors that a setting switches on, each at its own interval."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from agent.clock import Clock
from agent.config.settings import UsageSettings
from agent.errors import AgentError
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem
from agent.snapshot.usage import CollectorStatus
from agent.usage.best_effort import BestEffortCollector
from agent.usage.cold_memory import ColdMemoryCollector
from agent.usage.collector import Collector, CollectorInput, CollectorResult
from agent.usage.cycles import CycleCollector
from agent.usage.resctrl_monitor import ResctrlCollector
from agent.usage.storage import StorageCollector

COLLECTOR_FAILED = "CollectorFailed"  # reason of a problem

log = logging.getLogger(__name__)

V = TypeVar("V", bound=CollectorResult)


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

    def is_due(self, now_s: float) -> bool:
        """Return whether the interval is over, or a measurement is in progress."""
        return now_s >= self._due_s

    def run(self, cycle: CollectorInput) -> None:
        """Call the collector; with new values or problems the interval begins again."""
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


class OptionalCollectors:
    """Runs every optional collector that is on. Belongs to the collector thread.

    `values` has the last values by the field of `UsageSample`, which is the collector's name.
    """

    def __init__(self, host: HostFiles, settings: UsageSettings, clock: Clock) -> None:
        self._runners = tuple(_runners(host, settings, clock))
        self._update()

    def run(self, cycle: CollectorInput) -> None:
        """Run the collectors that are due."""
        due = [runner for runner in self._runners if runner.is_due(cycle.now_s)]
        for runner in due:
            runner.run(cycle)
        if due:
            self._update()

    def close(self) -> None:
        """Close all descriptors."""
        for runner in self._runners:
            runner.close()

    def _update(self) -> None:
        values = {runner.status.name: runner.value for runner in self._runners}
        self.values: Mapping[str, CollectorResult | None] = MappingProxyType(values)
        self.statuses = tuple(runner.status for runner in self._runners)


def _runners(
    host: HostFiles, settings: UsageSettings, clock: Clock
) -> Iterator[CollectorRunner[Any]]:
    """Yield a runner for each collector that is on."""
    if settings.best_effort:
        best_effort = BestEffortCollector(host, clock)
        yield CollectorRunner(best_effort, settings.best_effort_interval_s, clock)
    if settings.cycles:
        cycles = CycleCollector(
            host,
            clock,
            interval_s=settings.cycles_interval_s,
            window_s=settings.cycles_window_s,
        )
        yield CollectorRunner(cycles, 0.0, clock)  # it begins and ends windows in every cycle
    if settings.resctrl:
        resctrl = ResctrlCollector(host, clock)
        yield CollectorRunner(resctrl, settings.resctrl_interval_s, clock)
    if settings.cold_memory:
        cold_memory = ColdMemoryCollector(host, clock)
        yield CollectorRunner(cold_memory, settings.cold_memory_interval_s, clock)
    if settings.storage:
        storage = StorageCollector(host, clock)
        yield CollectorRunner(storage, settings.storage_interval_s, clock)
