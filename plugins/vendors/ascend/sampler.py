"""Samples a chip with one round of DCMI calls."""

from __future__ import annotations

from collections.abc import Iterator

from agent.clock import SYSTEM_CLOCK, Clock
from agent.snapshot.inventory import DeviceSample, MetricFamily, MetricValue, ProcessSample
from plugins.shared import metric_families
from plugins.vendors.ascend import metrics
from plugins.vendors.ascend.discovery.descriptions import MIB, ChipDescription
from plugins.vendors.ascend.discovery.models import A3, A910, B310, B910, P310, S310, WITH_HBM
from plugins.vendors.ascend.library import meters
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.facts import ChipFacts
from plugins.vendors.ascend.library.meters import HbmState, UtilizationRates
from plugins.vendors.ascend.library.network import RocePortState

PERIOD_FROM_S = 10.0  # minimum sampling interval for the call that may block for a second
LATE_S = 0.3  # if a chip takes longer, that call blocks
_WITH_DDR = (A910, P310, B310, S310)
_WITH_ERRORS = (B910, A3)


class AscendSampler:
    """Samples chips one after the other.

    With a long interval, utilization is measured over a full second, unless that call blocks
    meanwhile: all chips together must answer within the deadline.
    """

    def __init__(self, interval_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._period = interval_s >= PERIOD_FROM_S
        self._clock = clock

    def sample(
        self, description: ChipDescription, chip: Chip, port: RocePortState | None
    ) -> DeviceSample:
        """Sample one chip. Never raises: the value of a failed call is left out."""
        began_s = self._clock.monotonic()
        sample = _sample(description, chip, port, period=self._period)
        self._period = self._period and self._clock.monotonic() - began_s < LATE_S
        return sample


def _sample(
    description: ChipDescription, chip: Chip, port: RocePortState | None, *, period: bool
) -> DeviceSample:
    family = description.family
    rates = meters.read_rates(chip, period=period)
    hbm = meters.read_hbm(chip) if family in WITH_HBM or not description.facts.ddr_mb else None
    ddr = meters.read_ddr(chip) if family in _WITH_DDR else None
    total, used = _memory(description.facts, hbm, ddr)
    return DeviceSample(
        key=description.key,
        core_percent=None if rates is None or rates.core is None else float(rates.core),
        memory_used_bytes=used,
        memory_total_bytes=total,
        processes=_processes(chip),
        readings=(
            *_power(description, chip),
            *_temperatures(chip, hbm),
            *_utilization(chip, rates, hbm),
            *_errors(description, chip),
            *_ddr(hbm, ddr),
            *_vnpus(description, chip),
            *_port(port),
        ),
    )


def _memory(
    facts: ChipFacts, hbm: HbmState | None, ddr: tuple[int, int | None] | None
) -> tuple[int | None, int | None]:
    """Return total and used bytes of the memory for tensors."""
    if hbm is not None:
        return hbm.total_mb * MIB, None if hbm.used_mb is None else hbm.used_mb * MIB
    if ddr is None or facts.hbm_mb:
        return None, None
    total, used = ddr
    return total * MIB, None if used is None else used * MIB


def _processes(chip: Chip) -> tuple[ProcessSample, ...] | None:
    processes = meters.read_processes(chip)
    if processes is None:
        return None
    used: dict[int, int] = {}
    for pid, size in processes:
        used[pid] = used.get(pid, 0) + size
    return tuple(ProcessSample(pid=pid, memory_bytes=used[pid]) for pid in sorted(used))


def _power(description: ChipDescription, chip: Chip) -> Iterator[MetricValue]:
    # the controller of a 310P card reports the power of the whole card: count it once
    of_card = description.family == P310
    if not of_card or description.number == 0:
        power = meters.power_deciwatt(chip, of_card=of_card)
        yield from _reading(metric_families.POWER, None if power is None else power / 10)
    voltage = meters.voltage_centivolt(chip)
    volts = None if voltage is None else voltage / 100
    yield from _reading(metrics.VOLTAGE, volts)
    clock = meters.core_clock_mhz(chip)
    yield from _reading(metric_families.CLOCK, None if clock is None else clock * 1e6, "aicore")


def _temperatures(chip: Chip, hbm: HbmState | None) -> Iterator[MetricValue]:
    yield from _reading(metric_families.TEMPERATURE, meters.temperature_celsius(chip), "chip")
    memory_temperature = hbm.temperature_celsius if hbm is not None else None
    yield from _reading(metric_families.TEMPERATURE, memory_temperature, "memory")


def _utilization(
    chip: Chip, rates: UtilizationRates | None, hbm: HbmState | None
) -> Iterator[MetricValue]:
    values = () if rates is None else (rates.core, rates.vector, rates.cube, rates.overall)
    for unit, percent in zip(("aicore", "vector", "cube", "overall"), values, strict=False):
        yield from _ratio(percent, unit)
    if hbm is not None:
        memory = meters.read_rate(chip, meters.MEMORY)
        if memory is None and hbm.used_mb is not None:
            memory = round(100 * hbm.used_mb / hbm.total_mb)
        yield from _ratio(memory, "memory")
        yield from _ratio(hbm.bandwidth_percent, "memory_bandwidth")


def _ratio(percent: int | None, unit: str) -> Iterator[MetricValue]:
    ratio = None if percent is None else percent / 100
    yield from _reading(metrics.UTILIZATION, ratio, unit)


def _errors(description: ChipDescription, chip: Chip) -> Iterator[MetricValue]:
    if description.family not in _WITH_ERRORS:
        return
    error_counts = meters.hbm_errors(chip)
    if error_counts is not None:
        yield from _reading(metric_families.ECC_ERRORS, error_counts.corrected, "corrected")
        yield from _reading(metric_families.ECC_ERRORS, error_counts.uncorrected, "uncorrected")
    for link in meters.link_errors(chip):
        labels = (link.link, str(link.port), link.kind)
        yield from _reading(metrics.LINK_ERRORS, link.count, *labels)


def _ddr(hbm: HbmState | None, ddr: tuple[int, int | None] | None) -> Iterator[MetricValue]:
    """Yield the used DDR memory of a chip that also has HBM."""
    if hbm is not None and ddr is not None and ddr[1] is not None:
        yield from _reading(metrics.DDR_USED, ddr[1] * MIB)


def _vnpus(description: ChipDescription, chip: Chip) -> Iterator[MetricValue]:
    for number in description.vdevs:
        activity = meters.vdev_activity(chip, number)
        if activity is None:
            continue
        percent, used = activity
        ratio = None if percent is None else percent / 100
        yield from _reading(metrics.VNPU_UTILIZATION, ratio, str(number))
        size = None if used is None else used * MIB
        yield from _reading(metrics.VNPU_MEMORY, size, str(number))


def _port(port: RocePortState | None) -> Iterator[MetricValue]:
    if port is not None:
        yield from _reading(metrics.NETWORK_UP, 1 if port.is_working else 0, port.address)


def _reading(family: MetricFamily, value: float | None, *labels: str) -> Iterator[MetricValue]:
    if value is not None:
        yield MetricValue(family=family.name, value=float(value), labels=labels)
