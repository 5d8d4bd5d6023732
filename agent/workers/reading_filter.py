"""Removes readings that no device can mean, before the snapshot has them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from agent.snapshot.inventory import (
    BYTES,
    MEMORY_BYTES,
    MEMORY_TOTAL,
    MEMORY_USED,
    PERCENT,
    PIDS,
    PROCESS_ENGINES,
    PROCESS_VIRTUAL,
    PROCESSES,
    UTILIZATION,
    Bounds,
    DeviceSample,
    Inventory,
    MetricFamily,
    MetricValue,
    ProcessSample,
    RejectionCount,
    is_within,
)

log = logging.getLogger(__name__)

MAX_FAMILIES = 256  # with a count of their own
MAX_COUNTERS = 65_536  # whose last value is stored
MAX_VALUE_LENGTH = 40
OTHER = "other"
Number = TypeVar("Number", int, float)

_CounterKey = tuple[str, str, tuple[str, ...]]  # device, family, labels


class _Counter(msgspec.Struct):
    """The last value of a counter, and the lower one that was rejected after it."""

    value: float
    rejected: float | None = None


class ReadingFilter:
    """Checks the answers of one vendor's worker; belongs to one thread.

    A value outside the bounds of its family is left out, and counted. So is a counter that went
    back, once: if the next value is no lower, the device has reset the counter.
    """

    def __init__(self, vendor: str, families: Iterable[MetricFamily] = ()) -> None:
        self._vendor = vendor
        self._families: Mapping[str, tuple[MetricFamily, Bounds]] = {
            family.name: (family, family.possible_values) for family in families
        }
        self._limits = frozenset(family.limit for family, _ in self._families.values())
        self._counters: dict[_CounterKey, _Counter] = {}
        self._counts: dict[str, RejectionCount] = {}
        self._total_bytes: dict[str, int] = {}  # memory by key of the device
        self.rejections: tuple[RejectionCount, ...] = ()  # by name of the family

    def forget_counters(self) -> None:
        """Accept any value of a counter next: a new worker counts from its own start."""
        self._counters.clear()

    def filter_inventory(self, inventory: Inventory) -> Inventory:
        """Return the inventory without sizes of memory that no device has."""
        impossible = {
            device.key: device.memory_bytes
            for device in inventory.devices
            if device.memory_bytes and not is_within(device.memory_bytes, MEMORY_BYTES)
        }
        for key, size in impossible.items():
            self._reject(key, MEMORY_TOTAL, size)
        if impossible:
            devices = (
                replace(device, memory_bytes=None) if device.key in impossible else device
                for device in inventory.devices
            )
            inventory = replace(inventory, devices=tuple(devices))
        self._total_bytes = {
            device.key: device.memory_bytes for device in inventory.devices if device.memory_bytes
        }
        return inventory

    def filter_samples(self, samples: Iterable[DeviceSample]) -> tuple[DeviceSample, ...]:
        """Return the samples without readings that no device can mean."""
        return tuple(map(self._filter_sample, samples))

    def _filter_sample(self, sample: DeviceSample) -> DeviceSample:
        for rejection in sample.rejections:
            self._reject(sample.key, rejection.family, rejection.value)
        key, total = sample.key, sample.memory_total_bytes
        if total:  # 0: the device has no memory of its own
            total = self._check(key, MEMORY_TOTAL, total, MEMORY_BYTES)
        capacity: Bounds = (0, total or self._total_bytes.get(key) or BYTES[1])
        processes = sample.processes
        if processes is not None:
            checked = (self._check_process(key, process, capacity) for process in processes)
            processes = tuple(process for process in checked if process is not None)
        return replace(
            sample,
            core_percent=self._check(key, UTILIZATION, sample.core_percent, PERCENT),
            memory_used_bytes=self._check(key, MEMORY_USED, sample.memory_used_bytes, capacity),
            memory_total_bytes=total,
            processes=processes,
            readings=self._filter_readings(sample),
            rejections=(),
        )

    def _check_process(
        self, key: str, process: ProcessSample, capacity: Bounds
    ) -> ProcessSample | None:
        if self._check(key, PROCESSES, process.pid, PIDS) is None:
            return None
        return replace(
            process,
            memory_bytes=self._check(key, MEMORY_USED, process.memory_bytes, capacity),
            core_percent=self._check(key, UTILIZATION, process.core_percent, PERCENT),
            virtual_bytes=self._check(key, PROCESS_VIRTUAL, process.virtual_bytes, BYTES),
            engine_percents=tuple(
                (engine, percent)
                for engine, percent in process.engine_percents
                if self._check(key, PROCESS_ENGINES, percent, PERCENT) is not None
            ),
        )

    def _filter_readings(self, sample: DeviceSample) -> tuple[MetricValue, ...]:
        limits = {
            (reading.family, reading.labels): reading.value
            for reading in sample.readings
            if reading.family in self._limits
        }
        return tuple(
            reading for reading in sample.readings if self._is_possible(sample.key, reading, limits)
        )

    def _is_possible(
        self, key: str, reading: MetricValue, limits: Mapping[tuple[str, tuple[str, ...]], float]
    ) -> bool:
        declared = self._families.get(reading.family)
        if declared is None:  # nothing exports it
            return True
        family, (low, high) = declared
        limit = limits.get((family.limit, reading.labels), high)
        # if the limit itself is impossible, it limits nothing
        bounds = (low, limit if low <= limit <= high else high)
        if not is_within(reading.value, bounds) or (
            family.type == "counter" and not self._is_growing(key, reading)
        ):
            self._reject(key, reading.family, reading.value)
            return False
        return True

    def _is_growing(self, key: str, reading: MetricValue) -> bool:
        """Return whether a counter is not below its last value, or stays below it: a reset."""
        counter_key = (key, reading.family, reading.labels)
        counter = self._counters.get(counter_key)
        if counter is None:
            if len(self._counters) < MAX_COUNTERS:
                self._counters[counter_key] = _Counter(reading.value)
            return True
        is_reset = counter.rejected is not None and reading.value >= counter.rejected
        if reading.value < counter.value and not is_reset:
            counter.rejected = reading.value
            return False
        counter.value, counter.rejected = reading.value, None
        return True

    def _check(self, key: str, family: str, value: Number | None, bounds: Bounds) -> Number | None:
        """Return the value if it is within bounds; otherwise reject it and return `None`."""
        if value is None or is_within(value, bounds):
            return value
        self._reject(key, family, value)
        return None

    def _reject(self, key: str, family: str, value: object) -> None:
        """Count a rejected value, and log the first of each family."""
        if family not in self._counts and len(self._counts) >= MAX_FAMILIES:
            family = OTHER
        text = str(value)[:MAX_VALUE_LENGTH]
        count = self._counts.get(family)
        if count is None:
            fields = {"vendor": self._vendor, "family": family, "device": key, "value": text}
            log.warning("reading_rejected", extra=fields)
            count = RejectionCount(family=family, count=0, device=key, value=text)
        self._counts[family] = replace(count, count=count.count + 1)
        self.rejections = tuple(self._counts[name] for name in sorted(self._counts))
