"""`spec.resourceQOSStrategy`: one part a QoS class, with the defaults of each."""

from __future__ import annotations

import msgspec
from msgspec import field

from agent.model.slo.blkio import BlkioQos
from agent.model.slo.qos import CpuQos, MemoryQos, NetworkQos, ResctrlQos
from agent.model.slo.ranges import CpuPolicy, NetworkPolicy


class Policies(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which mechanism of several enforces a part."""

    cpu_policy: CpuPolicy = "groupIdentity"
    network_policy: NetworkPolicy = field(default="tc", name="netQOSPolicy")


class QosClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class. Each part has a switch of its own."""

    cpu: CpuQos = field(default=CpuQos(), name="cpuQOS")
    memory: MemoryQos = field(default=MemoryQos(), name="memoryQOS")
    blkio: BlkioQos | None = field(default=None, name="blkioQOS")
    resctrl: ResctrlQos = field(default=ResctrlQos(), name="resctrlQOS")
    network: NetworkQos = field(default=NetworkQos(), name="networkQOS")


LSR = QosClass(
    cpu=CpuQos(group_identity=2, core_expeller=True),
    memory=MemoryQos(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25),
)
LS = LSR
BE = QosClass(
    cpu=CpuQos(group_identity=-1),
    memory=MemoryQos(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=50),
    resctrl=ResctrlQos(cat_range_end_percent=30),
)
SYSTEM = QosClass()


class ResourceQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All classes. `cgroup_root` is the node's root, which has block devices only."""

    policies: Policies = Policies()
    lsr_class: QosClass = LSR
    ls_class: QosClass = LS
    be_class: QosClass = BE
    system_class: QosClass = SYSTEM
    cgroup_root: QosClass = QosClass()


def settled(strategy: ResourceQos) -> ResourceQos:
    """Give CPU, memory and caches of LSR, LS and BE the values of switched off where they are.

    SYSTEM, block devices and network keep theirs: there, who enforces asks `enable`.
    """
    return msgspec.structs.replace(
        strategy,
        lsr_class=_settled(strategy.lsr_class),
        ls_class=_settled(strategy.ls_class),
        be_class=_settled(strategy.be_class),
    )


def _settled(one: QosClass) -> QosClass:
    return msgspec.structs.replace(
        one,
        cpu=one.cpu if one.cpu.enable else CpuQos(),
        memory=one.memory if one.memory.enable else MemoryQos(),
        resctrl=one.resctrl if one.resctrl.enable else ResctrlQos(),
    )
