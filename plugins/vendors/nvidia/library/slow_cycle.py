"""A card's NVML values that change seldom: errors, throttling, limits, fans, links, licence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent.snapshot.inventory import MetricValue
from plugins.vendors.nvidia.library import bounds
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.readings import (
    NVLINK_RATE,
    PCIE_RATE,
    Fields,
    optional_reading,
)
from plugins.vendors.nvidia.library.structures import read_license

_ECC_FAMILY, _ECC_LIFETIME_FAMILY = (
    "xpu_device_ecc_errors_total",
    "xpu_device_ecc_lifetime_errors_total",
)
# family and kind of error; field, and the arguments of the call that has the same value:
# type of error (0 corrected) and of counter (0 since the driver was loaded). The health check
# reads uncorrected errors since the driver was loaded.
_ECC_COUNTERS = (
    (_ECC_FAMILY, "corrected", (3, 0), (0, 0)),
    (_ECC_LIFETIME_FAMILY, "corrected", (5, 0), (0, 1)),
    (_ECC_LIFETIME_FAMILY, "uncorrected", (6, 0), (1, 1)),
)
_THROTTLE_TIMES = (  # nanoseconds since the driver was loaded
    ("power", (74, 0)),
    ("thermal", (75, 0)),
    ("sync_boost", (76, 0)),
    ("board_limit", (77, 0)),
    ("low_utilization", (78, 0)),
    ("reliability", (79, 0)),
    ("sw_thermal", (269, 0)),
    ("hw_thermal", (270, 0)),
    ("hw_power_brake", (271, 0)),
)
_POWER_LIMITS = (("min", (187, 0)), ("max", (188, 0)), ("default", (189, 0)))
_POWER_LIMIT_NOW = (190, 0)
_CARD_FIELDS = (
    *(field for _, _, field, _ in _ECC_COUNTERS),
    *(field for _, field in (*_THROTTLE_TIMES, *_POWER_LIMITS)),
    _POWER_LIMIT_NOW,
)
# direction; fields of data in KiB, and in bytes from NVLink 5 on
_LINK_TRAFFIC = (("tx", 138, 202), ("rx", 139, 204))
_UNKNOWN_STATE = 32


def slow_cycle_readings(card: NvmlCard, links: int) -> Iterator[MetricValue]:
    """Yield the readings; `links` is the number of NVLinks of the card."""
    link_fields = tuple(
        (number, link)
        for link in range(links)
        for _, kib, octets in _LINK_TRAFFIC
        for number in (kib, octets)
    )
    fields = card.fields((*_CARD_FIELDS, *link_fields))
    yield from _ecc_readings(card, fields)
    for reason, field in _THROTTLE_TIMES:
        seconds = fields[field] / 1e9 if field in fields else None
        yield from optional_reading("xpu_device_throttle_seconds_total", seconds, reason)
    yield from _power_limit_readings(card, fields)
    yield from _fan_readings(card)
    state = card.number("nvmlDeviceGetPerformanceState")
    if state != _UNKNOWN_STATE:
        state = card.check_bounds("nvmlDeviceGetPerformanceState", state, bounds.PERFORMANCE_STATE)
        yield from optional_reading("xpu_device_performance_state", state)
    yield from _license_readings(card)
    for link in range(links):
        for direction, kib, octets in _LINK_TRAFFIC:
            traffic = fields.get((octets, link))
            if (kib, link) in fields:
                traffic = fields[kib, link] * 1024
            yield from optional_reading(
                "xpu_device_nvlink_link_bytes_total", traffic, str(link), direction
            )


def _ecc_readings(card: NvmlCard, fields: Fields) -> Iterator[MetricValue]:
    for family, kind, field, arguments in _ECC_COUNTERS:
        errors = fields.get(field)
        if errors is None:
            errors = card.measure("nvmlDeviceGetTotalEccErrors", bounds.ERRORS, *arguments)
        yield from optional_reading(family, errors, kind)


def _power_limit_readings(card: NvmlCard, fields: Fields) -> Iterator[MetricValue]:
    limit: float | None = card.measure("nvmlDeviceGetEnforcedPowerLimit", bounds.MILLIWATTS)
    if limit is None:
        limit = fields.get(_POWER_LIMIT_NOW)
    yield from optional_reading("xpu_device_power_limit_watts", _thousandth(limit))
    for kind, field in _POWER_LIMITS:
        watts = _thousandth(fields.get(field))
        yield from optional_reading("xpu_device_power_limit_bounds_watts", watts, kind)


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000


def _fan_readings(card: NvmlCard) -> Iterator[MetricValue]:
    for fan in range(card.measure("nvmlDeviceGetNumFans", bounds.FANS) or 0):
        percent = card.measure("nvmlDeviceGetFanSpeed_v2", bounds.FAN_PERCENT, fan)
        speed = None if percent is None else percent / 100
        yield from optional_reading("xpu_device_fan_speed_ratio", speed, str(fan))


def _license_readings(card: NvmlCard) -> Iterator[MetricValue]:
    """Yield whether a vGPU has its licence; a card that needs none has no reading."""
    name = "nvmlDeviceGetGridLicensableFeatures_v4"
    answer = card.attempt((name,), lambda: read_license(card.nvml, card.handle))
    if not isinstance(answer, tuple):
        return
    needs_license, count, states = answer
    is_plausible = (
        card.check_bounds(name, needs_license, bounds.FLAG) is not None
        and card.check_bounds(name, count, bounds.FEATURES) is not None
        and all(card.check_bounds(name, state, bounds.FLAG) is not None for state in states)
    )
    if is_plausible and needs_license:
        yield from optional_reading("xpu_device_vgpu_licensed", int(any(states)))


_RATE_FAMILIES = {
    "xpu_device_pcie_bytes_total": PCIE_RATE,
    "xpu_device_nvlink_bytes_total": NVLINK_RATE,
}


class TrafficRates:
    """Bytes per second of a card, from the difference of its counters between two cycles."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}  # time, bytes

    def read(
        self, card: NvmlCard, readings: Iterable[MetricValue], now_s: float
    ) -> Iterator[MetricValue]:
        """Yield the rates; a counter that is new, or was reset, has none."""
        for reading in readings:
            family = _RATE_FAMILIES.get(reading.family)
            if family is None:
                continue
            key = (family, reading.labels)
            last_s, last_bytes = self._last.get(key, (now_s, reading.value))
            self._last[key] = (now_s, reading.value)
            if now_s > last_s and reading.value >= last_bytes:
                rate = card.check_bounds(
                    f"rate of {reading.family}",
                    (reading.value - last_bytes) / (now_s - last_s),
                    bounds.BYTES_A_SECOND,
                )
                yield from optional_reading(family, rate, *reading.labels)
