"""A card's NVML values as metrics in base units; unsupported values are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.snapshot.inventory import Bounds, MetricValue
from plugins.vendors.nvidia.library import bounds
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.nvml import MemorySizes
from plugins.vendors.nvidia.library.processes import window_start_us
from plugins.vendors.nvidia.library.structures import read_samples

ALL_LINKS = 0xFFFFFFFF
POWER_NOW, POWER_MEAN, ENERGY, MEMORY_HEAT = (186, 0), (185, 0), (83, 0), (82, 0)
PCIE = ((197, 0), (198, 0))  # bytes sent, received
NVLINK_KIB = ((138, ALL_LINKS), (139, ALL_LINKS))
NVLINK_BYTES = ((202, ALL_LINKS), (204, ALL_LINKS))  # NVLink 5
FIELDS = (POWER_NOW, POWER_MEAN, ENERGY, MEMORY_HEAT, *PCIE, *NVLINK_KIB, *NVLINK_BYTES)
SM_ACTIVE = 2


class PerformanceMetric(msgspec.Struct, frozen=True):
    """A metric of GPU performance monitoring, in percent or in MiB per second."""

    family: str
    labels: tuple[str, ...] = ()
    is_percent: bool = True

    @property
    def bounds(self) -> Bounds:
        """The plausible values in the driver's unit."""
        return bounds.PERFORMANCE_PERCENT if self.is_percent else bounds.MEGABYTES_A_SECOND

    def convert(self, value: float) -> float:
        """Return the value in the unit of the family."""
        return value / 100 if self.is_percent else value * (1 << 20)


_PIPES = {
    4: "integer",
    5: "tensor",
    6: "tensor_dfma",
    7: "tensor_hmma",
    8: "tensor_dmma",
    9: "tensor_imma",
    10: "dram",
    11: "fp64",
    12: "fp32",
    13: "fp16",
}
PCIE_RATE, NVLINK_RATE = "xpu_device_pcie_bytes_per_second", "xpu_device_nvlink_bytes_per_second"
PERFORMANCE: dict[int, PerformanceMetric] = {
    1: PerformanceMetric("xpu_device_graphics_engine_active_ratio"),
    SM_ACTIVE: PerformanceMetric("xpu_device_sm_active_ratio"),
    3: PerformanceMetric("xpu_device_sm_occupancy_ratio"),
    **{
        number: PerformanceMetric("xpu_device_pipe_active_ratio", (pipe,))
        for number, pipe in _PIPES.items()
    },
    20: PerformanceMetric(PCIE_RATE, ("tx",), is_percent=False),
    21: PerformanceMetric(PCIE_RATE, ("rx",), is_percent=False),
    60: PerformanceMetric(NVLINK_RATE, ("rx",), is_percent=False),
    61: PerformanceMetric(NVLINK_RATE, ("tx",), is_percent=False),
}
_GPU_SAMPLES = 1
_SM_CLOCK, _MEMORY_CLOCK = 1, 2

Fields = Mapping[tuple[int, int], float]


def core_percent(card: NvmlCard, wall_s: float) -> float | None:
    """Return the mean of NVML's samples since the last cycle, else the driver's last rate."""
    last = window_start_us(card, "gpu", wall_s)
    samples = card.attempt(
        ("samples",), lambda: read_samples(card.nvml, card.handle, _GPU_SAMPLES, last)
    )
    stamps = (0, wall_s * 1e6 + bounds.MAX_AHEAD_US)
    plausible = [
        (stamp, value)
        for stamp, value in (samples if isinstance(samples, tuple) else ())
        if card.check_bounds("nvmlDeviceGetSamples", value, bounds.PERCENT) is not None
        and card.check_bounds("time stamp of a sample", stamp, stamps) is not None
    ]
    if plausible:
        card.newest_stamps_us["gpu"] = max(stamp for stamp, _ in plausible)
        return float(sum(value for _, value in plausible) / len(plausible))
    return _rate(card, "gpu")


def _rate(card: NvmlCard, member: str) -> float | None:
    """Return the utilization of the driver's last period in percent."""
    name = "nvmlDeviceGetUtilizationRates"
    rates = card.call(name)
    if rates is None:
        return None
    return card.check_bounds(name, float(getattr(rates, member)), bounds.PERCENT)


def cycle_readings(card: NvmlCard, fields: Fields) -> Iterator[MetricValue]:
    """Yield power, energy, temperature and traffic; `fields` holds the values of `FIELDS`."""
    power = _first(fields, (POWER_NOW, POWER_MEAN))
    power = (
        power if power is not None else card.measure("nvmlDeviceGetPowerUsage", bounds.MILLIWATTS)
    )
    energy = fields.get(ENERGY)
    if energy is None:
        energy = card.measure("nvmlDeviceGetTotalEnergyConsumption", bounds.COUNTER)
    yield from optional_reading("xpu_device_power_watts", _thousandth(power))
    yield from optional_reading("xpu_device_energy_joules_total", _thousandth(energy))
    temperature = card.measure("nvmlDeviceGetTemperature", bounds.CELSIUS, 0)
    yield from optional_reading("xpu_device_temperature_celsius", temperature, "gpu")
    yield from optional_reading("xpu_device_temperature_celsius", fields.get(MEMORY_HEAT), "memory")
    for direction, pcie, kib, nvlink5 in zip(
        ("tx", "rx"), PCIE, NVLINK_KIB, NVLINK_BYTES, strict=True
    ):
        yield from optional_reading("xpu_device_pcie_bytes_total", fields.get(pcie), direction)
        link_bytes = fields[kib] * 1024 if kib in fields else fields.get(nvlink5)
        yield from optional_reading("xpu_device_nvlink_bytes_total", link_bytes, direction)


def memory_readings(memory: MemorySizes | None) -> Iterator[MetricValue]:
    """Yield the free memory and the driver's reserve of a card that has memory of its own."""
    if memory is not None and memory.total:
        yield from optional_reading("xpu_device_memory_free_bytes", memory.free)
        yield from optional_reading("xpu_device_memory_reserved_bytes", memory.reserved)


def engine_readings(card: NvmlCard) -> Iterator[MetricValue]:
    """Yield clocks, and the utilization of memory and video engines in the last period."""
    for name, number in (("sm", _SM_CLOCK), ("memory", _MEMORY_CLOCK)):
        clock = card.measure("nvmlDeviceGetClockInfo", bounds.MEGAHERTZ, number)
        hertz = clock * 1e6 if clock is not None else None
        yield from optional_reading("xpu_device_clock_hertz", hertz, name)
    yield from optional_reading("xpu_device_memory_busy_ratio", _hundredth(_rate(card, "memory")))
    for name in ("Encoder", "Decoder"):
        call = f"nvmlDeviceGet{name}Utilization"
        numbers = card.numbers(call)
        percent = card.check_bounds(call, numbers[0], bounds.PERCENT) if numbers else None
        yield from optional_reading(
            "xpu_device_engine_busy_ratio", _hundredth(percent), name.lower()
        )


def implausible_readings(card: NvmlCard) -> Iterator[MetricValue]:
    """Yield the number of implausible values of each call."""
    for source, count in sorted(card.implausible.items()):
        yield from optional_reading("xpu_device_implausible_readings_total", count, source)


def performance_readings(values: Mapping[int, float]) -> Iterator[MetricValue]:
    """Yield the card's performance counters in base units."""
    for number, metric in PERFORMANCE.items():
        if number in values:
            yield from optional_reading(
                metric.family, metric.convert(values[number]), *metric.labels
            )


def optional_reading(family: str, value: float | None, *labels: str) -> Iterator[MetricValue]:
    """Yield one metric value, or nothing if the value is `None`."""
    if value is not None:
        yield MetricValue(family=family, value=float(value), labels=labels)


def _thousandth(value: float | None) -> float | None:
    # a division is exact where a multiplication by 0.001 is not
    return value / 1000 if value is not None else None


def _hundredth(value: float | None) -> float | None:
    return value / 100 if value is not None else None


def _first(fields: Fields, keys: Iterable[tuple[int, int]]) -> float | None:
    return next((fields[key] for key in keys if key in fields), None)
