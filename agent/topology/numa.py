"""Memory nodes as the agent publishes them; built by `numa_build`."""

from __future__ import annotations

import enum

import msgspec

from agent.topology.cpu import CpuSet

UNKNOWN = -1


class NodeKind(enum.Enum):
    """Why a memory node exists; only `CPU` nodes may be named by devices."""

    CPU = "cpu"
    MEMORY = "memory"
    DAX = "dax"
    GPU = "gpu"
    EMPTY = "empty"


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """One memory node."""

    id: int
    cpus: CpuSet
    memory_bytes: int | None  # None: absurd or unreadable figure
    hugepages: tuple[tuple[int, int], ...] = ()  # (page size in bytes, pages), by size
    distances: tuple[int, ...] | None = None  # one a node, in ascending node number
    kind: NodeKind = NodeKind.CPU
    near: int = UNKNOWN  # the CPU node that stands for this one; itself for a CPU node
    socket: int = UNKNOWN  # UNKNOWN when it spans sockets or has no CPU
    gpu: str | None = None  # address of the card whose memory this node is
    generic_initiator: bool = False  # an accelerator without CPUs that accesses memory

    @property
    def zoned(self) -> bool:
        """Say whether pods may use it: memory of a device is not memory of the machine."""
        memory_only = self.kind in (NodeKind.MEMORY, NodeKind.DAX)
        return self.kind is NodeKind.CPU or (memory_only and not self.generic_initiator)


class NumaTopology(msgspec.Struct, frozen=True, kw_only=True):
    """All memory nodes, by id."""

    nodes: tuple[NumaNode, ...] = ()
    fake: bool = False  # numa=fake= on the kernel's command line
    skipped: int = 0  # directory entries that look like a node but are none
    warnings: tuple[str, ...] = ()

    def node(self, node_id: int) -> NumaNode | None:
        """Return the node of that id."""
        return next((n for n in self.nodes if n.id == node_id), None)

    def cpu_nodes(self) -> tuple[NumaNode, ...]:
        """Return the nodes that have CPUs."""
        return tuple(n for n in self.nodes if n.cpus)

    def near(self, node_id: int | None) -> int:
        """Map a kernel's node number to the CPU node that stands for it; unknown is -1."""
        found = self.node(node_id) if node_id is not None else None
        return found.near if found else UNKNOWN

    def distance(self, a: int, b: int) -> int | None:
        """Return the matrix entry of two nodes; `None` without a matrix or a node."""
        ids = [n.id for n in self.nodes]
        first = self.node(a)
        if first is None or first.distances is None or b not in ids:
            return None
        return first.distances[ids.index(b)]
