"""Free and used amounts of a node, with the members of Koordinator's diagnosis."""

from __future__ import annotations

from collections.abc import Iterable

from agent.wire_formats.json_values import JsonDict
from agent.wire_formats.quantities import format_binary
from plugins.scheduler.cluster_state import AssignedPod
from plugins.scheduler.devices.allocator import NodeState
from plugins.scheduler.devices.device_table import GPU_MEMORY, Amounts, NodeDevice
from plugins.scheduler.devices.device_usage import minors_by_id


def node_summary(state: NodeState, pods: Iterable[AssignedPod]) -> JsonDict:
    """Return sums by resource, and details by kind and minor; quantities are texts."""
    total: JsonDict = {}
    free: JsonDict = {}
    used: JsonDict = {}
    sums: dict[str, dict[str, int]] = {"total": {}, "free": {}, "used": {}}
    devices = state.table.devices if state.table is not None else {}
    for kind, of_kind in sorted(devices.items()):
        details = [(device, _details(state, device)) for device in of_kind]
        total[kind] = {str(one.minor): _texts(amounts[0]) for one, amounts in details}
        free[kind] = {str(one.minor): _texts(amounts[1]) for one, amounts in details}
        used[kind] = {str(one.minor): _texts(amounts[2]) for one, amounts in details}
        for _, amounts in details:
            for name, part in zip(("total", "free", "used"), amounts, strict=True):
                for resource, amount in part.items():
                    sums[name][resource] = sums[name].get(resource, 0) + amount
    return {
        "deviceTotal": _texts(sums["total"]),
        "deviceFree": _texts(sums["free"]),
        "deviceUsed": _texts(sums["used"]),
        "deviceTotalDetail": total,
        "deviceFreeDetail": free,
        "deviceUsedDetail": used,
        "allocateSet": _allocations(state, pods),
    }


def _details(state: NodeState, device: NodeDevice) -> tuple[Amounts, Amounts, Amounts]:
    return device.total, state.usage.free(device), state.usage.used(device)


def _allocations(state: NodeState, pods: Iterable[AssignedPod]) -> JsonDict:
    """Return the allocations of pods by kind, pod and present minor.

    A device that the node does not have is named as in the allocation.
    """
    minors = minors_by_id(state.table)
    by_kind: dict[str, JsonDict] = {}
    for pod in pods:
        for entry in pod.allocation:
            name = f"{pod.key.namespace}/{pod.key.name}"
            of_pod = by_kind.setdefault(entry.type, {}).setdefault(name, {})
            if isinstance(of_pod, dict):
                minor = minors.get((entry.type, entry.id), entry.minor)
                of_pod[entry.id if minor is None else str(minor)] = _texts(dict(entry.resources))
    return dict(by_kind)


def _texts(amounts: Amounts) -> JsonDict:
    return {
        name: format_binary(amount) if name == GPU_MEMORY else str(amount)
        for name, amount in sorted(amounts.items())
    }
