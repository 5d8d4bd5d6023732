"""Usage of the last half hour in bounded memory, and its aggregation for NodeMetric.

Means and percentiles are those of Koordinator's metric cache.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isnan

import msgspec

from agent.snapshot.inventory import DeviceSample
from agent.snapshot.usage import (
    ApplicationAggregate,
    CgroupUsage,
    ColdMemory,
    DeviceUsage,
    NodeUsage,
    NumaAggregate,
    PodAggregate,
    ResourceUsage,
    UsageAggregate,
    UsageReport,
    UsageSample,
    hot_memory,
)
from agent.usage.cgroup_usage import CgroupUsageTable

# ("node", "cpu"), ("system", "memory"), ("numa", "0", "cpu"), ("numa-system", "0", "cpu"),
# ("device", key, "core"), ("pod", uid, "cpu"), ("pod-device", uid, device key, "memory"),
# ("application", name, "cpu")
SeriesKey = tuple[str, ...]
Amounts = tuple[float, float]  # CPU in cores, memory in bytes

NAN = float("nan")


class MomentRange(msgspec.Struct, frozen=True):
    """Moments `first` to `last` (exclusive) of the table, counted since its start."""

    first: int
    last: int


class _RingSeries:
    """Values at the table's slots; `end` is the number of the moment after the last value."""

    __slots__ = ("end", "values")

    def __init__(self, capacity: int, moment: int) -> None:
        self.values = array("d", [NAN]) * capacity
        self.end = moment


class SeriesTable:
    """Series by key with common times; the newest moment replaces the oldest.

    A series without a value at a moment has NaN there, which `values` leaves out.
    """

    def __init__(self, capacity: int, max_series: int) -> None:
        self.capacity = capacity
        self.max_series = max_series
        self._times = array("d", [NAN]) * capacity
        self._moments = 0
        self._series: dict[SeriesKey, _RingSeries] = {}

    def begin_moment(self, now_s: float) -> None:
        """Begin the next moment; times must increase."""
        self._times[self._moments % self.capacity] = now_s
        self._moments += 1

    def set_values(self, items: Iterable[tuple[SeriesKey, float | None]]) -> None:
        """Set values of the current moment; absent ones are left out."""
        moment, capacity, series = self._moments, self.capacity, self._series
        slot = (moment - 1) % capacity
        for key, value in items:
            if value is None:
                continue
            ring = series.get(key)
            if ring is None:
                if len(series) >= self.max_series:
                    continue
                ring = series[key] = _RingSeries(capacity, moment - 1)
            elif ring.end != moment - 1:
                self._mark_missing(ring, moment - 1)
            ring.values[slot] = value
            ring.end = moment

    def retain(self, is_retained: Callable[[SeriesKey], bool]) -> None:
        """Drop the series whose key is not to be retained."""
        removed = [key for key in self._series if not is_retained(key)]
        for key in removed:
            del self._series[key]

    def drop_before(self, oldest_s: float) -> None:
        """Drop the series without a value since that time."""
        first = self.window(oldest_s, float("inf")).first
        self.retain(lambda key: self._series[key].end > first)

    def series_keys(self) -> tuple[SeriesKey, ...]:
        """Return the keys that have a series."""
        return tuple(self._series)

    def window(self, start_s: float, end_s: float) -> MomentRange:
        """Return the moments of the closed interval that are still stored."""
        oldest = max(0, self._moments - self.capacity)
        moments = range(oldest, self._moments)
        first = bisect_left(moments, start_s, key=self._time)
        last = bisect_right(moments, end_s, key=self._time)
        return MomentRange(oldest + first, oldest + last)

    def values(self, key: SeriesKey, window: MomentRange) -> list[float]:
        """Return the series' values in the window, oldest first."""
        raw = self._raw_values(key, window)
        if not isnan(sum(raw)):  # usually no value is missing
            return raw
        return [value for value in raw if not isnan(value)]

    def mean(self, key: SeriesKey, window: MomentRange) -> float | None:
        """Return the arithmetic mean of the series' values in the window; `None` without values."""
        ring = self._series.get(key)
        if ring is None or window.first >= window.last:
            return None
        if ring.end == self._moments:
            first, last = self._slots(window)
            if first < last:  # without a list, each value is freed before the next is made
                total = sum(ring.values[first:last])
            else:
                total = sum(ring.values[:last], sum(ring.values[first:]))
            if not isnan(total):
                return total / (window.last - window.first)
        return mean(self.values(key, window))

    def percentiles(
        self, keys: Iterable[SeriesKey], window: MomentRange, fraction: float
    ) -> list[float | None]:
        """Return that percentile of each series' values in the window; `None` without values.

        One call ranks hundreds of series: slots and rank are computed once for all that are
        complete.
        """
        first, last = self._slots(window)
        rank = percentile_index(window.last - window.first, fraction)
        is_contiguous = window.first < window.last and first < last
        ranked: list[float | None] = []
        for key in keys:
            ring = self._series.get(key)
            if ring is not None and is_contiguous and ring.end == self._moments:
                values = ring.values[first:last].tolist()
                values.sort()
                if not isnan(sum(values)):
                    ranked.append(values[rank])
                    continue
            present = self.values(key, window)
            ranked.append(percentile(present, fraction) if present else None)
        return ranked

    def span_s(self, key: SeriesKey, window: MomentRange) -> float:
        """Return the seconds between the series' first and last value in the window."""
        raw = self._raw_values(key, window)
        moments = range(len(raw))
        first = next((i for i in moments if not isnan(raw[i])), None)
        last = next((i for i in reversed(moments) if not isnan(raw[i])), None)
        if first is None or last is None:
            return 0.0
        return self._time(window.first + last) - self._time(window.first + first)

    def _time(self, moment: int) -> float:
        return self._times[moment % self.capacity]

    def _raw_values(self, key: SeriesKey, window: MomentRange) -> list[float]:
        ring = self._series.get(key)
        if ring is None or window.first >= window.last:
            return []
        if ring.end != self._moments:
            self._mark_missing(ring, self._moments)
        first, last = self._slots(window)
        if first < last:
            return ring.values[first:last].tolist()
        return ring.values[first:].tolist() + ring.values[:last].tolist()

    def _slots(self, window: MomentRange) -> tuple[int, int]:
        """Return the slot of the first moment, and the one after the last moment's."""
        return window.first % self.capacity, (window.last - 1) % self.capacity + 1

    def _mark_missing(self, ring: _RingSeries, moment: int) -> None:
        """Mark the moments since the last value as missing."""
        for missing in range(max(ring.end, moment - self.capacity), moment):
            ring.values[missing % self.capacity] = NAN
        ring.end = max(ring.end, moment)


HOT_MEMORY = "memory-with-hot-cache"

# memory series of a policy; other policies use memory without page cache
MEMORY_SERIES = {"usageWithPageCache": "memory-with-cache", "usageWithHotPageCache": HOT_MEMORY}
MIN_WINDOW_RATIO = 0.5  # part of a window that must have values
MIN_AGGREGATE_S = 60.0  # minimum in Koordinator
PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
REPORT_VALUE_NAMES = ("avg", *(name for name, _ in PERCENTILES))


class UsageReportPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`spec.metricCollectPolicy` of NodeMetric, with its defaults."""

    aggregate_s: float = 300.0
    windows_s: tuple[int, ...] = (300, 600, 1800)
    # hot pages need the collector of cold memory and kidled, which mainline kernels lack: without
    # its values the first policy applies, as in Koordinator
    memory: str = "usageWithoutPageCache"


class SeriesTables(msgspec.Struct, frozen=True):
    """The series that a report is made from; `totals` is the devices' memory in bytes."""

    node: SeriesTable
    pods: SeriesTable
    totals: Mapping[str, int]


def _float32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


@lru_cache(maxsize=4096)  # few different counts and percentiles
def percentile_index(count: int, percentile: float) -> int:
    """Return max(floor(count x percentile) - 1, 0), multiplied in single precision."""
    return max(int(_float32(_float32(count) * _float32(percentile))) - 1, 0)


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return a percentile of values, without interpolation; there must be one."""
    return sorted(values)[percentile_index(len(values), fraction)]


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; `None` without values."""
    return sum(values) / len(values) if values else None


def aggregate_values(values: Sequence[float]) -> tuple[float | None, ...]:
    """Return avg, p50, p90, p95, p99 without interpolation; all `None` without values."""
    if not values:
        return (None,) * len(REPORT_VALUE_NAMES)
    ranked, count = sorted(values), len(values)
    ranks = [percentile_index(count, fraction) for _, fraction in PERCENTILES]
    return (sum(values) / count, *(ranked[rank] for rank in ranks))


def build_report(tables: SeriesTables, now_s: float, policy: UsageReportPolicy) -> UsageReport:
    """Return the report at one moment; a series without samples is absent."""
    memory = MEMORY_SERIES.get(policy.memory, "memory")
    start_s = now_s - max(policy.aggregate_s, MIN_AGGREGATE_S)
    window = tables.node.window(start_s, now_s)
    cards = (
        _device_usage(tables.node, ("device",), key, tables.totals, window)
        for key in _names_below(tables.node, ("device",))
    )
    pods = tables.pods.window(start_s, now_s)
    return UsageReport(
        node=_mean_usage(tables.node, ("node",), memory, window),
        system=_mean_usage(tables.node, ("system",), "memory", window),
        devices=tuple(use for use in cards if _has_usage(use)),
        aggregates=tuple(
            _aggregate_window(tables, now_s, length, memory) for length in policy.windows_s
        ),
        numa=_numa_aggregates(tables.node, window),
        pods=_pod_aggregates(tables, pods, memory),
        applications=tuple(
            ApplicationAggregate(name=name, use=mean_usage)
            for name, mean_usage in _complete_usage(tables.pods, "application", memory, pods)
        ),
    )


def _mean_usage(
    table: SeriesTable, of: SeriesKey, memory: str, window: MomentRange
) -> ResourceUsage:
    memory_bytes = table.mean((*of, memory), window)
    if memory_bytes is None:  # as in `_memory_values`
        memory_bytes = table.mean((*of, "memory"), window)
    return ResourceUsage(cpu_cores=table.mean((*of, "cpu"), window), memory_bytes=memory_bytes)


def _memory_values(
    table: SeriesTable, of: SeriesKey, memory: str, window: MomentRange
) -> list[float]:
    """Return the values of the policy, or those without page cache if there are none.

    A report without memory would count the node as degraded, and a pod without memory as unused.
    """
    return table.values((*of, memory), window) or table.values((*of, "memory"), window)


def _names_below(table: SeriesTable, of: SeriesKey) -> list[str]:
    """Return the sorted names after the prefix `of` in the table's keys."""
    size = len(of)
    return sorted({key[size] for key in table.series_keys() if key[:size] == of})


def _device_usage(
    table: SeriesTable, of: SeriesKey, key: str, totals: Mapping[str, int], window: MomentRange
) -> DeviceUsage:
    return DeviceUsage(
        key=key,
        core_percent=table.mean((*of, key, "core"), window),
        memory_bytes=table.mean((*of, key, "memory"), window),
        memory_total_bytes=totals.get(key),
    )


def _has_usage(use: DeviceUsage) -> bool:
    return use.core_percent is not None or use.memory_bytes is not None


def _numa_aggregates(table: SeriesTable, window: MomentRange) -> tuple[NumaAggregate, ...]:
    aggregates = []
    for name in sorted(_names_below(table, ("numa",)), key=int):
        node = _mean_usage(table, ("numa", name), "memory", window)
        system = _mean_usage(table, ("numa-system", name), "memory", window)
        if node != ResourceUsage():
            system_usage = system if system != ResourceUsage() else None
            aggregates.append(NumaAggregate(node_id=int(name), node=node, system=system_usage))
    return tuple(aggregates)


def _pod_aggregates(
    tables: SeriesTables, window: MomentRange, memory: str
) -> tuple[PodAggregate, ...]:
    """Return the pods with both values: with one value a pod would count as unused."""
    devices: dict[str, list[DeviceUsage]] = {}
    device_keys = {key[1:3] for key in tables.pods.series_keys() if key[0] == "pod-device"}
    for uid, key in sorted(device_keys):
        use = _device_usage(tables.pods, ("pod-device", uid), key, tables.totals, window)
        if _has_usage(use):
            devices.setdefault(uid, []).append(use)
    return tuple(
        PodAggregate(uid=uid, use=mean_usage, devices=tuple(devices.get(uid, ())))
        for uid, mean_usage in _complete_usage(tables.pods, "pod", memory, window)
    )


def _complete_usage(
    table: SeriesTable, of: str, memory: str, window: MomentRange
) -> Iterator[tuple[str, ResourceUsage]]:
    for name in _names_below(table, (of,)):
        mean_usage = _mean_usage(table, (of, name), memory, window)
        if mean_usage.cpu_cores is not None and mean_usage.memory_bytes is not None:
            yield name, mean_usage


def _aggregate_window(
    tables: SeriesTables, now_s: float, length_s: int, memory: str
) -> UsageAggregate:
    table = tables.node
    window = table.window(now_s - length_s, now_s)
    node = _aggregate_usage(table, "node", memory, window, length_s)
    devices = _aggregate_devices(tables, window) if node else ()
    system = _aggregate_usage(table, "system", "memory", window, length_s)
    return UsageAggregate(duration_s=length_s, node=node, system=system, devices=devices)


def _aggregate_usage(
    table: SeriesTable, of: str, memory: str, window: MomentRange, length_s: int
) -> tuple[tuple[str, ResourceUsage], ...]:
    """Return the five values; none while the CPU samples span less than half the window."""
    if table.span_s((of, "cpu"), window) < MIN_WINDOW_RATIO * length_s:
        return ()
    cpu = aggregate_values(table.values((of, "cpu"), window))
    memory_values = aggregate_values(_memory_values(table, (of,), memory, window))
    pairs = zip(REPORT_VALUE_NAMES, cpu, memory_values, strict=True)
    return tuple((name, ResourceUsage(cpu_cores=c, memory_bytes=m)) for name, c, m in pairs)


def _aggregate_devices(
    tables: SeriesTables, window: MomentRange
) -> tuple[tuple[str, tuple[DeviceUsage, ...]], ...]:
    """Return each card's five values, by name of the value."""
    columns = [
        list(_aggregate_device(tables, key, window))
        for key in _names_below(tables.node, ("device",))
    ]
    if not columns:
        return ()
    return tuple(
        (name, tuple(column[i] for column in columns if _has_usage(column[i])))
        for i, name in enumerate(REPORT_VALUE_NAMES)
    )


def _aggregate_device(tables: SeriesTables, key: str, window: MomentRange) -> Iterable[DeviceUsage]:
    core = aggregate_values(tables.node.values(("device", key, "core"), window))
    memory = aggregate_values(tables.node.values(("device", key, "memory"), window))
    total = tables.totals.get(key)
    for c, m in zip(core, memory, strict=True):
        yield DeviceUsage(key=key, core_percent=c, memory_bytes=m, memory_total_bytes=total)


SeriesValue = tuple[SeriesKey, float | None]

ProcessOwners = Mapping[int, tuple[str, str]]  # pod uid and container id, by pid

MAX_WINDOW_S = 1800.0
MAX_NODE_SERIES = 4096  # 512 devices and as many memory nodes as a machine may have
MAX_POD_SERIES = 8192  # 2,000 pods and their devices
MAX_POD_VALUES = MAX_POD_SERIES * 301  # 20 MB: with a longer window fewer series fit


class UsageHistory:
    """Bounded series: node, system, NUMA nodes and devices for half an hour, pods for less.

    `interval_s` is that of the samples: a shorter interval shortens the history.
    """

    def __init__(self, interval_s: float = 1.0, pod_window_s: float = 300.0) -> None:
        self._interval_s = interval_s
        self._node: SeriesTable = SeriesTable(_capacity(MAX_WINDOW_S, interval_s), MAX_NODE_SERIES)
        self._pods: SeriesTable = SeriesTable(_capacity(pod_window_s, interval_s), MAX_POD_SERIES)
        self._device_memory: dict[str, int] = {}
        self._live_names: set[str] = set()  # uids of pods and names of applications with series

    def add(
        self,
        now_s: float,
        sample: UsageSample,
        devices: Iterable[DeviceSample] = (),
        owners: ProcessOwners | None = None,
    ) -> None:
        """Add one cycle; `devices` are the new samples since the last cycle."""
        samples = tuple(devices)
        self._node.begin_moment(now_s)
        self._node.set_values(node_items(sample.node))
        self._node.set_values(hot_node_items(sample))
        self._node.set_values(device_items(samples))
        alive = {uid for uid, _ in (owners or {}).values()} | sample.pods.keys()
        alive |= sample.applications.keys()
        if self._live_names - alive:
            self._pods.retain(lambda key: key[1] in alive)
        self._live_names = alive
        self._pods.begin_moment(now_s)
        self._pods.set_values(pod_items(sample.pods))
        self._pods.set_values(hot_group_items(sample))
        self._pods.set_values(group_items("application", sample.applications))
        self._pods.set_values(pod_device_items(samples, owners or {}))
        totals = {d.key: d.memory_total_bytes for d in samples if d.memory_total_bytes is not None}
        self._device_memory.update(totals)

    def set_pod_window(self, window_s: float) -> None:
        """Set the length of the pods' history, at most half an hour.

        A longer history starts empty: pods are added again in the next cycle, and their means cover
        less than the window until then, as after a start.
        """
        capacity = _capacity(min(window_s, MAX_WINDOW_S), self._interval_s)
        if capacity > self._pods.capacity:
            self._pods = SeriesTable(capacity, min(MAX_POD_SERIES, MAX_POD_VALUES // capacity))
            self._live_names = set()

    def pod_percentiles(self, now_s: float, window_s: float, fraction: float) -> dict[str, Amounts]:
        """Return that percentile of each pod's CPU and memory; of pods that have both."""
        window = self._pods.window(now_s - window_s, now_s)
        uids = sorted(
            key[1] for key in self._pods.series_keys() if key[0] == "pod" and key[2] == "cpu"
        )
        cpu = self._pods.percentiles((("pod", uid, "cpu") for uid in uids), window, fraction)
        memory = self._pods.percentiles((("pod", uid, "memory") for uid in uids), window, fraction)
        return {
            uid: (cores, size)
            for uid, cores, size in zip(uids, cpu, memory, strict=True)
            if cores is not None and size is not None
        }

    def node_percentile(self, now_s: float, window_s: float, fraction: float) -> Amounts | None:
        """Return that percentile of the node's CPU and memory; `None` unless it has both."""
        window = self._node.window(now_s - window_s, now_s)
        keys = (("node", "cpu"), ("node", "memory"))
        cpu, memory = self._node.percentiles(keys, window, fraction)
        return (cpu, memory) if cpu is not None and memory is not None else None

    def report(self, now_s: float, policy: UsageReportPolicy | None = None) -> UsageReport:
        """Return means over the aggregation period and percentiles over the policy's windows."""
        self._node.drop_before(now_s - MAX_WINDOW_S)
        keys = {key[1] for key in self._node.series_keys() if key[0] == "device"}
        self._device_memory = {
            key: total for key, total in self._device_memory.items() if key in keys
        }
        tables = SeriesTables(self._node, self._pods, self._device_memory)
        return build_report(tables, now_s, policy or UsageReportPolicy())


def _capacity(window_s: float, interval_s: float) -> int:
    return math.ceil(window_s / interval_s) + 1  # a closed interval includes both ends


def node_items(node: NodeUsage) -> Iterator[SeriesValue]:
    """Yield the values of the node, the system and the NUMA nodes."""
    yield ("node", "cpu"), node.cpu_cores
    yield ("node", "memory"), node.memory_bytes
    yield ("node", "memory-with-cache"), node.memory_with_cache_bytes
    yield ("system", "cpu"), node.system_cpu_cores
    yield ("system", "memory"), node.system_memory_bytes
    all_cores = sum(numa.cpu_cores or 0.0 for numa in node.numa)
    for numa in node.numa:
        name = str(numa.node_id)
        yield ("numa", name, "cpu"), numa.cpu_cores
        yield ("numa", name, "memory"), numa.memory_bytes
        if numa.cpu_cores is not None and node.system_cpu_cores is not None:
            share = numa.cpu_cores / all_cores if all_cores else 0.0
            yield ("numa-system", name, "cpu"), node.system_cpu_cores * share
        if numa.memory_bytes is not None and numa.pods_memory_bytes is not None:
            system = max(0, numa.memory_bytes - numa.pods_memory_bytes)
            yield ("numa-system", name, "memory"), system


def hot_node_items(sample: UsageSample) -> Iterator[SeriesValue]:
    """Yield the node's memory with hot page cache, where cold memory is measured."""
    if sample.cold_memory is not None:
        hot = hot_memory(sample.node.memory_with_cache_bytes, sample.cold_memory.node_bytes)
        yield ("node", HOT_MEMORY), hot


def hot_group_items(sample: UsageSample) -> Iterator[SeriesValue]:
    """Yield the memory with hot page cache of pods and applications, where cold is measured."""
    memory = sample.cold_memory or ColdMemory()
    for of, cold_bytes, groups in (
        ("pod", memory.pods, sample.pods),
        ("application", memory.applications, sample.applications),
    ):
        for key, cold in cold_bytes.items():
            if key in groups:
                hot = hot_memory(groups[key].memory_with_cache_bytes, cold)
                yield (of, key, HOT_MEMORY), hot


def pod_items(pods: Mapping[str, CgroupUsage]) -> Iterator[SeriesValue]:
    """Yield each pod's values; a cycle's own table needs no `CgroupUsage` per pod."""
    if isinstance(pods, CgroupUsageTable):
        for uid, cpu, memory in zip(pods.index, pods.cpu_cores, pods.memory, strict=True):
            yield ("pod", uid, "cpu"), cpu
            if memory is not None:
                yield ("pod", uid, "memory"), memory[0]
                yield ("pod", uid, "memory-with-cache"), memory[1]
        return
    yield from group_items("pod", pods)


def group_items(of: str, groups: Mapping[str, CgroupUsage]) -> Iterator[SeriesValue]:
    """Yield each group's values below the prefix `of`."""
    for key, use in groups.items():
        yield (of, key, "cpu"), use.cpu_cores
        yield (of, key, "memory"), use.memory_bytes
        yield (of, key, "memory-with-cache"), use.memory_with_cache_bytes


def device_items(samples: Iterable[DeviceSample]) -> Iterator[SeriesValue]:
    """Yield the cards' own values; absent ones are left out."""
    for sample in samples:
        yield ("device", sample.key, "core"), sample.core_percent
        yield ("device", sample.key, "memory"), sample.memory_used_bytes


def pod_device_items(
    samples: Iterable[DeviceSample], owners: ProcessOwners
) -> Iterator[SeriesValue]:
    """Yield each pod's part of each device: the sum over its processes with values."""
    sums: dict[SeriesKey, float] = {}
    for sample in samples:
        for process in sample.processes or ():
            if process.pid not in owners:
                continue
            uid = owners[process.pid][0]
            for name, value in (("core", process.core_percent), ("memory", process.memory_bytes)):
                if value is not None:
                    key = ("pod-device", uid, sample.key, name)
                    sums[key] = sums.get(key, 0) + value
    yield from sums.items()
