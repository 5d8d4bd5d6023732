"""Usage: what was measured in the last cycle, and what windows make of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """PSI of one resource: `avg10` in percent and total stall time; `full` may be unsupported."""

    some_avg10: float
    some_total_us: int
    full_avg10: float | None = None
    full_total_us: int | None = None


class GroupUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One cgroup in the last cycle; `None` is what its files do not tell (yet)."""

    cpu_cores: float | None = None  # rate since the previous cycle
    cpu_total_ns: int | None = None  # counter
    memory_bytes: int | None = None  # without page cache
    memory_with_cache_bytes: int | None = None
    throttled_ratio: float | None = None  # throttled periods to periods, since the last cycle
    throttled_periods: int | None = None  # counter
    periods: int | None = None  # counter
    pressure: Mapping[str, Pressure] | None = None  # by cpu, memory, io; None: no PSI here


class NumaUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One memory node in the last cycle."""

    node_id: int
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    pods_memory_bytes: int | None = None


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The whole node in the last cycle."""

    cpu_cores: float | None = None
    cpu_total_ns: int | None = None
    memory_bytes: int | None = None  # MemTotal - MemAvailable
    memory_with_cache_bytes: int | None = None  # MemTotal - MemFree
    memory_total_bytes: int | None = None
    system_cpu_cores: float | None = None  # node - pods - host applications, not below 0
    system_memory_bytes: int | None = None
    pressure: Mapping[str, Pressure] | None = None
    numa: tuple[NumaUsage, ...] = ()


def _no_groups() -> Mapping[str, GroupUsage]:
    return MappingProxyType({})


def _no_owners() -> Mapping[int, tuple[str, str]]:
    return MappingProxyType({})


class UsageSample(msgspec.Struct, frozen=True, kw_only=True):
    """One collector cycle: node, pods by uid, containers by id, host applications by name.

    `owners` are pod uid and container id of the processes on devices, by pid; those that belong
    to no pod are not in it.
    """

    node: NodeUsage = NodeUsage()
    pods: Mapping[str, GroupUsage] = msgspec.field(default_factory=_no_groups)
    containers: Mapping[str, GroupUsage] = msgspec.field(default_factory=_no_groups)
    applications: Mapping[str, GroupUsage] = msgspec.field(default_factory=_no_groups)
    owners: Mapping[int, tuple[str, str]] = msgspec.field(default_factory=_no_owners)


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory of one thing over one window; `None` is a series without samples."""

    cpu_cores: float | None = None
    memory_bytes: float | None = None


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """One device over one window."""

    key: str
    core_percent: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: int | None = None


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """avg, p50, p90, p95, p99 over one window; empty while the window is less than half full."""

    duration_s: int
    node: tuple[tuple[str, Resources], ...] = ()
    system: tuple[tuple[str, Resources], ...] = ()
    devices: tuple[tuple[str, tuple[DeviceUse, ...]], ...] = ()


class NumaWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One memory node over the aggregation period."""

    node_id: int
    node: Resources
    system: Resources | None = None


class PodWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod over the aggregation period."""

    uid: str
    use: Resources
    devices: tuple[DeviceUse, ...] = ()


class ApplicationWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One host application over the aggregation period, while it runs."""

    name: str
    use: Resources


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What NodeMetric reports: means over the aggregation period, percentiles over windows."""

    node: Resources = Resources()
    system: Resources = Resources()
    devices: tuple[DeviceUse, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()  # in the order of the policy
    numa: tuple[NumaWindow, ...] = ()
    pods: tuple[PodWindow, ...] = ()
    applications: tuple[ApplicationWindow, ...] = ()  # by name
