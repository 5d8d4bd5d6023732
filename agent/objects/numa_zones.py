"""Zones of a NodeResourceTopology: NUMA nodes with their CPUs, memory and huge pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agent.snapshot.cluster import NodeView
from agent.snapshot.cpu import NumaNode, NumaTopology
from agent.snapshot.publications import Json
from agent.wire_formats import quantities
from agent.wire_formats.quantities import parse_amount

NUMA_RESERVATION_LABEL = "node.koordinator.sh/enable-numa-reservation"  # a label of the Node
PAGE_SIZES = (2 << 20, 1 << 30)  # bytes; reported even if the machine has no such pool
ZONE_TYPE = "Node"
CPU, MEMORY = "cpu", "memory"  # counted in thousandths and bytes here
_MILLI = 1000


def zone_name(node: NumaNode) -> str:
    """Return the name of a memory node's zone."""
    return f"node-{node.id}"


def numa_zones(numa: NumaTopology, node: NodeView | None = None) -> list[Json]:
    """Return one zone for each memory node that pods may use, in the order of their names.

    If the Node's label requests it, the kubelet's reservation is divided among the zones.
    """
    nodes = sorted((node for node in numa.nodes if node.is_zone), key=zone_name)
    amounts = [_zone_amounts(one) for one in nodes]
    reserved = _reservation_per_zone(node, amounts)
    return [
        _zone(one, nodes, numa, _resources(own, reserved))
        for one, own in zip(nodes, amounts, strict=True)
    ]


def _zone(
    node: NumaNode, nodes: Sequence[NumaNode], numa: NumaTopology, resources: list[Json]
) -> Json:
    distances = {zone_name(other): numa.distance(node.id, other.id) for other in nodes}
    costs = [
        {"name": name, "value": value} for name, value in distances.items() if value is not None
    ]
    zone: dict[str, object] = {"name": zone_name(node), "type": ZONE_TYPE, "resources": resources}
    return {**zone, "costs": costs} if costs else zone


def _zone_amounts(node: NumaNode) -> dict[str, int]:
    """Return the resources of a zone; unknown memory is left out."""
    pools = dict.fromkeys(PAGE_SIZES, 0) | dict(node.hugepages)
    zone_amounts = {
        f"hugepages-{quantities.format_binary(size)}": size * pages
        for size, pages in pools.items()
        if pages or size in PAGE_SIZES
    }
    zone_amounts[CPU] = len(node.cpus) * _MILLI
    if node.memory_bytes is not None:
        huge_bytes = sum(size * pages for size, pages in node.hugepages)
        zone_amounts[MEMORY] = max(0, node.memory_bytes - huge_bytes)
    return zone_amounts


def _reservation_per_zone(
    node: NodeView | None, zoned: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Return the reservation of each zone: the node's, divided by the zones with the resource."""
    if node is None or node.label(NUMA_RESERVATION_LABEL) != "true":
        return {}
    reserved: dict[str, int] = {}
    for name, unit in ((CPU, _MILLI), (MEMORY, 1)):
        capacity = parse_amount(node.capacity.get(name, ""))
        allocatable = parse_amount(node.allocatable.get(name, ""))
        zone_count = sum(1 for amounts in zoned if amounts.get(name))
        if capacity is not None and allocatable is not None and zone_count:
            reserved[name] = math.ceil((capacity - allocatable) * unit / zone_count)
    return reserved


def _resources(amounts: Mapping[str, int], reserved: Mapping[str, int]) -> list[Json]:
    entries: list[Json] = []
    for name, capacity in sorted(amounts.items()):
        allocatable = min(capacity, max(0, capacity - reserved.get(name, 0)))
        usable = _quantity(name, allocatable)
        capacity_text = _quantity(name, capacity)
        entries.append(
            {"name": name, "capacity": capacity_text, "allocatable": usable, "available": usable}
        )
    return entries


def _quantity(name: str, value: int) -> str:
    return (
        quantities.format_milli(value / _MILLI) if name == CPU else quantities.format_binary(value)
    )
