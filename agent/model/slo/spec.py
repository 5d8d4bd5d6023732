"""The whole of a NodeSLO's spec with its defaults, which ask for nothing."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, field

from agent.model.slo.classes import ResourceQos, settled
from agent.model.slo.ranges import (
    BurstPolicy,
    CgroupBase,
    DirectoryName,
    Flag,
    Int64,
    Percent,
    Positive,
    Priority,
    Qos,
    Quantity,
    RelativePath,
)
from agent.model.slo.thresholds import Thresholds

Features = tuple[tuple[str, bool], ...]  # by name
Extensions = tuple[tuple[str, str], ...]  # name and JSON, by name


class CpuBurst(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`spec.cpuBurstStrategy`: what containers may use above their limit."""

    policy: BurstPolicy = "none"
    cpu_burst_percent: Annotated[int, Meta(ge=0, le=10000)] = 1000  # of the limit
    cfs_quota_burst_percent: Annotated[int, Meta(ge=100, le=2**31)] = 300  # of the limit
    # how long a raised limit lasts; -1: as long as it is needed
    cfs_quota_burst_period_s: Annotated[int, Meta(ge=-1, le=2**31)] = field(
        default=-1, name="cfsQuotaBurstPeriodSeconds"
    )
    share_pool_threshold_percent: Percent = 50  # of the node: above it limits go back


class SystemStrategy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`spec.systemStrategy`: kernel settings; `None` leaves the kernel's own."""

    min_free_kbytes_factor: Positive | None = None  # of 1/10000 of the node's memory
    watermark_scale_factor: Annotated[int, Meta(ge=1, le=400)] | None = None
    memcg_reap_back_ground: Flag | None = None
    sched_group_identity_enabled: Flag | None = None
    sched_idle_saver_wmark: Int64 | None = None
    sched_features: Features = ()
    page_cache_limit_enabled: Flag | None = None
    total_network_bandwidth: Quantity = "0"


class CgroupPath(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where an application's cgroup is: below a directory that the kubelet's driver names."""

    base: CgroupBase = "CgroupRoot"
    parent_dir: RelativePath = ""
    relative_path: RelativePath = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the directories below the base."""
        joined = f"{self.parent_dir}/{self.relative_path}"
        return tuple(part for part in joined.split("/") if part not in ("", "."))


class HostStrategy(msgspec.Struct, frozen=True):
    """Has no fields in any release so far."""


class HostApplication(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A program that runs on the node outside of pods, and counts as none of the system's."""

    name: DirectoryName = ""
    priority: Priority = ""
    qos: Qos = ""
    cgroup_path: CgroupPath | None = None  # None: where its class says
    strategy: HostStrategy = HostStrategy()


class NodeSlo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a cluster asks of this node. Third parties' parts are kept as they came."""

    thresholds: Thresholds = field(default=Thresholds(), name="resourceUsedThresholdWithBE")
    resource_qos: ResourceQos = field(default=ResourceQos(), name="resourceQOSStrategy")
    cpu_burst: CpuBurst = field(default=CpuBurst(), name="cpuBurstStrategy")
    system: SystemStrategy = field(default=SystemStrategy(), name="systemStrategy")
    host_applications: tuple[HostApplication, ...] = ()
    extensions: Extensions = ()


DEFAULTS = NodeSlo(resource_qos=settled(ResourceQos()))  # what stands without an object
