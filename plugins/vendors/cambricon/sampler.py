"""Samples cards with CNDev calls; values that change seldom, or need many calls, less often."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from agent.clock import SYSTEM_CLOCK, Clock
from agent.snapshot.inventory import DeviceSample, MetricFamily, MetricValue, ProcessSample
from plugins.shared import metric_families
from plugins.vendors.cambricon import metrics
from plugins.vendors.cambricon.library import board_meters, meters
from plugins.vendors.cambricon.library.card import CndevCard, MluInstance
from plugins.vendors.cambricon.library.meters import Labelled

LINKS_EVERY_S = 15.0  # between two reads of the MLULink ports: five calls for each port
BOARD_EVERY_S = 15.0  # between two reads of voltages, currents, throttling and parts of the memory
OPTICAL_EVERY_S = 60.0  # between two reads of the optical modules: slow buses
MEMORY_EVERY_S = 60.0  # between two reads of memory errors and repairs, and power limits
MAX_SHARE = 0.02  # of the time that the calls of one group may take: expensive groups pause longer


class _PacedGroup(msgspec.Struct):
    """A group of readings of one card that is read at its own pace."""

    next_s: float = 0.0  # monotonic
    readings: tuple[MetricValue, ...] = ()


class CardSampler:
    """Samples the cards of a session, on one thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._groups: dict[tuple[str, str], _PacedGroup] = {}  # by device and name of the group

    def reset(self) -> None:
        """Read all groups again at the next sample: a card may have been exchanged or reset."""
        self._groups = {}

    def sample(self, card: CndevCard, key: str, *, with_slices: bool) -> DeviceSample | None:
        """Sample a card; `None` if no call succeeded.

        `with_slices` is true for a card in sMLU mode, whose instances are sampled as well.
        """
        memory = card.memory()
        core, by_core = card.utilisation()
        processes = card.processes()
        readings = (
            *_readings(card, by_core),
            *(_slice_readings(card.smlu_instances()) if with_slices else ()),
            *self._paced(key, "links", LINKS_EVERY_S, partial(_link_readings, card)),
            *self._paced(key, "board", BOARD_EVERY_S, partial(_board_readings, card)),
            *self._paced(key, "optical", OPTICAL_EVERY_S, partial(_optical_readings, card)),
            *self._paced(key, "memory", MEMORY_EVERY_S, partial(_memory_readings, card)),
        )
        rejections = card.take_rejections()
        if memory is None and core is None and processes is None and not (readings or rejections):
            return None
        return DeviceSample(
            key=key,
            core_percent=core,
            memory_used_bytes=memory[1] if memory else None,
            memory_total_bytes=memory[0] if memory else None,
            processes=None
            if processes is None
            else tuple(
                ProcessSample(pid=p.pid, memory_bytes=p.memory_bytes, core_percent=p.core_percent)
                for p in processes
            ),
            readings=readings,
            rejections=rejections,
        )

    def _paced(
        self, key: str, name: str, every_s: float, read: Callable[[], Iterator[MetricValue]]
    ) -> tuple[MetricValue, ...]:
        """Return the readings of a group, of its last run if the next one is not due."""
        group = self._groups.setdefault((key, name), _PacedGroup())
        began_s = self._clock.monotonic()
        if began_s >= group.next_s:
            group.readings = tuple(read())
            ended_s = self._clock.monotonic()
            group.next_s = ended_s + max(every_s, (ended_s - began_s) / MAX_SHARE)
        return group.readings


def _readings(card: CndevCard, by_core: Sequence[float | None]) -> Iterator[MetricValue]:
    usage, limit = card.power_watts()
    yield from _value(metric_families.POWER, usage)
    yield from _value(metric_families.POWER_LIMIT, limit)
    for sensor, temperature in card.temperatures():
        yield from _value(metric_families.TEMPERATURE, temperature, sensor)
    for kind, count in card.ecc():
        yield from _value(metric_families.ECC_ERRORS, float(count), kind)
    for core, percent in enumerate(by_core):
        ratio = None if percent is None else percent / 100
        yield from _value(metrics.CORE_UTILIZATION, ratio, str(core))
    yield from _values(metric_families.CLOCK, meters.read_clocks(card))
    yield from _values(metrics.CODEC_UTILIZATION, meters.read_codecs(card))
    yield from _values(metrics.PCIE_RATE, meters.read_pcie_rates(card))
    yield from _values(metrics.PCIE_BYTES, meters.read_pcie_totals(card))
    yield from _value(metric_families.PCIE_REPLAYS, meters.read_pcie_replays(card))


def _link_readings(card: CndevCard) -> Iterator[MetricValue]:
    for link in meters.read_links(card):
        for layer, state in link.layers:
            yield from _value(metrics.LINK_STATE, 1.0, link.port, layer, state)
        yield from _value(metrics.LINK_SPEED, link.speed_bytes, link.port)
        for unit, direction, count in link.traffic:
            family = metrics.LINK_BYTES if unit == "bytes" else metrics.LINK_PACKETS
            yield from _value(family, count, link.port, direction)
        for kind, count in link.errors:
            yield from _value(metrics.LINK_ERRORS, count, link.port, kind)
        for kind, count in link.congestion:
            yield from _value(metrics.LINK_CONGESTION, count, link.port, kind)


def _optical_readings(card: CndevCard) -> Iterator[MetricValue]:
    for module in meters.read_optical_modules(card):
        port = module.port
        yield from _value(metrics.OPTICAL_PRESENT, float(module.is_present), port)
        yield from _value(metrics.OPTICAL_TEMPERATURE, module.celsius, port)
        yield from _value(metrics.OPTICAL_VOLTAGE, module.volts, port)
        for direction, lane, watts in module.watts:
            yield from _value(metrics.OPTICAL_POWER, watts, port, direction, lane)


def _board_readings(card: CndevCard) -> Iterator[MetricValue]:
    yield from _values(metrics.VOLTAGE, board_meters.read_voltages(card))
    yield from _values(metrics.CURRENT, board_meters.read_currents(card))
    yield from _values(metrics.HEAT_REACTIONS, board_meters.read_heat_reactions(card))
    yield from _values(metrics.THROTTLED, board_meters.read_throttling(card))
    yield from _values(metrics.MEMORY_PARTS, board_meters.read_memory_parts(card))


def _memory_readings(card: CndevCard) -> Iterator[MetricValue]:
    yield from _values(metric_families.REMAPPED_ROWS, meters.read_remapped_rows(card))
    yield from _values(metrics.MEMORY_REPAIR, meters.read_repair_states(card))
    yield from _values(metrics.RETIRED_PAGES, meters.read_retired_pages(card))
    yield from _values(metrics.POWER_BOUNDS, meters.read_power_limits(card))
    yield from _values(metrics.MEMORY_ERRORS, board_meters.read_memory_errors(card))
    lifetime_errors = board_meters.read_lifetime_memory_errors(card)
    yield from _values(metrics.LIFETIME_MEMORY_ERRORS, lifetime_errors)
    yield from _values(metrics.SRAM_EXCESS, board_meters.read_excess(card))
    yield from _values(metrics.ECC_EXTENTS, board_meters.read_ecc_extents(card))
    yield from _values(metrics.PARITY_ERRORS, board_meters.read_parity_errors(card))
    yield from _values(metrics.DIE_LINK_ERRORS, board_meters.read_die_link_errors(card))


def _slice_readings(instances: Sequence[MluInstance]) -> Iterator[MetricValue]:
    for instance in instances:
        label = (str(instance.number),)
        if instance.used_percent is not None:
            yield MetricValue(
                family=metrics.SLICE_CORE, value=float(instance.used_percent), labels=label
            )
        if instance.used_bytes is not None:
            yield MetricValue(
                family=metrics.SLICE_MEMORY, value=float(instance.used_bytes), labels=label
            )


def _value(family: MetricFamily, value: float | None, *labels: str) -> Iterator[MetricValue]:
    if value is not None:
        yield MetricValue(family=family.name, value=value, labels=labels)


def _values(family: MetricFamily, values: Labelled) -> Iterator[MetricValue]:
    for labels, value in values:
        yield MetricValue(family=family.name, value=value, labels=labels)
