"""Zones of a NodeResourceTopology: memory nodes with their CPUs, memory and huge pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agent.model import quantity
from agent.model.cluster.facts import NodeFacts
from agent.model.foreign.quantities import amount
from agent.publish.base import Json
from agent.topology.numa import NumaNode, NumaTopology

RESERVES = "node.koordinator.sh/enable-numa-reservation"  # a label of the Node
PAGE_SIZES = (2 << 20, 1 << 30)  # bytes; reported even where the machine has no such pool
TYPE = "Node"
CPU, MEMORY = "cpu", "memory"  # counted in thousandths and bytes here
_MILLI = 1000


def zone_name(node: NumaNode) -> str:
    """Return what a memory node's zone is called."""
    return f"node-{node.id}"


def zones(numa: NumaTopology, node: NodeFacts | None = None) -> list[Json]:
    """Return one zone for each memory node that pods may use, in the order of their names.

    Where the Node's label wants it so, what the kubelet reserves is spread over the zones.
    """
    found = sorted((node for node in numa.nodes if node.zoned), key=zone_name)
    amounts = [_amounts(one) for one in found]
    kept = _kept_per_zone(node, amounts)
    return [
        _zone(one, found, numa, _resources(own, kept))
        for one, own in zip(found, amounts, strict=True)
    ]


def _zone(
    node: NumaNode, nodes: Sequence[NumaNode], numa: NumaTopology, resources: list[Json]
) -> Json:
    distances = {zone_name(other): numa.distance(node.id, other.id) for other in nodes}
    costs = [
        {"name": name, "value": value} for name, value in distances.items() if value is not None
    ]
    zone: dict[str, object] = {"name": zone_name(node), "type": TYPE, "resources": resources}
    return {**zone, "costs": costs} if costs else zone


def _amounts(node: NumaNode) -> dict[str, int]:
    """Return what a zone has; memory that cannot be told is no resource at all."""
    pools = dict.fromkeys(PAGE_SIZES, 0) | dict(node.hugepages)
    found = {
        f"hugepages-{quantity.binary(size)}": size * pages
        for size, pages in pools.items()
        if pages or size in PAGE_SIZES
    }
    found[CPU] = len(node.cpus) * _MILLI
    if node.memory_bytes is not None:
        huge_bytes = sum(size * pages for size, pages in node.hugepages)
        found[MEMORY] = max(0, node.memory_bytes - huge_bytes)
    return found


def _kept_per_zone(node: NodeFacts | None, zoned: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return what each zone gives up: the node's part, divided by the zones that have any."""
    if node is None or node.label(RESERVES) != "true":
        return {}
    kept: dict[str, int] = {}
    for name, unit in ((CPU, _MILLI), (MEMORY, 1)):
        capacity = amount(node.capacity.get(name, ""))
        allocatable = amount(node.allocatable.get(name, ""))
        having = sum(1 for amounts in zoned if amounts.get(name))
        if capacity is not None and allocatable is not None and having:
            kept[name] = math.ceil((capacity - allocatable) * unit / having)
    return kept


def _resources(amounts: Mapping[str, int], kept: Mapping[str, int]) -> list[Json]:
    found: list[Json] = []
    for name, capacity in sorted(amounts.items()):
        left = min(capacity, max(0, capacity - kept.get(name, 0)))
        usable = _quantity(name, left)
        capacity_text = _quantity(name, capacity)
        found.append(
            {"name": name, "capacity": capacity_text, "allocatable": usable, "available": usable}
        )
    return found


def _quantity(name: str, value: int) -> str:
    return quantity.milli(value / _MILLI) if name == CPU else quantity.binary(value)
