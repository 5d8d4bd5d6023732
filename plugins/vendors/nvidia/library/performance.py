"""Reads performance counters, and rate-limits expensive NVML calls by their measured duration."""

from __future__ import annotations

import math
from collections.abc import Iterable

from agent.clock import Clock
from agent.errors import DeviceGone, NotSupported, VendorFault
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.readings import PERFORMANCE
from plugins.vendors.nvidia.library.structures import GpmMeter, gpm_supported

CHEAP_S = 0.004  # a group of calls that takes less runs in every cycle
EXPENSIVE_EVERY = 10  # at most this many cycles between two runs
_MEASUREMENTS = 3  # durations; the shortest counts, so that one disturbance has no effect


class CallRateLimiter:
    """Decides in which cycles a group of calls on one card runs."""

    def __init__(self) -> None:
        self._durations_s: list[float] = []
        self._next = 0

    def is_due(self, cycle: int) -> bool:
        """Return whether the group runs in this cycle."""
        return cycle >= self._next

    def record_duration(self, cycle: int, seconds: float) -> None:
        """Record a run's duration; the pause before the next run is proportional to it."""
        self._durations_s = [*self._durations_s, seconds][-_MEASUREMENTS:]
        shortest = min(self._durations_s) if len(self._durations_s) == _MEASUREMENTS else 0.0
        self._next = cycle + min(EXPENSIVE_EVERY, max(1, math.ceil(shortest / CHEAP_S)))


SPACING_S = 0.1  # the driver requires this time between two samples


class PerformanceCounters:
    """Performance counters by GPU instance; `None` is the whole card."""

    def __init__(self, clock: Clock) -> None:
        self.values: dict[int | None, dict[int, float]] = {}  # by metric, in the driver's units
        self._clock = clock
        self._meters: dict[int | None, GpmMeter] = {}
        self._limiter = CallRateLimiter()
        self._supported: bool | None = None  # None: not yet queried
        self._last_read_s = -SPACING_S

    def reset(self) -> None:
        """Query again whether the card has counters, for example after a change of the card."""
        self._supported = None

    def read(self, card: NvmlCard, instances: Iterable[int], cycle: int) -> None:
        """Update the values if a run is due; if the driver refuses, there are no values."""
        if not self._is_supported(card):
            self.values = {}
            return
        now_s = self._clock.monotonic()
        if not self._limiter.is_due(cycle) or now_s - self._last_read_s < SPACING_S:
            return
        scopes: tuple[int | None, ...] = tuple(instances) or (None,)
        self._last_read_s = now_s
        try:
            self.values = {gi: self._measure(card, gi) for gi in scopes}
        except (NotSupported, VendorFault, DeviceGone):
            self.values, self._supported = {}, False
        self._limiter.record_duration(cycle, self._clock.monotonic() - now_s)

    def _measure(self, card: NvmlCard, instance: int | None) -> dict[int, float]:
        values = self._meter(card, instance).read(card.handle, instance)
        shares = (
            (number, card.check_bounds(f"metric {number}", value, PERFORMANCE[number].bounds))
            for number, value in values.items()
        )
        return {
            number: min(value, 100.0) if PERFORMANCE[number].is_percent else value
            for number, value in shares
            if value is not None
        }

    def _is_supported(self, card: NvmlCard) -> bool:
        if self._supported is None:
            try:
                self._supported = gpm_supported(card.nvml, card.handle)
            except (NotSupported, VendorFault, DeviceGone):
                self._supported = False
        return self._supported

    def _meter(self, card: NvmlCard, instance: int | None) -> GpmMeter:
        meter = self._meters.get(instance)
        if meter is None:
            meter = self._meters[instance] = GpmMeter(card.nvml, PERFORMANCE)
        return meter
