"""Utilization, traffic and energy that a card measures itself; labelled as `meters` yields values.

Field values are those of the moment. Performance counters (MPM) give means between two samples.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
from collections.abc import Iterable, Mapping
from functools import partial

from agent.errors import AgentError
from agent.snapshot.inventory import BYTES_PER_SECOND, PERCENT, scale
from plugins.vendors.cambricon.library import codes
from plugins.vendors.cambricon.library.card import CARD_CELSIUS, COUNTS, MIB, CndevCard
from plugins.vendors.cambricon.library.cndev import STRUCTURES, Cndev
from plugins.vendors.cambricon.library.meters import Labelled

MILLI, NANO = 1e-3, 1e-9
TINY_CORES = 10
CHIP_CPUS = 32
CPU_MODES = 64  # elements of a core's list of modes, of which the first have a meaning

_GET_FIELDS = "cndevDeviceGetFieldValues"
_TENSOR, _CARD, _ENERGY = 65, 66, 71
_THRESHOLDS = ((53, "power_off"), (52, "slowdown"))
_THROTTLES = ((72, "power"), (73, "thermal"), (74, "board_limit"), (75, "any"))
# Older libraries know the first fields only, and may refuse a request for a field beyond.
_FIELDS = {
    "": (_TENSOR, _CARD, *(number for number, _ in _THRESHOLDS)),
    " of energy": (_ENERGY, *(number for number, _ in _THROTTLES)),
}
_FORMATS = {0: "<d", 1: "<I", 2: "<Q", 3: "<Q", 4: "<i", 5: "<q", 6: "<q"}  # by type of a field

_CPU_MODES = ("user", "nice", "system", "softirq", "irq")

_MPM_LAYOUT = 1  # version of the request's structure
_MPM_UNITS = ((1, "core"), (2, "card"), (3, "tensor"))
_MPM_TRAFFIC = (
    (20, "pcie", "sent"),
    (21, "pcie", "received"),
    (60, "mlulink", "sent"),
    (61, "mlulink", "received"),
)
_MPM_LINKS = 18  # ports that have counters
_MPM_FIRST_LINK = 62
_DIRECTIONS = ("sent", "received")

FieldValues = Mapping[int, float]  # by number of the field


def read_fields(card: CndevCard) -> FieldValues:
    """Return the fields that the card has, in CNDev's units."""
    values: dict[int, float] = {}
    for suffix, numbers in _FIELDS.items():
        records = card.call(f"{_GET_FIELDS}{suffix}", partial(_request_fields, card, numbers))
        for number, record in zip(numbers, records or (), strict=False):
            value = _field_value(record)
            if value is not None:
                values[number] = value
    return values


def _request_fields(card: CndevCard, numbers: tuple[int, ...]) -> tuple[ctypes.Structure, ...]:
    records = (STRUCTURES["FieldValue"] * len(numbers))()
    for record, number in zip(records, numbers, strict=True):
        record.id = number
    card.cndev.call(_GET_FIELDS, card.handle, len(numbers), records)
    return tuple(records)


def _field_value(record: ctypes.Structure) -> float | None:
    pattern = _FORMATS.get(record.type)
    if record.code != codes.OK or pattern is None:
        return None
    (value,) = struct.unpack_from(pattern, record.value.to_bytes(8, "little"))
    return float(value)


def unit_shares(card: CndevCard, fields: FieldValues) -> Labelled:
    """Yield (unit, busy share) of the whole card and of its tensor units."""
    for number, unit in ((_CARD, "card"), (_TENSOR, "tensor")):
        percent = fields.get(number)
        if percent is not None and card.is_possible(f"utilization {unit}", percent, PERCENT):
            yield (unit,), percent / 100


def heat_thresholds(card: CndevCard, fields: FieldValues) -> Labelled:
    """Yield (reaction, degrees Celsius) from which the card switches off, or slows down."""
    for number, reaction in _THRESHOLDS:
        celsius = fields.get(number)
        # 0: the card has no such threshold
        if celsius and card.is_possible(f"threshold {reaction}", celsius, CARD_CELSIUS):
            yield (reaction,), celsius


def energy_joules(card: CndevCard, fields: FieldValues) -> float | None:
    """Return the energy since the driver was loaded."""
    millijoules = fields.get(_ENERGY)
    if millijoules is None or not card.is_possible("energy", millijoules, COUNTS):
        return None
    return millijoules * MILLI


def throttle_times(card: CndevCard, fields: FieldValues) -> Labelled:
    """Yield (reason, seconds) in which the cores were slower than set, since the driver started."""
    for number, reason in _THROTTLES:
        nanoseconds = fields.get(number)
        if nanoseconds is not None and card.is_possible(f"throttle {reason}", nanoseconds, COUNTS):
            yield (reason,), nanoseconds * NANO


def read_tiny_cores(card: CndevCard) -> Labelled:
    """Yield (core, busy share) of the card's tiny cores."""
    record = card.read("cndevGetTinyCoreUtilization", "TinyCores")
    if record is not None and 0 < record.count <= TINY_CORES:
        yield from _shares(card, "tiny core", record.core[: record.count])


def read_chip_cpus(card: CndevCard) -> tuple[float | None, Labelled, Labelled]:
    """Return the busy share of the chip's own CPUs, of each core, and of each core by mode."""
    record = card.read("cndevGetDeviceCPUUtilizationV2", "ChipCpu")
    cores = record.cores if record is not None else 0
    if record is None or not 0 < cores <= CHIP_CPUS:
        return None, iter(()), iter(())
    is_possible = card.is_possible("utilization chip cpu", record.average, PERCENT)
    return (
        record.average / 100 if is_possible else None,
        _shares(card, "chip cpu", record.core[:cores]),
        _mode_shares(card, record),
    )


def _mode_shares(card: CndevCard, record: ctypes.Structure) -> Labelled:
    for core in range(record.cores):
        first = core * CPU_MODES
        for mode, percent in zip(_CPU_MODES, record.mode[first : first + CPU_MODES], strict=False):
            if card.is_possible(f"utilization chip cpu {mode}", percent, PERCENT):
                yield (str(core), mode), percent / 100


def _shares(card: CndevCard, unit: str, percents: Iterable[int]) -> Labelled:
    for number, percent in enumerate(percents):
        if card.is_possible(f"utilization {unit}", percent, PERCENT):
            yield (str(number),), percent / 100


class PerformanceCounters:
    """Samples the performance counters of one card, and computes means between two samples."""

    def __init__(self) -> None:
        self._cndev: Cndev | None = None
        self._older, self._newer = ctypes.c_void_p(), ctypes.c_void_p()  # samples of the library
        self._has_sample = False  # in `_older`
        self._is_supported: bool | None = None
        self._links = 0

    def reset(self) -> None:
        """Ask again at the next sample whether the card has counters, and for which links."""
        self._is_supported = None

    def read(self, card: CndevCard) -> FieldValues:
        """Return the means since the last call, by number of the metric; nothing at the first."""
        if self._is_supported is None:
            answer = card.call("cndevMpmQueryDeviceSupport", partial(_query_support, card))
            self._is_supported = bool(answer)
            self._links = min(len(card.link_ports()), _MPM_LINKS) if answer else 0
        if not self._is_supported or not self._allocate(card):
            return {}
        if not card.call("cndevMpmSampleGet", partial(self._take_sample, card)):
            self._has_sample = False
            return {}
        values = self._means(card) if self._has_sample else {}
        self._older, self._newer = self._newer, self._older
        self._has_sample = True
        return values

    def _allocate(self, card: CndevCard) -> bool:
        """Return whether both samples are there; each library allocates its own."""
        if card.cndev is not self._cndev:
            self._older, self._newer, self._has_sample = ctypes.c_void_p(), ctypes.c_void_p(), False
            self._cndev = card.cndev
        samples = (self._older, self._newer)
        return all(
            sample.value
            or card.call("cndevMpmSampleAlloc", partial(_allocate_sample, card, sample))
            for sample in samples
        )

    def _take_sample(self, card: CndevCard) -> bool:
        card.cndev.call("cndevMpmSampleGet", self._newer, card.handle)
        return True

    def _means(self, card: CndevCard) -> FieldValues:
        links = range(_MPM_FIRST_LINK, _MPM_FIRST_LINK + len(_DIRECTIONS) * self._links)
        numbers = [
            *(number for number, _ in _MPM_UNITS),
            *(number for number, *_ in _MPM_TRAFFIC),
            *links,
        ]
        request = card.cndev.record("MpmRequest")
        request.layout, request.count = _MPM_LAYOUT, len(numbers)
        request.first, request.second = self._older.value, self._newer.value
        for metric, number in zip(request.metrics, numbers, strict=False):
            metric.id = number
        if not card.call("cndevMpmMetricsGet", partial(_compute_means, card, request)):
            return {}
        # not a number: the samples lie too close together
        return {
            metric.id: metric.value
            for metric in request.metrics[: len(numbers)]
            if metric.code == codes.OK and not math.isnan(metric.value)
        }

    def close(self) -> None:
        """Free the samples."""
        cndev, self._cndev = self._cndev, None
        for sample in (self._older, self._newer):
            if cndev is not None and sample.value:
                with contextlib.suppress(AgentError):  # the process ends anyway
                    cndev.call("cndevMpmSampleFree", sample)


def _query_support(card: CndevCard) -> bool:
    is_supported = ctypes.c_uint8()
    card.cndev.call("cndevMpmQueryDeviceSupport", card.handle, ctypes.byref(is_supported))
    return is_supported.value == 1


def _allocate_sample(card: CndevCard, sample: ctypes.c_void_p) -> bool:
    card.cndev.call("cndevMpmSampleAlloc", ctypes.byref(sample))
    return bool(sample.value)


def _compute_means(card: CndevCard, request: ctypes.Structure) -> bool:
    card.cndev.call("cndevMpmMetricsGet", ctypes.byref(request))
    return True


def mean_shares(card: CndevCard, means: FieldValues) -> Labelled:
    """Yield (unit, busy share) of the cores, the whole card and its tensor units."""
    for number, unit in _MPM_UNITS:
        percent = means.get(number)
        if percent is not None and card.is_possible(f"mean utilization {unit}", percent, PERCENT):
            yield (unit,), percent / 100


def mean_traffic(card: CndevCard, means: FieldValues) -> Labelled:
    """Yield (bus, direction, bytes per second) of PCIe and of all MLULink ports."""
    for number, bus, direction in _MPM_TRAFFIC:
        yield from _rate(card, means.get(number), bus, direction)


def mean_link_traffic(card: CndevCard, means: FieldValues) -> Labelled:
    """Yield (port, direction, bytes per second) of each MLULink port."""
    for number, rate in means.items():
        port, place = divmod(number - _MPM_FIRST_LINK, len(_DIRECTIONS))
        if port >= 0:
            yield from _rate(card, rate, str(port), _DIRECTIONS[place])


def _rate(card: CndevCard, rate: float | None, *labels: str) -> Labelled:
    """Yield a rate that the card reports in MiB per second."""
    bounds = scale(BYTES_PER_SECOND, 1 / MIB)
    if rate is not None and card.is_possible(" ".join(("mean traffic", *labels)), rate, bounds):
        yield labels, rate * MIB
