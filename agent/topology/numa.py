"""Builds consistent NUMA nodes from raw sysfs data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from agent.snapshot.cpu import (
    UNKNOWN_NODE,
    CpuPackage,
    CpuSet,
    NumaNode,
    NumaNodeKind,
    NumaTopology,
)

SCHEDULER_NODES = 63  # the scheduler stores nodes as bits of 64-bit masks


class RawNode(msgspec.Struct, frozen=True, kw_only=True):
    """One `node<N>` with the values of the kernel."""

    id: int
    cpus: CpuSet = frozenset()  # may have CPUs that are not usable, or are in other nodes too
    memory_bytes: int | None = None
    memory_problem: str = ""  # why the memory size is 0 or missing
    hugepages: tuple[tuple[int, int], ...] = ()  # (page size in bytes, pages), by size
    distances: tuple[int, ...] | None = None  # one per node
    initiators: frozenset[int] = frozenset()  # nodes with the best access to this one


class RawNuma(msgspec.Struct, frozen=True, kw_only=True):
    """The data that were read of the NUMA nodes of one host."""

    nodes: tuple[RawNode, ...] = ()  # by id
    gpus: Mapping[int, tuple[str, CpuSet | None]] = msgspec.field(  # node: (card, its local CPUs)
        default_factory=lambda: MappingProxyType({})
    )
    dax: frozenset[int] = frozenset()  # nodes that a DAX device targets
    generic_initiators: frozenset[int] = frozenset()
    fake: bool = False
    skipped: int = 0


class NumaCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The node of each usable CPU: exactly one."""

    node_of: Mapping[int, int]
    nodes_without_cpus: frozenset[int] = frozenset()  # nodes that list only CPUs of lower nodes
    warnings: tuple[str, ...] = ()

    def cpus(self, node_id: int) -> CpuSet:
        """Return the CPUs of one node."""
        return frozenset(cpu for cpu, node in self.node_of.items() if node == node_id)


def assign_cpus(
    nodes: Sequence[RawNode], usable: CpuSet, packages: Sequence[CpuPackage]
) -> NumaCpus:
    """Assign every usable CPU to one node, even if firmware lists it twice or never.

    The lower node keeps a CPU that two nodes list. An unlisted CPU goes to the node of the rest of
    its package if there is only one, else to the lowest node; to node 0 if there is none.
    """
    node_of: dict[int, int] = {}
    emptied: set[int] = set()
    warnings: list[str] = []
    for node in sorted(nodes, key=lambda node: node.id):
        listed_cpus = node.cpus & usable
        new_cpus = listed_cpus - node_of.keys()
        node_of.update(dict.fromkeys(new_cpus, node.id))
        if new_cpus != listed_cpus:
            lowest_cpu = min(listed_cpus - new_cpus)
            warnings.append(f"numa_overlap: node {node.id} claims CPU {lowest_cpu} of a lower node")
            emptied |= set() if new_cpus else {node.id}
    lowest = min((node.id for node in nodes), default=0)
    for orphan, node_id in _assign_orphans(
        usable - node_of.keys(), node_of, packages, lowest
    ).items():
        warnings.append(f"cpu_without_node: CPU {orphan} counts as of node {node_id}")
        node_of[orphan] = node_id
    return NumaCpus(
        node_of=MappingProxyType(dict(sorted(node_of.items()))),
        nodes_without_cpus=frozenset(emptied),
        warnings=tuple(warnings),
    )


def _assign_orphans(
    orphans: frozenset[int], node_of: Mapping[int, int], packages: Sequence[CpuPackage], lowest: int
) -> dict[int, int]:
    assigned: dict[int, int] = {}
    for package in packages:
        nodes = {node_of[cpu] for cpu in package.cpus if cpu in node_of}
        node_id = nodes.pop() if len(nodes) == 1 else lowest
        assigned.update(dict.fromkeys(sorted(package.cpus & orphans), node_id))
    return assigned


def build_numa(raw: RawNuma, shares: NumaCpus, packages: Sequence[CpuPackage]) -> NumaTopology:
    """Determine for every node its kind, the CPU node near it, and its socket."""
    valid = all(node.distances is not None for node in raw.nodes)
    nodes = tuple(_node(raw, node, shares, packages, matrix_valid=valid) for node in raw.nodes)
    return NumaTopology(
        nodes=nodes,
        fake=raw.fake,
        skipped=raw.skipped,
        warnings=(*shares.warnings, *_warnings(raw, nodes)),
    )


def _node(
    raw: RawNuma,
    node: RawNode,
    shares: NumaCpus,
    packages: Sequence[CpuPackage],
    *,
    matrix_valid: bool,
) -> NumaNode:
    cpus = shares.cpus(node.id)
    sockets = {package.socket for package in packages if package.cpus & cpus}
    return NumaNode(
        id=node.id,
        cpus=cpus,
        memory_bytes=node.memory_bytes,
        hugepages=node.hugepages,
        distances=node.distances if matrix_valid else None,
        kind=_kind(raw, node, cpus, emptied=node.id in shares.nodes_without_cpus),
        near=node.id if cpus else _near(raw, node, shares.node_of, matrix_valid=matrix_valid),
        socket=sockets.pop() if len(sockets) == 1 else UNKNOWN_NODE,
        gpu=raw.gpus[node.id][0] if node.id in raw.gpus else None,
        generic_initiator=node.id in raw.generic_initiators,
    )


def _kind(raw: RawNuma, node: RawNode, cpus: CpuSet, *, emptied: bool) -> NumaNodeKind:
    if cpus:
        return NumaNodeKind.CPU
    if node.id in raw.gpus:
        return NumaNodeKind.GPU
    if node.id in raw.dax:
        return NumaNodeKind.DAX
    return NumaNodeKind.MEMORY if node.memory_bytes or emptied else NumaNodeKind.EMPTY


def _near(raw: RawNuma, node: RawNode, node_of: Mapping[int, int], *, matrix_valid: bool) -> int:
    """Return the lowest CPU node of the first source with a result."""
    cpu_nodes = frozenset(node_of.values())
    sources = [_near_gpu(raw, node.id, node_of, cpu_nodes)]
    if not raw.fake:  # fake nodes have no initiators and no distances of their own
        sources.append(node.initiators)
        if matrix_valid and node.distances is not None:
            sources.append(near_by_distance([n.id for n in raw.nodes], node.id, node.distances))
    return next((min(nodes & cpu_nodes) for nodes in sources if nodes & cpu_nodes), UNKNOWN_NODE)


def _near_gpu(
    raw: RawNuma, node_id: int, node_of: Mapping[int, int], cpu_nodes: frozenset[int]
) -> frozenset[int]:
    """Return the nodes of a card's local CPUs.

    The kernel prints all CPUs if it does not know them.
    """
    _, local_cpus = raw.gpus.get(node_id, ("", None))
    nodes = frozenset(node_of[cpu] for cpu in local_cpus or () if cpu in node_of)
    return frozenset() if nodes == cpu_nodes and len(nodes) > 1 else nodes


def near_by_distance(ids: Sequence[int], node_id: int, row: Sequence[int]) -> frozenset[int]:
    """Return the other nodes at the smallest distance; none if that is no information.

    That is so if the distance to the node itself is not smaller, or if all others are equally near.
    """
    distances = {
        other: distance for other, distance in zip(ids, row, strict=True) if other != node_id
    }
    smallest = min(distances.values(), default=0)
    nearest = frozenset(other for other, distance in distances.items() if distance == smallest)
    if smallest <= row[ids.index(node_id)] or nearest == distances.keys():
        return frozenset()
    return nearest


def _warnings(raw: RawNuma, nodes: Sequence[NumaNode]) -> list[str]:
    warnings = [f"numa_memory: {node.memory_problem}" for node in raw.nodes if node.memory_problem]
    zones = [node.id for node in nodes if node.is_zone]
    if len(zones) > SCHEDULER_NODES or max(zones, default=0) > SCHEDULER_NODES:
        warnings.append(f"numa_many_nodes: the scheduler knows nodes 0 to {SCHEDULER_NODES} only")
    return warnings
