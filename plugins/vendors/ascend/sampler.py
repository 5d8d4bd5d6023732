"""Samples a chip with one round of DCMI calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock
from agent.snapshot.inventory import (
    DeviceSample,
    MetricFamily,
    MetricValue,
    ProcessSample,
    Rejection,
)
from plugins.shared import metric_families
from plugins.vendors.ascend import metrics
from plugins.vendors.ascend.discovery.descriptions import MIB, ChipDescription
from plugins.vendors.ascend.discovery.models import A3, A910, B310, B910, P310, S310, WITH_HBM
from plugins.vendors.ascend.library import meters
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.facts import ChipFacts
from plugins.vendors.ascend.library.hccn_tool import NetworkLink
from plugins.vendors.ascend.library.meters import HbmState, MemoryErrorCounts, UtilizationRates
from plugins.vendors.ascend.library.network import RocePortState
from plugins.vendors.ascend.library.traffic import ChipTraffic

PERIOD_FROM_S = 10.0  # minimum sampling interval for the call that may block for a second
KIB = 1 << 10
LATE_S = 0.3  # if a chip takes longer, that call blocks
_WITH_DDR = (A910, P310, B310, S310)
_WITH_ERRORS = (B910, A3)


class PolledState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a chip at another pace than that of the samples."""

    fault_codes: tuple[int, ...] = ()  # that are active
    port: RocePortState | None = None
    traffic: ChipTraffic | None = None
    link: NetworkLink | None = None


class AscendSampler:
    """Samples chips one after the other.

    With a long interval, utilization is measured over a full second, unless that call blocks
    meanwhile: all chips together must answer within the deadline.
    """

    def __init__(self, interval_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._period = interval_s >= PERIOD_FROM_S
        self._clock = clock

    def sample(self, description: ChipDescription, chip: Chip, state: PolledState) -> DeviceSample:
        """Sample one chip. Never raises: the value of a failed call is left out."""
        began_s = self._clock.monotonic()
        sample = _sample(description, chip, state, period=self._period)
        self._period = self._period and self._clock.monotonic() - began_s < LATE_S
        return replace(
            sample,
            rejections=tuple(
                Rejection(family=source, value=str(value))
                for source, value in chip.implausible.items()
            ),
        )


def _sample(
    description: ChipDescription, chip: Chip, state: PolledState, *, period: bool
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
            *_memory_sizes(hbm, ddr),
            *_vnpus(description, chip),
            *_fault_codes(state.fault_codes),
            *_port(state.port),
            *_traffic(state.traffic),
            *_link(state.link),
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
    yield from _memory_errors(meters.hbm_errors(chip))
    links = meters.read_links(chip)
    for link in links.errors:
        labels = (link.link, str(link.port), link.kind)
        yield from _reading(metrics.LINK_ERRORS, link.count, *labels)
    for link in links.packets:
        yield from _reading(metrics.HCCS_PACKETS, link.count, str(link.port), link.kind)


def _memory_errors(errors: MemoryErrorCounts | None) -> Iterator[MetricValue]:
    if errors is None:
        return
    for kind, count in zip(("corrected", "uncorrected"), errors.total, strict=True):
        yield from _reading(metric_families.ECC_ERRORS, count, kind)
    for bits, count, pages in zip(
        ("single_bit", "double_bit"), errors.since_reset, errors.isolated_pages, strict=True
    ):
        yield from _reading(metrics.HBM_ERRORS_SINCE_RESET, count, bits)
        yield from _reading(metrics.HBM_ISOLATED_PAGES, pages, bits)
    yield from _reading(metrics.HBM_ECC_ENABLED, errors.is_enabled)


def _memory_sizes(
    hbm: HbmState | None, ddr: tuple[int, int | None] | None
) -> Iterator[MetricValue]:
    """Yield the size and the used part of each kind of memory."""
    memories = (
        (metrics.HBM_TOTAL, metrics.HBM_USED, (hbm.total_mb, hbm.used_mb) if hbm else None),
        (metrics.DDR_TOTAL, metrics.DDR_USED, ddr),
    )
    for total_family, used_family, sizes in memories:
        if sizes is not None:
            total_mb, used_mb = sizes
            yield from _reading(total_family, total_mb * MIB)
            yield from _reading(used_family, None if used_mb is None else used_mb * MIB)


def _vnpus(description: ChipDescription, chip: Chip) -> Iterator[MetricValue]:
    for number in description.vdevs:
        activity = meters.vdev_activity(chip, number)
        if activity is None:
            continue
        ratio = None if activity.percent is None else activity.percent / 100
        yield from _reading(metrics.VNPU_UTILIZATION, ratio, str(number))
        for family, size_kb in (
            (metrics.VNPU_MEMORY_TOTAL, activity.total_kb),
            (metrics.VNPU_MEMORY_USED, activity.used_kb),
        ):
            yield from _reading(family, None if size_kb is None else size_kb * KIB, str(number))


def _port(port: RocePortState | None) -> Iterator[MetricValue]:
    if port is not None:
        yield from _reading(metrics.NETWORK_UP, 1 if port.is_working else 0, port.address)


def _fault_codes(codes: Sequence[int]) -> Iterator[MetricValue]:
    for position, code in enumerate(codes):
        yield from _reading(metrics.ERROR_CODE, 1, f"{code:08X}")
        yield from _reading(metrics.ERROR_CODE_NUMBER, code, str(position))


def _traffic(traffic: ChipTraffic | None) -> Iterator[MetricValue]:
    if traffic is None:
        return
    for family, counts in (
        (metrics.MAC_PACKETS, traffic.mac_packets),
        (metrics.MAC_BYTES, traffic.mac_bytes),
        (metrics.ROCE_PACKETS, traffic.roce_packets),
        (metrics.ROCE_EVENTS, traffic.roce_events),
        (metrics.NETWORK_RATE, traffic.network),
        (metrics.PCIE_RATE, traffic.pcie),
        (metrics.HCCS_RATE, traffic.hccs),
        (metrics.HCCS_PORT_RATE, traffic.hccs_ports),
    ):
        for labels, value in counts:
            yield from _reading(family, value, *labels)


def _link(link: NetworkLink | None) -> Iterator[MetricValue]:
    if link is None:
        return
    for family, value in (
        (metrics.NETWORK_LINK_UP, link.is_up),
        (metrics.NETWORK_SPEED, link.bytes_per_second),
        (metrics.NETWORK_LINK_UPS, link.link_ups),
        (metrics.OPTICAL_PRESENT, link.has_module),
        (metrics.OPTICAL_TEMPERATURE, link.module_celsius),
        (metrics.OPTICAL_VOLTAGE, link.module_volts),
    ):
        yield from _reading(family, value)
    for (direction, lane), watts in link.lane_watts.items():
        yield from _reading(metrics.OPTICAL_POWER, watts, direction, str(lane))


def _reading(family: MetricFamily, value: float | None, *labels: str) -> Iterator[MetricValue]:
    if value is not None:
        yield MetricValue(family=family.name, value=float(value), labels=labels)
