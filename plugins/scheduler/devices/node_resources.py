"""The resources of devices that a Node advertises: sums and labels of its Device object. Pure.

The amounts are those of Koordinator's `pkg/slo-controller/noderesource`, so that neither writer
changes what the other one wrote.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.wire_formats.json_values import JsonDict
from agent.wire_formats.quantities import format_binary
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    MODEL_LABEL,
    NO_AMOUNTS,
    NO_LABELS,
    RDMA,
    VENDOR_LABEL,
    Amounts,
    DeviceTable,
    Labels,
)
from plugins.scheduler.devices.requests import (
    GPU_PERCENT,
    GPU_SHARED,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    RDMA_PERCENT,
    WHOLE,
)

DRIVER_LABEL = "node.koordinator.sh/gpu-driver-version"
COPIED_LABELS = (VENDOR_LABEL, MODEL_LABEL, DRIVER_LABEL)
# what is removed from a Node that has none of it any more
ADVERTISED = (
    GPU_PERCENT,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    RDMA_PERCENT,
)
CHANGE_PERCENT = 10  # smaller changes of an amount are not written


class DeviceResources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a Device object for its Node, and which devices are healthy."""

    amounts: Amounts = NO_AMOUNTS
    labels: Labels = NO_LABELS
    healthy: frozenset[tuple[str, int]] = frozenset()  # kind and minor


class AdvertisedResources(msgspec.Struct, frozen=True, kw_only=True):
    """The advertised amounts of these resources on a Node, and the copied labels."""

    capacity: Amounts = NO_AMOUNTS
    allocatable: Amounts = NO_AMOUNTS
    labels: Labels = NO_LABELS


NO_RESOURCES = DeviceResources()


def device_resources(table: DeviceTable, *, advertises_shared: bool = False) -> DeviceResources:
    """Return the sums over the healthy devices; `koordinator.sh/gpu.shared` only if advertised."""
    gpus = [one for one in table.of(GPU) if one.total]
    nics = [one for one in table.of(RDMA) if one.total]
    amounts: dict[str, int] = {}
    for gpu in gpus:
        for name, amount in gpu.total.items():
            amounts[name] = amounts.get(name, 0) + amount
    if GPU_CORE in amounts and table.labels.get(VENDOR_LABEL, "") in ("", "nvidia"):
        amounts[GPU_PERCENT] = amounts[GPU_CORE]
    if gpus and advertises_shared:
        amounts[GPU_SHARED] = len(gpus) * WHOLE
    if nics:
        amounts[RDMA_PERCENT] = len(nics) * WHOLE
    return DeviceResources(
        amounts=amounts,
        labels={name: table.labels[name] for name in COPIED_LABELS if name in table.labels},
        healthy=frozenset((one.kind, one.minor) for one in (*gpus, *nics)),
    )


def status_patch(
    advertised: AdvertisedResources, resources: DeviceResources, *, is_health_changed: bool
) -> JsonDict | None:
    """Return the merge patch of the Node's status; `None` if nothing has to be written.

    A changed set of healthy devices is written at once. Otherwise an amount must have changed by
    more than 10 %, so that a Node is not written too often.
    """
    capacity = _changes(advertised.capacity, resources.amounts)
    allocatable = _changes(advertised.allocatable, resources.amounts)
    if not capacity and not allocatable:
        return None
    is_due = is_health_changed or any(
        _has_moved(current.get(name), resources.amounts.get(name))
        for current, changes in (
            (advertised.capacity, capacity),
            (advertised.allocatable, allocatable),
        )
        for name in changes
    )
    return {"status": {"capacity": capacity, "allocatable": allocatable}} if is_due else None


def label_patch(advertised: AdvertisedResources, resources: DeviceResources) -> JsonDict | None:
    """Return the merge patch of the Node's labels; labels that the Device lacks stay."""
    labels: JsonDict = {
        name: value
        for name, value in resources.labels.items()
        if advertised.labels.get(name) != value
    }
    return {"metadata": {"labels": labels}} if labels else None


def _changes(current: Amounts, desired: Amounts) -> JsonDict:
    """Return the amounts that differ as texts; `None` removes one."""
    changes: JsonDict = {
        name: format_binary(amount) if name == GPU_MEMORY else str(amount)
        for name, amount in desired.items()
        if current.get(name) != amount
    }
    gone = (name for name in ADVERTISED if name in current and name not in desired)
    return {**changes, **dict.fromkeys(gone)}


def _has_moved(current: int | None, desired: int | None) -> bool:
    if current is None or desired is None:
        return True
    return abs(desired - current) * 100 > CHANGE_PERCENT * current


def advertised_resources(
    capacity: Mapping[str, int], allocatable: Mapping[str, int], labels: Mapping[str, str]
) -> AdvertisedResources:
    """Return the part of a Node that the patches concern.

    Resources of devices that are not in `ADVERTISED` are kept, to be compared.
    """
    return AdvertisedResources(
        capacity={name: amount for name, amount in capacity.items() if "/" in name},
        allocatable={name: amount for name, amount in allocatable.items() if "/" in name},
        labels={name: labels[name] for name in COPIED_LABELS if name in labels},
    )
