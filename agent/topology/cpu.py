"""CPUs of a node as the agent publishes them; built from raw sets by `cpu_build`."""

from __future__ import annotations

import msgspec

CpuSet = frozenset[int]


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """One usable logical CPU. Numbers are published ordinals, never the kernel's raw ids."""

    id: int
    core: int  # node-wide, cores sorted by their smallest CPU
    socket: int  # packages sorted by their smallest CPU
    node: int  # NUMA node id as the kernel numbers it
    l3: int  # 0 without an L3


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One socket: its published number and the kernel's `physical_package_id`."""

    socket: int
    package_id: int  # -1 when the kernel does not say
    cpus: CpuSet


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """One cache unit and the CPUs that share it."""

    level: int
    kind: str  # Data, Instruction, Unified
    id: int
    cpus: CpuSet
    size_bytes: int | None


class CpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the processor says of itself; `None` where it does not say."""

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
    clusters: tuple[CpuSet, ...] = ()  # empty where the level says nothing new
    dies: tuple[CpuSet, ...] = ()  # the same
    packages: tuple[Package, ...] = ()  # by socket number
    caches: tuple[Cache, ...] = ()  # by level, kind, smallest CPU
    kinds: tuple[tuple[str, CpuSet], ...] = ()  # hybrid kinds, by name
    smt_active: bool = False
    smt_control: str | None = None
    info: CpuInfo = CpuInfo()
    skipped: int = 0  # directory entries that look like a CPU or a cache but are none
    warnings: tuple[str, ...] = ()

    def socket_of(self, cpus: CpuSet) -> int:
        """Return the one socket that holds all of these CPUs; -1 if none does."""
        found = {p.socket for p in self.packages if p.cpus & cpus}
        return found.pop() if len(found) == 1 and cpus else -1
