"""The used amounts of each device: an immutable table by device and resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.devices.device_table import (
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    NO_AMOUNTS,
    Amounts,
    DeviceTable,
    NodeDevice,
)

DeviceKey = tuple[str, int]  # kind and minor


class NodeDeviceUsage(msgspec.Struct, frozen=True):
    """The sums of all pods of a node. A device that no pod uses is in neither table."""

    amounts: Mapping[DeviceKey, Amounts] = {}
    functions: Mapping[DeviceKey, frozenset[str]] = {}  # bus ids of allocated virtual functions

    def used(self, device: NodeDevice) -> Amounts:
        """Return the used amounts of a device."""
        return self.amounts.get((device.kind, device.minor), NO_AMOUNTS)

    def is_used(self, device: NodeDevice) -> bool:
        """Return whether any amount of a device is used."""
        return any(self.used(device).values())

    def free(self, device: NodeDevice) -> Amounts:
        """Return the free amounts of a device, never below 0; none of an unhealthy device."""
        used = self.used(device)
        if not used:
            return device.total
        return {name: max(0, total - used.get(name, 0)) for name, total in device.total.items()}

    def allocated_functions(self, device: NodeDevice) -> frozenset[str]:
        """Return the bus ids of the device's allocated virtual functions."""
        return self.functions.get((device.kind, device.minor), frozenset())


NO_USAGE = NodeDeviceUsage()


def minors_by_id(table: DeviceTable | None) -> Mapping[tuple[str, str], int]:
    """Return the minor of each device that has an id, by kind and id."""
    return {
        (device.kind, device.id): device.minor
        for of_kind in (table.devices.values() if table is not None else ())
        for device in of_kind
        if device.id
    }


def sum_usage(
    allocations: Iterable[Iterable[AllocatedDevice]], table: DeviceTable | None = None
) -> NodeDeviceUsage:
    """Return the usage of the allocations of all pods.

    An id of the table decides which device an entry is for, because minors may change at a boot of
    the node; else the minor does. An entry with neither does not count.
    """
    minors = minors_by_id(table)
    amounts: dict[DeviceKey, dict[str, int]] = {}
    functions: dict[DeviceKey, set[str]] = {}
    for allocation in allocations:
        for entry in allocation:
            minor = minors.get((entry.type, entry.id), entry.minor)
            if minor is None:
                continue
            key = (entry.type, minor)
            of_device = amounts.setdefault(key, {})
            resources = entry.resources if entry.minor is not None else _with_share(entry, table)
            for name, amount in resources:
                of_device[name] = of_device.get(name, 0) + amount
            if entry.vfs:
                functions.setdefault(key, set()).update(entry.vfs)
    return NodeDeviceUsage(amounts, {key: frozenset(ids) for key, ids in functions.items()})


def _with_share(entry: AllocatedDevice, table: DeviceTable | None) -> tuple[tuple[str, int], ...]:
    """Return the amounts of an entry that names its device by id alone, with the share of memory.

    Without it, pods that request percent of a card would not see that its memory is used. It is
    rounded up.
    """
    amounts = dict(entry.resources)
    devices = () if table is None else table.of(entry.type)
    total = next(
        (device.total.get(GPU_MEMORY, 0) for device in devices if device.id == entry.id), 0
    )
    if total and GPU_MEMORY in amounts and GPU_MEMORY_RATIO not in amounts:
        amounts[GPU_MEMORY_RATIO] = -(-amounts[GPU_MEMORY] * 100 // total)
    return tuple(amounts.items())
