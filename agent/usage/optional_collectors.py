"""The collectors that a setting switches on or off, and the place of their values in a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from agent.clock import Clock
from agent.config.settings import UsageSettings
from agent.snapshot.host_files import HostFiles
from agent.snapshot.usage import (
    BestEffortUsage,
    ColdMemory,
    CycleUsage,
    ResctrlUsage,
    StorageUsage,
    UsageSample,
)
from agent.usage.best_effort import BestEffortCollector
from agent.usage.cold_memory import ColdMemoryCollector
from agent.usage.collector import CollectorInput, CollectorRunner
from agent.usage.cycles import CycleCollector
from agent.usage.resctrl_monitor import ResctrlCollector
from agent.usage.storage import StorageCollector


class OptionalCollectors:
    """Runs every optional collector that is on. Belongs to the collector thread."""

    def __init__(self, host: HostFiles, settings: UsageSettings, clock: Clock) -> None:
        self._best_effort: CollectorRunner[BestEffortUsage] | None = None
        if settings.best_effort:
            self._best_effort = CollectorRunner(BestEffortCollector(host), 0.0, clock)
        self._cycles: CollectorRunner[CycleUsage] | None = None
        if settings.cycles:
            cycles = CycleCollector(
                host,
                clock,
                interval_s=settings.cycles_interval_s,
                window_s=settings.cycles_window_s,
            )
            self._cycles = CollectorRunner(cycles, 0.0, clock)  # it is called in every cycle
        self._resctrl: CollectorRunner[ResctrlUsage] | None = None
        if settings.resctrl:
            self._resctrl = CollectorRunner(
                ResctrlCollector(host, clock), settings.resctrl_interval_s, clock
            )
        self._cold_memory: CollectorRunner[ColdMemory] | None = None
        if settings.cold_memory:
            self._cold_memory = CollectorRunner(
                ColdMemoryCollector(host, clock), settings.cold_memory_interval_s, clock
            )
        self._storage: CollectorRunner[StorageUsage] | None = None
        if settings.storage:
            self._storage = CollectorRunner(
                StorageCollector(host, clock), settings.storage_interval_s, clock
            )

    def extend(self, sample: UsageSample, cycle: CollectorInput) -> UsageSample:
        """Run the collectors that are due; return the sample with the values of all."""
        sample = replace(
            sample,
            best_effort=self._best_effort.run(cycle) if self._best_effort is not None else None,
            cycles=self._cycles.run(cycle) if self._cycles is not None else None,
            resctrl=self._resctrl.run(cycle) if self._resctrl is not None else None,
            cold_memory=self._cold_memory.run(cycle) if self._cold_memory is not None else None,
            storage=self._storage.run(cycle) if self._storage is not None else None,
        )
        statuses = (runner.status for runner in self._runners())
        return replace(sample, collectors=(*sample.collectors, *statuses))

    def close(self) -> None:
        """Close all descriptors."""
        for runner in self._runners():
            runner.close()

    def _runners(self) -> Iterator[CollectorRunner[Any]]:
        """Yield the runners of the collectors that are on."""
        for runner in (
            self._best_effort,
            self._cycles,
            self._resctrl,
            self._cold_memory,
            self._storage,
        ):
            if runner is not None:
                yield runner
