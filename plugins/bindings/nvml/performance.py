"""The performance counters of one card and of its GPU instances, read as often as they allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.errors import DeviceGone, NotSupported, VendorFault
from plugins.bindings.nvml import bounds
from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.pace import Pace
from plugins.bindings.nvml.readings import PERFORMANCE
from plugins.bindings.nvml.structures import GpmMeter, gpm_supported

SPACING_S = 0.1  # what the driver wants between two samples


class Performance:
    """Meters by GPU instance; `None` is the whole card. Without counters there are no values."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.values: dict[int | None, dict[int, float]] = {}  # percent by metric
        self._clock = clock
        self._meters: dict[int | None, GpmMeter] = {}
        self._pace = Pace()
        self._supported: bool | None = None  # None: not asked yet
        self._taken_s = -SPACING_S

    def forget(self) -> None:
        """Ask again whether there are counters, as after a change of the card."""
        self._supported = None

    def read(self, card: Card, instances: Iterable[int], cycle: int) -> None:
        """Bring the values up to date if it is time; a refusal costs the values, not the card."""
        now_s = self._clock()
        if not self._has(card) or not self._pace.due(cycle) or now_s - self._taken_s < SPACING_S:
            return
        wanted: tuple[int | None, ...] = tuple(instances) or (None,)
        self._taken_s = now_s
        try:
            self.values = {gi: self._measure(card, gi) for gi in wanted}
        except (NotSupported, VendorFault, DeviceGone):
            self.values, self._supported = {}, False
        self._pace.took(cycle, self._clock() - now_s)

    def _measure(self, card: Card, instance: int | None) -> dict[int, float]:
        values = self._meter(card, instance).take(card.handle, instance)
        shares = (
            (number, card.within(f"metric {number}", value, bounds.PERFORMANCE_PERCENT))
            for number, value in values.items()
        )
        return {number: min(value, 100.0) for number, value in shares if value is not None}

    def _has(self, card: Card) -> bool:
        if self._supported is None:
            try:
                self._supported = gpm_supported(card.nvml, card.handle)
            except (NotSupported, VendorFault, DeviceGone):
                self._supported = False
        return self._supported

    def _meter(self, card: Card, instance: int | None) -> GpmMeter:
        found = self._meters.get(instance)
        if found is None:
            found = self._meters[instance] = GpmMeter(card.nvml, PERFORMANCE)
        return found
