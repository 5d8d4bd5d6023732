"""Reads performance counters, and rate-limits expensive NVML calls by their measured duration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from agent.errors import DeviceGone, NotSupported, VendorFault
from plugins.vendors.nvidia.library import bounds
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.readings import PERFORMANCE
from plugins.vendors.nvidia.library.structures import GpmMeter, gpm_supported

CHEAP_S = 0.004  # a group of calls that takes less is made in every cycle

EXPENSIVE_EVERY = 10  # cycles between two calls at most

_MEASUREMENTS = 3  # durations; the shortest counts, so that one disturbance makes nothing dear


class CallRateLimiter:
    """The rhythm of one group of calls on one card."""

    def __init__(self) -> None:
        self._took: list[float] = []
        self._next = 0

    def is_due(self, cycle: int) -> bool:
        """Say whether the group is to be called in this cycle."""
        return cycle >= self._next

    def record_duration(self, cycle: int, seconds: float) -> None:
        """Note what a call cost, and when the next one is due: in proportion."""
        self._took = [*self._took, seconds][-_MEASUREMENTS:]
        shortest = min(self._took) if len(self._took) == _MEASUREMENTS else 0.0
        self._next = cycle + min(EXPENSIVE_EVERY, max(1, math.ceil(shortest / CHEAP_S)))


SPACING_S = 0.1  # what the driver wants between two samples


class PerformanceCounters:
    """Meters by GPU instance; `None` is the whole card. Without counters there are no values."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.values: dict[int | None, dict[int, float]] = {}  # percent by metric
        self._clock = clock
        self._meters: dict[int | None, GpmMeter] = {}
        self._pace = CallRateLimiter()
        self._supported: bool | None = None  # None: not asked yet
        self._taken_s = -SPACING_S

    def forget(self) -> None:
        """Ask again whether there are counters, as after a change of the card."""
        self._supported = None

    def read(self, card: NvmlCard, instances: Iterable[int], cycle: int) -> None:
        """Bring the values up to date if it is time; a refusal costs the values, not the card."""
        now_s = self._clock()
        if not self._has(card) or not self._pace.is_due(cycle) or now_s - self._taken_s < SPACING_S:
            return
        wanted: tuple[int | None, ...] = tuple(instances) or (None,)
        self._taken_s = now_s
        try:
            self.values = {gi: self._measure(card, gi) for gi in wanted}
        except (NotSupported, VendorFault, DeviceGone):
            self.values, self._supported = {}, False
        self._pace.record_duration(cycle, self._clock() - now_s)

    def _measure(self, card: NvmlCard, instance: int | None) -> dict[int, float]:
        values = self._meter(card, instance).read(card.handle, instance)
        shares = (
            (number, card.within(f"metric {number}", value, bounds.PERFORMANCE_PERCENT))
            for number, value in values.items()
        )
        return {number: min(value, 100.0) for number, value in shares if value is not None}

    def _has(self, card: NvmlCard) -> bool:
        if self._supported is None:
            try:
                self._supported = gpm_supported(card.nvml, card.handle)
            except (NotSupported, VendorFault, DeviceGone):
                self._supported = False
        return self._supported

    def _meter(self, card: NvmlCard, instance: int | None) -> GpmMeter:
        found = self._meters.get(instance)
        if found is None:
            found = self._meters[instance] = GpmMeter(card.nvml, PERFORMANCE)
        return found
