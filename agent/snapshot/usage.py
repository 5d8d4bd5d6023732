"""Measured usage of node, pods, containers and shared cards, and its aggregates."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from agent.snapshot.inventory import Problem

NO_ENTRIES: Mapping[Any, Any] = MappingProxyType({})


PRESSURE_RESOURCES = ("cpu", "memory", "io")  # the kernel has a file for each


class Pressure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """PSI of one resource: `avg10` in percent and total stall time; `full` may be unsupported."""

    some_avg10: float
    some_total_us: int
    full_avg10: float | None = None
    full_total_us: int | None = None


class PressureWatch(msgspec.Struct, frozen=True, kw_only=True):
    """Stalls of latency-sensitive pods that wait for CPU, since the start of the agent."""

    method: str = "off"  # off, triggers, sampling, unsupported
    reason: str = ""  # why triggers are not used
    groups: int = 0  # watched cgroups
    stalls: int = 0
    last_stall_s: float | None = None  # monotonic


class CgroupUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Usage of one cgroup in the last cycle; `None`: its files do not have the value (yet)."""

    cpu_cores: float | None = None  # rate since the previous cycle
    cpu_total_ns: int | None = None  # counter
    memory_bytes: int | None = None  # without page cache
    memory_with_cache_bytes: int | None = None
    throttled_ratio: float | None = None  # throttled periods to periods, since the last cycle
    throttled_periods: int | None = None  # counter
    periods: int | None = None  # counter
    pressure: Mapping[str, Pressure] | None = None  # by cpu, memory, io; None: no PSI here


class NumaUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one NUMA node in the last cycle."""

    node_id: int
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    pods_memory_bytes: int | None = None


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of the whole node in the last cycle."""

    cpu_cores: float | None = None
    cpu_total_ns: int | None = None
    memory_bytes: int | None = None  # MemTotal - MemAvailable
    memory_with_cache_bytes: int | None = None  # MemTotal - MemFree
    memory_total_bytes: int | None = None
    system_cpu_cores: float | None = None  # node - pods - host applications, not below 0
    system_memory_bytes: int | None = None
    pressure: Mapping[str, Pressure] | None = None
    numa: tuple[NumaUsage, ...] = ()


class BestEffortUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The best-effort tier: usage of its group, requests of its pods, and its limit."""

    use: CgroupUsage | None = None  # None: the kubelet has not created the group
    request_milli: int | None = None  # requested batch CPU of pods labelled BE
    limit_milli: int | None = None  # the smaller one of CPU sets and quota
    problems: tuple[Problem, ...] = ()


class ContainerCycles(msgspec.Struct, frozen=True, kw_only=True):
    """CPU cycles and instructions of one container in one window, on all CPUs together."""

    cycles: int
    instructions: int
    window_s: float

    @property
    def per_instruction(self) -> float | None:
        """Return cycles per instruction; `None` for a container that executed none."""
        return self.cycles / self.instructions if self.instructions else None


class CycleUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Cycles of each container in its last window, by id; uncounted containers are left out."""

    containers: Mapping[str, ContainerCycles]
    problems: tuple[Problem, ...] = ()


class ResctrlCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one resctrl group on one cache."""

    group: str = ""  # LSR, LS, BE, default; empty: the group of one pod
    pod_uid: str = ""
    cache_id: int
    occupancy_bytes: int | None = None
    total_bytes: int | None = None  # memory traffic since the group was created
    local_bytes: int | None = None  # the part of it to the memory of the cache's own NUMA node
    total_bytes_per_s: float | None = None
    local_bytes_per_s: float | None = None


class ResctrlUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of all monitored groups."""

    groups: tuple[ResctrlCounters, ...] = ()
    problems: tuple[Problem, ...] = ()


class ColdMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Page cache that nothing has used for minutes, of the node and of groups.

    `idle_ratio` is the share of all memory of the node, free memory included.
    """

    node_bytes: int | None = None
    pods: Mapping[str, int] = NO_ENTRIES  # by uid
    containers: Mapping[str, int] = NO_ENTRIES  # by id
    applications: Mapping[str, int] = NO_ENTRIES  # host applications, by name
    idle_ratio: float | None = None
    problems: tuple[Problem, ...] = ()


def hot_memory(with_cache_bytes: int | None, cold_bytes: int | None) -> int | None:
    """Return memory with page cache minus its cold part; `None` if either is unknown.

    The two are read one after the other: a cold part that exceeds the whole gives `None`.
    """
    if with_cache_bytes is None or cold_bytes is None or cold_bytes > with_cache_bytes:
        return None
    return with_cache_bytes - cold_bytes


class DiskCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Sums for one block device since the host's start."""

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    busy_ms: int  # time in which at least one request was in progress


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A disk, a partition, or a device that is built on others."""

    name: str  # "sda1", "dm-0"
    number: str  # "8:1"
    kind: str  # disk, part, lvm, crypt, mpath, dm, loop, rom, or the level of a RAID
    size_bytes: int
    mapper_name: str = ""  # below /dev/mapper
    parents: tuple[str, ...] = ()  # names of the devices below
    volume_group: str = ""
    logical_volume: str = ""
    counters: DiskCounters | None = None


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """Where a block device is mounted."""

    path: str
    device: str  # BlockDevice.name
    filesystem: str
    is_whole: bool = True  # False: only a part of it is mounted, as by a bind mount


class DeviceIo(msgspec.Struct, frozen=True, kw_only=True):
    """Reads and writes of one group on one block device since the group was created."""

    read_bytes: int
    written_bytes: int
    reads: int
    writes: int


IoByDevice = Mapping[str, DeviceIo]  # by device number, "8:0"


class StorageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The node's storage, and the block IO of pods and containers."""

    devices: tuple[BlockDevice, ...] = ()  # by name
    volume_groups: Mapping[str, tuple[str, ...]] = NO_ENTRIES
    mounts: tuple[Mount, ...] = ()  # by path
    pods: Mapping[str, IoByDevice] = NO_ENTRIES  # by uid
    containers: Mapping[str, IoByDevice] = NO_ENTRIES  # by id
    problems: tuple[Problem, ...] = ()


class CollectorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a collector's last run; `problems` are the reasons of absent values."""

    name: str
    success: bool = False
    duration_s: float | None = None  # None: no run is complete
    last_success_s: float | None = None  # Unix time
    problems: tuple[Problem, ...] = ()


class UsageSample(msgspec.Struct, frozen=True, kw_only=True):
    """One collector cycle: node, pods by uid, containers by id, host applications by name.

    `owners` are pod uid and container id of the processes on devices, by pid; those that belong
    to no pod are not in it. Each optional collector has a field, `None` while it has no values.
    """

    node: NodeUsage = NodeUsage()
    pods: Mapping[str, CgroupUsage] = NO_ENTRIES
    containers: Mapping[str, CgroupUsage] = NO_ENTRIES
    applications: Mapping[str, CgroupUsage] = NO_ENTRIES
    owners: Mapping[int, tuple[str, str]] = NO_ENTRIES
    best_effort: BestEffortUsage | None = None
    cycles: CycleUsage | None = None
    resctrl: ResctrlUsage | None = None
    cold_memory: ColdMemory | None = None
    storage: StorageUsage | None = None
    collectors: tuple[CollectorStatus, ...] = ()  # of all that are on, by name


class ResourceUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """CPU and memory in one window; `None`: a series without samples."""

    cpu_cores: float | None = None
    memory_bytes: float | None = None


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Usage of one device in one window."""

    key: str
    core_percent: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: int | None = None


class UsageAggregate(msgspec.Struct, frozen=True, kw_only=True):
    """avg, p50, p90, p95, p99 over one window; empty while the window is less than half full."""

    duration_s: int
    node: tuple[tuple[str, ResourceUsage], ...] = ()
    system: tuple[tuple[str, ResourceUsage], ...] = ()
    devices: tuple[tuple[str, tuple[DeviceUsage, ...]], ...] = ()


class NumaAggregate(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one NUMA node in the aggregation period."""

    node_id: int
    node: ResourceUsage
    system: ResourceUsage | None = None


class PodAggregate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Usage of one pod in the aggregation period."""

    uid: str
    use: ResourceUsage
    devices: tuple[DeviceUsage, ...] = ()


class ApplicationAggregate(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one host application in the aggregation period, while it runs."""

    name: str
    use: ResourceUsage


class PredictedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction of one predictor for production pods."""

    reclaimable: ResourceUsage = ResourceUsage()
    peak: ResourceUsage = ResourceUsage()


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted peak of production and what it leaves of its requests.

    `pods` sums the peaks of single pods, `classes` takes the peaks of their priority classes and
    of the system. With an `error` neither is known.
    """

    pods: PredictedUsage = PredictedUsage()
    classes: PredictedUsage = PredictedUsage()
    predicted_pods: int = 0
    cold_pods: int = 0  # pods that are too young to predict: their requests count as used
    error: str = ""

    def reclaimable(self) -> ResourceUsage:
        """Return the smaller reclaimable of both predictors, by resource."""
        return _merge(min, self.pods.reclaimable, self.classes.reclaimable)

    def peak(self) -> ResourceUsage:
        """Return the larger peak of both predictors, by resource."""
        return _merge(max, self.pods.peak, self.classes.peak)


def _merge(
    choose: Callable[[Iterable[float]], float], one: ResourceUsage, other: ResourceUsage
) -> ResourceUsage:
    cpu = [use.cpu_cores for use in (one, other) if use.cpu_cores is not None]
    memory = [use.memory_bytes for use in (one, other) if use.memory_bytes is not None]
    return ResourceUsage(
        cpu_cores=choose(cpu) if cpu else None, memory_bytes=choose(memory) if memory else None
    )


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Usage for NodeMetric: means over the aggregation period, percentiles over windows."""

    node: ResourceUsage = ResourceUsage()
    system: ResourceUsage = ResourceUsage()
    devices: tuple[DeviceUsage, ...] = ()
    aggregates: tuple[UsageAggregate, ...] = ()  # in the order of the policy
    numa: tuple[NumaAggregate, ...] = ()
    pods: tuple[PodAggregate, ...] = ()
    applications: tuple[ApplicationAggregate, ...] = ()  # by name
    prediction: Prediction | None = None  # None: prediction is switched off


class SharedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one card of a region; `host_pid` is 0 while HAMi-core has not found it."""

    host_pid: int
    memory_bytes: int


class SharedCard(msgspec.Struct, frozen=True, kw_only=True):
    """One card of a container as HAMi-core counts it: sums over the container's processes."""

    index: int  # its position in the container
    uuid: str
    used_bytes: int = 0
    context_bytes: int = 0
    module_bytes: int = 0
    buffer_bytes: int = 0
    offset_bytes: int = 0
    core_percent: int = 0
    limit_bytes: int | None = None  # None: unlimited
    core_limit_percent: int | None = None  # None: unlimited
    processes: tuple[SharedProcess, ...] = ()
    measured_bytes: int | None = None  # the driver's figure, if it differs from the count


class SharedRegion(msgspec.Struct, frozen=True, kw_only=True):
    """HAMi-core's region of one container."""

    pod_uid: str
    container: str  # name
    layout: str  # A, B, O
    cards: tuple[SharedCard, ...] = ()
    # Unix time; None: no kernel ran yet, or the layout does not have it
    last_kernel_s: int | None = None


class MpsDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """One running MPS control daemon."""

    pid: int
    pipe_dir: str | None = None  # None: its environment is not readable
    log_dir: str | None = None
    cards: tuple[str, ...] = ()  # its CUDA_VISIBLE_DEVICES; empty: all cards, or not readable
    servers: tuple[int, ...] = ()  # pids of its servers, one for each active user

    def serves(self, uuid: str) -> bool:
        """Return whether the daemon was started for this card only."""
        return uuid in self.cards

    def reaches(self, uuid: str) -> bool:
        """Return whether clients of the daemon can use the card; without a list it serves all."""
        return uuid in self.cards or (self.pipe_dir is not None and not self.cards)


class SharingView(msgspec.Struct, frozen=True, kw_only=True):
    """All regions and daemons of the node, and the errors of those that could not be read."""

    regions: tuple[SharedRegion, ...] = ()  # by pod uid, then container
    mps: tuple[MpsDaemon, ...] = ()  # by pid
    problems: tuple[Problem, ...] = ()
    wall_s: float = 0.0  # Unix time of the reading, which times in the regions are compared with


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The last values of one quantity, one for each step of time, the newest last.

    They are packed in single precision: four bytes a value. NaN stands for an unknown value.
    """

    packed: bytes = b""

    @property
    def values(self) -> tuple[float | None, ...]:
        """Return the values, the oldest first; `None` where none is known."""
        return tuple(value if value == value else None for value in array("f", self.packed))  # noqa: PLR0124 - NaN

    @property
    def last(self) -> float | None:
        """Return the newest value."""
        values = Trend(packed=self.packed[-4:]).values
        return values[0] if values else None

    def plus(self, other: Trend) -> Trend:
        """Return the sums with another trend that ends at the same time."""
        pairs = zip(
            reversed(array("f", self.packed)), reversed(array("f", other.packed)), strict=False
        )
        return Trend(packed=array("f", reversed([one + two for one, two in pairs])).tobytes())


NO_TREND = Trend()


class LinkTrafficTrend(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic of a device over one kind of link, in bytes per second."""

    link: str  # NVLink, HCCS, PCIe, RDMA
    sent: Trend = NO_TREND
    received: Trend = NO_TREND


class DeviceTrend(msgspec.Struct, frozen=True, kw_only=True):
    """The last minutes of one device."""

    busy_percent: Trend = NO_TREND
    memory_bytes: Trend = NO_TREND
    temperature_celsius: Trend = NO_TREND  # of the hottest sensor
    power_watts: Trend = NO_TREND
    links: tuple[LinkTrafficTrend, ...] = ()  # in the order of `VendorDescription.traffic`


class TrendView(msgspec.Struct, frozen=True, kw_only=True):
    """The last minutes of the node and of its devices, for people."""

    step_s: float = 0.0  # time between two values
    cpu_cores: Trend = NO_TREND
    memory_bytes: Trend = NO_TREND
    devices: Mapping[str, DeviceTrend] = NO_ENTRIES  # by device key
