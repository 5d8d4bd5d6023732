"""Scores of devices and nodes by their used part.

Formulas are those of Koordinator's DeviceShare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from plugins.scheduler.devices.device_table import (
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    Amounts,
    DeviceTable,
    NodeDevice,
)
from plugins.scheduler.devices.device_usage import NodeDeviceUsage
from plugins.scheduler.devices.requests import FPGA_PERCENT, RDMA_PERCENT, DeviceRequest

MAX_SCORE = 100
DEFAULT_WEIGHTS: Mapping[str, int] = MappingProxyType(
    {
        GPU_MEMORY_RATIO: 1,
        GPU_MEMORY: 1,
        RDMA_PERCENT: 1,
        FPGA_PERCENT: 1,
    }
)


class ScoringStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """Whether idle or full devices are preferred, and the weight of each resource."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    weights: Mapping[str, int] = DEFAULT_WEIGHTS

    def score(self, total: Amounts, free: Amounts, requested: Amounts) -> int:
        """Return 0 to 100; resources that do not exist are not counted."""
        score = weight_sum = 0
        for name, weight in self.weights.items():
            amount = total.get(name, 0)
            if not amount:
                continue
            used = amount - free.get(name, 0) + requested.get(name, 0)
            if self.type == "MostAllocated":
                score += weight * (min(used, amount) * MAX_SCORE // amount)
            elif used <= amount:
                score += weight * ((amount - used) * MAX_SCORE // amount)
            weight_sum += weight
        return score // weight_sum if weight_sum else 0

    def swapped_score(self, total: Amounts, free: Amounts, requested: Amounts) -> int:
        """Return the score as Koordinator computes it in its tree, from swapped total and free.

        A resource that is partly used gets 0 or, where full devices are preferred, 100.
        """
        score = weight_sum = 0
        extreme = MAX_SCORE if self.type == "MostAllocated" else 0
        for name, weight in self.weights.items():
            if total.get(name, 0):
                is_used = free.get(name, 0) < total[name]
                one = ScoringStrategy(type=self.type, weights={name: 1})
                score += weight * (extreme if is_used else one.score(total, free, requested))
                weight_sum += weight
        return score // weight_sum if weight_sum else 0

    def device_score(self, device: NodeDevice, usage: NodeDeviceUsage, requested: Amounts) -> int:
        """Return the score of one device for the amounts of one instance."""
        return self.score(device.total, usage.free(device), requested)


def node_score(
    table: DeviceTable, usage: NodeDeviceUsage, request: DeviceRequest, strategy: ScoringStrategy
) -> int:
    """Return the sum of the scores of the requested kinds, which may exceed 100.

    Of each kind the amounts of one device are compared with the sums of all devices, and only
    those that the pod names, as Koordinator does it.
    """
    score = 0
    for kind in request.kinds:
        devices = table.of(kind.kind)
        if kind.kind != "gpu" and request.of("gpu") is not None and _skips_others(table, request):
            continue
        score += strategy.score(
            _sum(device.total for device in devices),
            _sum(usage.free(device) for device in devices),
            kind.amounts,
        )
    return score


def _skips_others(table: DeviceTable, request: DeviceRequest) -> bool:
    return table.is_secondary_well_planned and request.joint is not None and not request.is_shared


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total: dict[str, int] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, 0) + amount
    return total
