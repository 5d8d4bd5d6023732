"""The spec of a NodeSLO as structs, with its defaults and the allowed ranges."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

MAX_INT64 = 2**63 - 1

MAX_INT32 = 2**31 - 1

Percent = Annotated[int, Meta(ge=0, le=100)]

BinaryFlag = Annotated[int, Meta(ge=0, le=1)]  # a number on the wire, as the kernel's file wants it

NonNegative = Annotated[int, Meta(ge=0, le=MAX_INT64)]

Positive = Annotated[int, Meta(ge=1, le=MAX_INT64)]

Int64 = Annotated[int, Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]

Int32 = Annotated[int, Meta(ge=-MAX_INT32 - 1, le=MAX_INT32)]

# from 8000 on pods are production: those are not evicted for what others request
EvictablePriority = Annotated[int, Meta(ge=0, le=7999)]

# read by `special`, whose patterns are not compiled before there is an object to read
DirectoryName = Annotated[
    str, Meta(description="a name of 1 to 128 characters without slashes and control characters")
]

RelativePath = Annotated[
    str, Meta(description="a relative path without '..' and control characters")
]

DeviceName = Annotated[
    str, Meta(description="a name of 1 to 253 characters without control characters")
]

QuantityText = Annotated[str, Meta(description="a quantity that is not negative")]

# whole numbers are percent of the node's bandwidth, text is a quantity
Bandwidth = int | str

SuppressPolicy = Literal["cpuset", "cfsQuota"]

EvictPolicy = Literal["evictByRealLimit", "evictByAllocatable"]

BurstPolicy = Literal["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"]

CpuPolicy = Literal["groupIdentity", "coreSched"]

NetworkPolicy = Literal["tc", "terway-qos"]

BlockType = Literal["device", "volumegroup", "podvolume"]

QosName = Literal["", "LSE", "LSR", "LS", "BE", "SYSTEM"]

PriorityName = Literal["", "koord-prod", "koord-mid", "koord-batch", "koord-free"]

CgroupBase = Literal["CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"]


class CpuQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """CPU scheduling of the class; the first field needs the policy `groupIdentity`."""

    enable: bool = False
    group_identity: Annotated[int, Meta(ge=-1, le=2)] = 0
    sched_idle: BinaryFlag = 0  # this and the next field need the policy `coreSched`
    core_expeller: bool = False


class MemoryQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Protection and reclaim of memory; only Anolis kernels have most of it.

    The first three are percentages: of a pod's request, of its request, and of the difference
    between its limit and its request.
    """

    enable: bool = False
    min_limit_percent: Percent = 0
    low_limit_percent: Percent = 0
    throttling_percent: Percent = 0
    wmark_ratio: Percent = 0
    wmark_scale_permill: Annotated[int, Meta(ge=1, le=1000)] = 50
    wmark_min_adj: Annotated[int, Meta(ge=-25, le=50)] = 0
    priority_enable: BinaryFlag = 0
    priority: Annotated[int, Meta(ge=0, le=12)] = 0
    oom_kill_group: BinaryFlag = 0
    page_cache_enable: bool | None = None
    page_cache_limit_percent: Percent | None = None  # percent of the pod's limit
    page_cache_limit_size: NonNegative | None = None  # bytes; takes precedence over the percentage
    page_cache_reclaim_sync: bool | None = None


class ResctrlQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of the last-level cache, and the memory bandwidth in percent."""

    enable: bool = False
    cat_range_start_percent: Percent = 0
    cat_range_end_percent: Percent = 100
    mba_percent: Percent = 100


class NetworkQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Network bandwidth. Defaults are 0; the CRD sets limits of 100 % if this part is present.

    A limit of 0 means no more than the request.
    """

    enable: bool = False
    ingress_request: Bandwidth = 0
    ingress_limit: Bandwidth = 0
    egress_request: Bandwidth = 0
    egress_limit: Bandwidth = 0


class IoConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits of one device; `None`: not set. A rate of 0 means no limit; latencies are in µs."""

    read_iops: NonNegative | None = field(default=None, name="readIOPS")
    write_iops: NonNegative | None = field(default=None, name="writeIOPS")
    read_bps: NonNegative | None = field(default=None, name="readBPS")
    write_bps: NonNegative | None = field(default=None, name="writeBPS")
    io_weight_percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    read_latency: NonNegative | None = None
    write_latency: NonNegative | None = None
    read_latency_percent: Percent | None = None
    write_latency_percent: Percent | None = None
    enable_user_model: bool | None = None
    model_read_bps: Positive | None = field(default=None, name="modelReadBPS")
    model_write_bps: Positive | None = field(default=None, name="modelWriteBPS")
    model_read_seq_iops: Positive | None = field(default=None, name="modelReadSeqIOPS")
    model_write_seq_iops: Positive | None = field(default=None, name="modelWriteSeqIOPS")
    model_read_rand_iops: Positive | None = field(default=None, name="modelReadRandIOPS")
    model_write_rand_iops: Positive | None = field(default=None, name="modelWriteRandIOPS")


class BlockDeviceConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One device, the disks of a volume group, or the disk of a pod's volume."""

    name: DeviceName = ""
    type: BlockType = "device"
    io_cfg: IoConfig = IoConfig()


class BlkioQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Devices with their limits. Disabled is an empty list, absent means no setting."""

    enable: bool = False
    blocks: tuple[BlockDeviceConfig, ...] = ()


class QosPolicies(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which of several mechanisms enforces a part."""

    cpu_policy: CpuPolicy = "groupIdentity"
    network_policy: NetworkPolicy = field(default="tc", name="netQOSPolicy")


class QosClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class. Each part has its own switch."""

    cpu: CpuQos = field(default=CpuQos(), name="cpuQOS")
    memory: MemoryQos = field(default=MemoryQos(), name="memoryQOS")
    blkio: BlkioQos | None = field(default=None, name="blkioQOS")
    resctrl: ResctrlQos = field(default=ResctrlQos(), name="resctrlQOS")
    network: NetworkQos = field(default=NetworkQos(), name="networkQOS")


LSR_DEFAULTS = QosClass(
    cpu=CpuQos(group_identity=2, core_expeller=True),
    memory=MemoryQos(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25),
)

LS_DEFAULTS = LSR_DEFAULTS

BE_DEFAULTS = QosClass(
    cpu=CpuQos(group_identity=-1),
    memory=MemoryQos(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=50),
    resctrl=ResctrlQos(cat_range_end_percent=30),
)

SYSTEM_DEFAULTS = QosClass()


class ResourceQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All classes. `cgroup_root` is the node's root, which has only block devices."""

    policies: QosPolicies = QosPolicies()
    lsr_class: QosClass = LSR_DEFAULTS
    ls_class: QosClass = LS_DEFAULTS
    be_class: QosClass = BE_DEFAULTS
    system_class: QosClass = SYSTEM_DEFAULTS
    cgroup_root: QosClass = QosClass()


def settle_classes(strategy: ResourceQos) -> ResourceQos:
    """Return the classes with neutral values in disabled parts: CPU, memory, cache of LSR, LS, BE.

    The class SYSTEM, block devices and network keep their values; their users check `enable`.
    """
    return msgspec.structs.replace(
        strategy,
        lsr_class=_settle_class(strategy.lsr_class),
        ls_class=_settle_class(strategy.ls_class),
        be_class=_settle_class(strategy.be_class),
    )


def _settle_class(one: QosClass) -> QosClass:
    return msgspec.structs.replace(
        one,
        cpu=one.cpu if one.cpu.enable else CpuQos(),
        memory=one.memory if one.memory.enable else MemoryQos(),
        resctrl=one.resctrl if one.resctrl.enable else ResctrlQos(),
    )


EVICT_GAP_PERCENT = 2  # difference between a threshold and its default lower limit


class ResourceThresholds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Thresholds in percent of the node unless stated otherwise; `None`: the rule is not set.

    `enable` switches all of them. The allocatable thresholds compare requests, which may exceed the
    node; their lower limits have no default, and without one no pod is evicted.
    """

    enable: bool = False
    cpu_suppress_threshold_percent: Percent = 65
    cpu_suppress_min_percent: Percent | None = None  # floor for best-effort pods
    cpu_suppress_policy: SuppressPolicy = "cpuset"
    memory_evict_threshold_percent: Percent = 70
    memory_evict_lower_percent: Percent | None = None
    memory_allocatable_evict_threshold_percent: NonNegative | None = None
    memory_allocatable_evict_lower_percent: NonNegative | None = None
    # of what best-effort pods request, what they may really have
    cpu_evict_satisfaction_upper_percent: Percent | None = field(
        default=None, name="cpuEvictBESatisfactionUpperPercent"
    )
    cpu_evict_satisfaction_lower_percent: Percent | None = field(
        default=None, name="cpuEvictBESatisfactionLowerPercent"
    )
    # of what they may have, what they use
    cpu_evict_usage_threshold_percent: Percent | None = field(
        default=None, name="cpuEvictBEUsageThresholdPercent"
    )
    cpu_evict_time_window_s: Positive | None = field(default=None, name="cpuEvictTimeWindowSeconds")
    cpu_evict_threshold_percent: Percent | None = None
    cpu_evict_lower_percent: Percent | None = None
    cpu_allocatable_evict_threshold_percent: NonNegative | None = None
    cpu_allocatable_evict_lower_percent: NonNegative | None = None
    cpu_evict_policy: EvictPolicy = "evictByRealLimit"
    evict_enabled_priority_threshold: Int32 | None = None  # highest priority that may be evicted
    allocatable_evict_priority_threshold: EvictablePriority | None = None

    @property
    def memory_evict_until_percent(self) -> int | None:
        """Return the use at which eviction for memory stops; `None`: no eviction."""
        return _eviction_end(self.memory_evict_threshold_percent, self.memory_evict_lower_percent)

    @property
    def cpu_evict_until_percent(self) -> int | None:
        """Return the use at which eviction for CPU stops; `None`: no eviction."""
        return _eviction_end(self.cpu_evict_threshold_percent, self.cpu_evict_lower_percent)


def _eviction_end(threshold: int | None, lower: int | None) -> int | None:
    """Return the lower limit, unless there is no threshold, it is 0, or not above the limit."""
    if not threshold:
        return None
    if lower is None:
        return threshold - EVICT_GAP_PERCENT
    return lower if lower < threshold else None


Features = tuple[tuple[str, bool], ...]  # by name

Extensions = tuple[tuple[str, str], ...]  # name and JSON, by name


class CpuBurst(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`spec.cpuBurstStrategy`: how far containers may exceed their CPU limit."""

    policy: BurstPolicy = "none"
    cpu_burst_percent: Annotated[int, Meta(ge=0, le=10000)] = 1000  # of the limit
    cfs_quota_burst_percent: Annotated[int, Meta(ge=100, le=2**31)] = 300  # of the limit
    # how long a raised limit lasts; -1: as long as it is needed
    cfs_quota_burst_period_s: Annotated[int, Meta(ge=-1, le=2**31)] = field(
        default=-1, name="cfsQuotaBurstPeriodSeconds"
    )
    # percent of the node: above it quotas return to the limit
    share_pool_threshold_percent: Percent = 50


class SystemStrategy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`spec.systemStrategy`: kernel settings; `None`: the kernel's value stays."""

    min_free_kbytes_factor: Positive | None = None  # of 1/10000 of the node's memory
    watermark_scale_factor: Annotated[int, Meta(ge=1, le=400)] | None = None
    memcg_reap_back_ground: BinaryFlag | None = None
    sched_group_identity_enabled: BinaryFlag | None = None
    sched_idle_saver_wmark: Int64 | None = None
    sched_features: Features = ()
    page_cache_limit_enabled: BinaryFlag | None = None
    total_network_bandwidth: QuantityText = "0"


class CgroupPath(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The cgroup of a host application, below a directory named by the kubelet's cgroup driver."""

    base: CgroupBase = "CgroupRoot"
    parent_dir: RelativePath = ""
    relative_path: RelativePath = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the directories below the base."""
        joined = f"{self.parent_dir}/{self.relative_path}"
        return tuple(part for part in joined.split("/") if part not in ("", "."))


class HostStrategy(msgspec.Struct, frozen=True):
    """Has no fields in any release of Koordinator so far."""


class HostApplication(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A program that runs on the node outside of pods; its usage is not part of the system's."""

    name: DirectoryName = ""
    priority: PriorityName = ""
    qos: QosName = ""
    cgroup_path: CgroupPath | None = None  # None: the default directory of its class
    strategy: HostStrategy = HostStrategy()


class NodeSlo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a NodeSLO. Parts of third parties are kept unchanged."""

    thresholds: ResourceThresholds = field(
        default=ResourceThresholds(), name="resourceUsedThresholdWithBE"
    )
    resource_qos: ResourceQos = field(default=ResourceQos(), name="resourceQOSStrategy")
    cpu_burst: CpuBurst = field(default=CpuBurst(), name="cpuBurstStrategy")
    system: SystemStrategy = field(default=SystemStrategy(), name="systemStrategy")
    host_applications: tuple[HostApplication, ...] = ()
    extensions: Extensions = ()


NODE_SLO_DEFAULTS = NodeSlo(
    resource_qos=settle_classes(ResourceQos())
)  # what stands without an object

MAX_INVALID_FIELDS = 64  # reported one by one; further ones are only counted


class InvalidField(msgspec.Struct, frozen=True, kw_only=True):
    """One invalid value of the object; its default is in force instead, or no rule."""

    path: str  # "spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent"
    why: str  # reason with the allowed range; repeats at most 40 characters of the value


class NodeSloView(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force. Without an object these are the defaults, which request nothing."""

    found: bool = False  # False: there is no object, or none was received yet
    resource_version: str = ""  # version of the object in force
    generation: int | None = None
    slo: NodeSlo = NODE_SLO_DEFAULTS
    refused: tuple[InvalidField, ...] = ()  # the first invalid fields, in the order of the fields
    refused_count: int = 0
    unknown_fields: int = 0  # number of fields of newer versions, which are ignored
    problem: str = ""  # why a newer object could not be read; an earlier one is then in force
