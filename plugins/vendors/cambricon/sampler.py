"""Samples cards with CNDev calls; values that change seldom, or need many calls, less often."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from agent.clock import SYSTEM_CLOCK, Clock
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import DeviceSample, MetricFamily, MetricValue, ProcessSample
from plugins.shared import metric_families
from plugins.vendors.cambricon import metrics
from plugins.vendors.cambricon.health import RUNNING
from plugins.vendors.cambricon.library import board_meters, meters, performance
from plugins.vendors.cambricon.library.card import CndevCard, MluInstance, MluStatus
from plugins.vendors.cambricon.library.meters import Labelled, LinkState
from plugins.vendors.cambricon.library.performance import PerformanceCounters

LINKS_EVERY_S = 15.0  # between two reads of the MLULink ports: five calls for each port
BOARD_EVERY_S = 15.0  # between two reads of voltages, currents, throttling and parts of the memory
OPTICAL_EVERY_S = 60.0  # between two reads of the optical modules: slow buses
MEMORY_EVERY_S = 60.0  # between two reads of memory errors and repairs, and power limits
COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited"}
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
        self._counters: dict[str, PerformanceCounters] = {}  # by device

    def reset(self) -> None:
        """Read all groups again at the next sample: a card may have been exchanged or reset."""
        self._groups = {}
        for counters in self._counters.values():
            counters.reset()

    def close(self) -> None:
        """Give back what the library allocated."""
        for counters in self._counters.values():
            counters.close()
        self._counters.clear()

    def sample(self, card: CndevCard, key: str, *, with_slices: bool) -> DeviceSample | None:
        """Sample a card; `None` if no call succeeded.

        `with_slices` is true for a card in sMLU mode, whose instances are sampled as well.
        """
        memory = card.memory()
        core, by_core = card.utilisation()
        processes = card.processes()
        counters = self._counters.setdefault(key, PerformanceCounters())
        readings = (
            *_readings(card, by_core),
            *_field_readings(card, performance.read_fields(card)),
            *_mean_readings(card, counters.read(card)),
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
                ProcessSample(
                    pid=p.pid,
                    memory_bytes=p.memory_bytes,
                    core_percent=p.core_percent,
                    virtual_bytes=p.virtual_bytes,
                    engine_percents=p.engine_percents,
                )
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
    yield from _values(metrics.TINY_CORE_UTILIZATION, performance.read_tiny_cores(card))
    cpus, by_cpu, by_mode = performance.read_chip_cpus(card)
    yield from _value(metrics.CHIP_CPU_UTILIZATION, cpus)
    yield from _values(metrics.CHIP_CPU_CORE_UTILIZATION, by_cpu)
    yield from _values(metrics.CHIP_CPU_MODES, by_mode)
    yield from _values(metric_families.CLOCK, meters.read_clocks(card))
    yield from _values(metrics.CODEC_UTILIZATION, meters.read_codecs(card))
    yield from _values(metrics.PCIE_RATE, meters.read_pcie_rates(card))
    yield from _values(metrics.PCIE_BYTES, meters.read_pcie_totals(card))
    yield from _value(metric_families.PCIE_REPLAYS, meters.read_pcie_replays(card))
    yield from _values(metrics.HEARTBEATS, board_meters.read_heartbeats(card))


def _field_readings(card: CndevCard, fields: performance.FieldValues) -> Iterator[MetricValue]:
    yield from _values(metrics.UNIT_UTILIZATION, performance.unit_shares(card, fields))
    yield from _values(metrics.HEAT_THRESHOLD, performance.heat_thresholds(card, fields))
    yield from _value(metric_families.ENERGY, performance.energy_joules(card, fields))
    yield from _values(metric_families.THROTTLE_SECONDS, performance.throttle_times(card, fields))


def _mean_readings(card: CndevCard, means: performance.FieldValues) -> Iterator[MetricValue]:
    yield from _values(metrics.MEAN_UTILIZATION, performance.mean_shares(card, means))
    yield from _values(metrics.MEAN_TRAFFIC, performance.mean_traffic(card, means))
    yield from _values(metrics.LINK_MEAN_TRAFFIC, performance.mean_link_traffic(card, means))


def state_readings(device: VendorDevice, status: MluStatus | None) -> Iterator[MetricValue]:
    """Yield the modes and the state of a card; nothing if its health could not be read."""
    if status is None:
        return
    facts = dict(device.facts)
    is_cut = {mode: facts.get(mode) for mode in ("mim", "smlu")}
    mode = next((mode for mode, switch in is_cut.items() if switch == "on"), "whole")
    if mode != "whole" or set(is_cut.values()) == {"off"}:
        yield from _value(metrics.PARTITION_MODE, 1.0, mode)
    if status.driver is not None:
        yield from _value(metrics.DRIVER_RUNNING, float(status.driver == RUNNING))
    compute_mode = COMPUTE_MODES.get(-1 if status.compute is None else status.compute)
    if compute_mode is not None:
        yield from _value(metrics.COMPUTE_MODE, 1.0, compute_mode)


def _link_readings(card: CndevCard) -> Iterator[MetricValue]:
    yield from _value(metrics.LINK_PORTS, float(len(card.link_ports())) or None)
    for link in meters.read_links(card):
        yield from _link_properties(link)
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


def _link_properties(link: LinkState) -> Iterator[MetricValue]:
    if link.mode is not None:
        yield from _value(metrics.LINK_MODE, 1.0, link.port, link.mode)
    if link.speed_format is not None:
        yield from _value(metrics.LINK_SPEED_FORMAT, 1.0, link.port, link.speed_format)
    for direction, flag in link.is_enabled:
        yield from _value(metrics.LINK_ENABLED, flag, link.port, direction)
    for capability, flag in link.capabilities:
        yield from _value(metrics.LINK_CAPABILITY, flag, link.port, capability)
    if link.name or link.version:
        yield from _value(metrics.LINK_INFO, 1.0, link.port, link.name, link.version)
    peer = link.peer
    if peer is not None:
        yield from _value(metrics.LINK_PEER, 1.0, link.port, peer.kind)
        _, *texts = msgspec.structs.astuple(peer)
        yield from _value(metrics.LINK_PEER_INFO, 1.0, link.port, *texts)


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
    yield from _values(metrics.CLUSTER_TEMPERATURE, board_meters.read_cluster_temperatures(card))
    yield from _values(metrics.CLOCK_LOCKED, board_meters.read_clock_lock(card))
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
    yield from _values(metrics.ADDRESS_SWAPS, board_meters.read_address_swaps(card))
    yield from _values(metrics.REPAIR_CHANNELS, board_meters.read_repair_channels(card))
    yield from _values(metrics.ECC_ENABLED, board_meters.read_ecc_modes(card))
    yield from _values(metrics.PAGE_RETIREMENT, board_meters.read_page_retirement(card))
    yield from _value(metrics.MEMORY_BANDWIDTH, board_meters.read_memory_bandwidth(card))
    yield from _value(metrics.MEMORY_WIDTH, board_meters.read_memory_width(card))


def _slice_readings(instances: Sequence[MluInstance]) -> Iterator[MetricValue]:
    for instance in instances:
        label = (str(instance.number),)
        used, total = instance.used_bytes, instance.memory_bytes
        if instance.used_percent is not None:
            yield MetricValue(
                family=metrics.SLICE_CORE, value=float(instance.used_percent), labels=label
            )
        if used is not None:
            yield MetricValue(family=metrics.SLICE_MEMORY, value=float(used), labels=label)
        if used is not None and total:
            yield MetricValue(family=metrics.SLICE_MEMORY_SHARE, value=used / total, labels=label)
        limits = (instance.uuid, instance.name, instance.profile, instance.cores, total)
        yield MetricValue(family=metrics.SLICE_INFO, value=1.0, labels=(*label, *map(str, limits)))


def _value(family: MetricFamily, value: float | None, *labels: str) -> Iterator[MetricValue]:
    if value is not None:
        yield MetricValue(family=family.name, value=value, labels=labels)


def _values(family: MetricFamily, values: Labelled) -> Iterator[MetricValue]:
    for labels, value in values:
        yield MetricValue(family=family.name, value=value, labels=labels)
