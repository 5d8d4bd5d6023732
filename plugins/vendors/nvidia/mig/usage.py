"""Utilization and memory of a card's MIG instances, and utilization of the whole card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from agent.errors import DeviceGone, NotSupported, VendorFault
from agent.snapshot.device import DevicePartition
from agent.snapshot.inventory import MetricValue
from plugins.vendors.nvidia.library import bounds
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.nvml import MemorySizes
from plugins.vendors.nvidia.library.readings import PERFORMANCE, SM_ACTIVE, optional_reading

_SLICES = re.compile(r"(?:[0-9]{1,4}c\.)?([0-9]{1,4})g\b")
# metrics of GPU performance monitoring that are exported for a GPU instance; all are percent
SLICE_PERFORMANCE: dict[int, tuple[str, tuple[str, ...]]] = {
    SM_ACTIVE: ("xpu_device_slice_utilization_ratio", ()),
    **{
        number: (metric.family.replace("xpu_device_", "xpu_device_slice_"), metric.labels)
        for number, metric in PERFORMANCE.items()
        if metric.is_percent and number != SM_ACTIVE
    },
}
Values = Mapping[int | None, Mapping[int, float]]  # percent by GPU instance and metric


def compute_share(part: DevicePartition, total_bytes: int) -> float | None:
    """Return the share of a card's compute slices that the GPU instance of `part` has.

    A card with eight memory slices has seven compute slices, a card with four has four.
    """
    match = _SLICES.match(part.profile)
    if match is None or not part.memory_bytes or not part.size:
        return None
    slices = 7 if total_bytes * part.size > 6 * part.memory_bytes else 4
    return min(1.0, int(match[1]) / slices)


def card_percent(
    parts: Iterable[DevicePartition], values: Values, total_bytes: int
) -> float | None:
    """Return a card's utilization from that of its GPU instances; `None` if none is known."""
    percents: dict[int, float] = {}
    for part in parts:
        metrics = values.get(part.instance, {})
        share = compute_share(part, total_bytes)
        if part.instance is not None and share is not None and SM_ACTIVE in metrics:
            percents[part.instance] = metrics[SM_ACTIVE] * share
    return min(100.0, sum(percents.values())) if percents else None


def slice_readings(
    card: NvmlCard, parts: Iterable[DevicePartition], values: Values
) -> Iterator[MetricValue]:
    """Yield utilization and memory of each instance; a vanished one has only its size."""
    for part in parts:
        instance = "" if part.instance is None else str(part.instance)
        labels = (part.uuid, part.profile, instance)
        metrics = values.get(part.instance, {})
        for number, (family, more_labels) in SLICE_PERFORMANCE.items():
            share = metrics[number] / 100 if number in metrics else None
            yield from optional_reading(family, share, *labels, *more_labels)
        sizes = _memory(card, part.uuid)
        total = sizes.total if sizes is not None else part.memory_bytes
        yield from optional_reading("xpu_device_slice_memory_total_bytes", total, *labels)
        if sizes is not None:
            yield from optional_reading("xpu_device_slice_memory_used_bytes", sizes.used, *labels)
            yield from optional_reading("xpu_device_slice_memory_free_bytes", sizes.free, *labels)


def _memory(card: NvmlCard, uuid: str) -> MemorySizes | None:
    """Return an instance's memory; `used` contains the driver's reserve before 510 only."""
    for version2 in (True, False):
        try:
            handle = card.nvml.call("nvmlDeviceGetHandleByUUID", uuid)
            sizes = card.nvml.memory(handle, version2=version2)
        except (VendorFault, DeviceGone, NotSupported):
            continue
        total = card.check_bounds("memory total of a slice", sizes.total, bounds.MEMORY_BYTES)
        if total is None:
            return None
        return MemorySizes(
            total,
            card.check_bounds("memory used of a slice", sizes.used, (0, total)),
            card.check_bounds("memory free of a slice", sizes.free, (0, total)),
        )
    return None
