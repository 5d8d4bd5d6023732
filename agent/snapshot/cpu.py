"""CPUs and NUMA nodes of the node."""

from __future__ import annotations

import enum

import msgspec

CpuSet = frozenset[int]


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """One usable logical CPU. Numbers are published ordinals, never the kernel's raw ids."""

    id: int
    core: int  # node-wide, cores sorted by their smallest CPU
    socket: int  # packages sorted by their smallest CPU
    node: int  # NUMA node id as the kernel numbers it
    l3: int  # 0 without an L3


class CpuPackage(msgspec.Struct, frozen=True, kw_only=True):
    """One socket: its published number and the kernel's `physical_package_id`."""

    socket: int
    package_id: int  # -1 if the kernel does not report it
    cpus: CpuSet


class CpuCache(msgspec.Struct, frozen=True, kw_only=True):
    """One cache unit and the CPUs that share it."""

    level: int
    kind: str  # Data, Instruction, Unified
    id: int
    cpus: CpuSet
    size_bytes: int | None


class CpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The processor's description of itself; `None`: not reported."""

    model: str | None = None
    vendor: str | None = None  # GenuineIntel, AuthenticAMD, an Arm implementer
    turbo: bool | None = None
    l3_cbm_mask: str | None = None  # hex text of resctrl's info/L3/cbm_mask


class CpuTopology(msgspec.Struct, frozen=True, kw_only=True):
    """Every CPU fact of one node. All sets hold usable CPUs only, except `present`."""

    present: CpuSet = frozenset()
    usable: CpuSet = frozenset()
    without_topology: CpuSet = frozenset()  # online, but the kernel shows no topology/
    isolated: CpuSet = frozenset()
    nohz_full: CpuSet = frozenset()
    allowed: CpuSet | None = None  # the kubepods cgroup's cpuset; recorded, never used to hide
    cpus: tuple[Cpu, ...] = ()  # by id
    cores: tuple[CpuSet, ...] = ()  # by published core number
    clusters: tuple[CpuSet, ...] = ()  # empty if the level equals another one
    dies: tuple[CpuSet, ...] = ()  # empty if the level equals another one
    packages: tuple[CpuPackage, ...] = ()  # by socket number
    caches: tuple[CpuCache, ...] = ()  # by level, kind, smallest CPU
    kinds: tuple[tuple[str, CpuSet], ...] = ()  # hybrid kinds, by name
    smt_active: bool = False
    smt_control: str | None = None
    info: CpuInfo = CpuInfo()
    skipped: int = 0  # directory entries with the name of a CPU or a cache that are neither
    warnings: tuple[str, ...] = ()

    def socket_of(self, cpus: CpuSet) -> int:
        """Return the one socket that holds all of these CPUs; -1 if none does."""
        sockets = {p.socket for p in self.packages if p.cpus & cpus}
        return sockets.pop() if len(sockets) == 1 and cpus else -1


UNKNOWN_NODE = -1


class NumaNodeKind(enum.Enum):
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
    kind: NumaNodeKind = NumaNodeKind.CPU
    near: int = UNKNOWN_NODE  # the CPU node that represents this one; itself for a CPU node
    socket: int = UNKNOWN_NODE  # UNKNOWN when it spans sockets or has no CPU
    gpu: str | None = None  # address of the card whose memory this node is
    generic_initiator: bool = False  # an accelerator without CPUs that accesses memory

    @property
    def is_zone(self) -> bool:
        """Return whether pods may use the node: a device's memory is not the machine's."""
        memory_only = self.kind in (NumaNodeKind.MEMORY, NumaNodeKind.DAX)
        return self.kind is NumaNodeKind.CPU or (memory_only and not self.generic_initiator)


class NumaTopology(msgspec.Struct, frozen=True, kw_only=True):
    """All memory nodes, by id."""

    nodes: tuple[NumaNode, ...] = ()
    fake: bool = False  # numa=fake= on the kernel's command line
    skipped: int = 0  # directory entries with the name of a node that are none
    warnings: tuple[str, ...] = ()

    def node(self, node_id: int) -> NumaNode | None:
        """Return the node of that id."""
        return next((n for n in self.nodes if n.id == node_id), None)

    def near(self, node_id: int | None) -> int:
        """Return the CPU node that represents a node of the kernel; -1 if it is unknown."""
        node = self.node(node_id) if node_id is not None else None
        return node.near if node else UNKNOWN_NODE

    def distance(self, a: int, b: int) -> int | None:
        """Return the matrix entry of two nodes; `None` without a matrix or a node."""
        ids = [n.id for n in self.nodes]
        first = self.node(a)
        if first is None or first.distances is None or b not in ids:
            return None
        return first.distances[ids.index(b)]
