"""What polls tell, as readings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.model.inventory import Reading
from plugins.bindings.nvml.readings import reading
from plugins.faults.nvidia.polled import HealthFacts
from plugins.faults.nvidia.trends import THROTTLES


def polled_readings(facts: HealthFacts, link_errors: Mapping[str, float]) -> Iterator[Reading]:
    """Yield what changes seldom; what the card does not tell is left out."""
    yield from reading("xpu_device_recovery_action", facts.recovery_action)
    if facts.remapped is not None:
        rows = zip(("correctable", "uncorrectable"), facts.remapped, strict=False)
        for kind, count in rows:
            yield from reading("xpu_device_remapped_rows_total", count, kind)
    yield from reading("xpu_device_ecc_errors_total", facts.uncorrected, "uncorrected")
    yield from reading("xpu_device_pcie_replays_total", facts.replays)
    for kind, total in link_errors.items():
        yield from reading("xpu_device_nvlink_errors_total", total, kind)
    if facts.throttle is not None:
        for name, bit in THROTTLES:
            active = float(bool(facts.throttle & bit))
            yield from reading("xpu_device_throttle_active", active, name)
