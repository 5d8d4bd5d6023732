"""Usage of the last half hour in bounded memory, and its aggregation for NodeMetric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
from agent.usage.series import (
    AGGREGATE_NAMES,
    Aggregates,
    MomentRange,
    SeriesKey,
    SeriesTable,
)

Amounts = tuple[float, float]  # CPU in cores, memory in bytes
# Keys of series: ("node", "cpu"), ("system", "memory"), ("numa", "0", "cpu"),
# ("numa-system", "0", "cpu"), ("device", key, "core"), ("pod", uid, "cpu"),
# ("pod-device", uid, device key, "memory"), ("application", name, "cpu")

HOT_MEMORY = "memory-with-hot-cache"

# memory series of a policy; other policies use memory without page cache
MEMORY_SERIES = {"usageWithPageCache": "memory-with-cache", "usageWithHotPageCache": HOT_MEMORY}
MIN_WINDOW_RATIO = 0.5  # part of a window that must have values
MIN_AGGREGATE_S = 60.0  # minimum in Koordinator


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


def build_report(tables: SeriesTables, now_s: float, policy: UsageReportPolicy) -> UsageReport:
    """Return the report at one moment; a series without samples is absent."""
    memory = MEMORY_SERIES.get(policy.memory, "memory")
    start_s = now_s - max(policy.aggregate_s, MIN_AGGREGATE_S)
    window = tables.node.window(start_s, now_s)
    cards = (
        _device_usage(tables.node, ("device",), key, tables.totals, window)
        for key in tables.node.names("device")
    )
    pods = tables.pods.window(start_s, now_s)
    return UsageReport(
        node=_mean_usage(tables.node, ("node",), memory, window),
        system=_mean_usage(tables.node, ("system",), "memory", window),
        devices=tuple(use for use in cards if _has_usage(use)),
        aggregates=_aggregate_windows(tables, now_s, policy.windows_s, memory),
        numa=_numa_aggregates(tables.node, window),
        pods=_pod_aggregates(tables, pods, memory),
        applications=tuple(
            ApplicationAggregate(name=name, use=mean_usage)
            for name, mean_usage in _complete_usage(tables.pods, "application", memory, pods)
        ),
    )


def _mean_usages(
    table: SeriesTable, prefixes: Sequence[SeriesKey], memory: str, window: MomentRange
) -> Iterator[ResourceUsage]:
    """Yield the means of the series below each prefix."""
    cpu = table.means([(*prefix, "cpu") for prefix in prefixes], window)
    sizes = table.means([(*prefix, memory) for prefix in prefixes], window)
    for prefix, cores, size in zip(prefixes, cpu, sizes, strict=True):
        if size is not None:
            yield ResourceUsage(cpu_cores=cores, memory_bytes=size)
        else:  # as in `_memory_aggregates`
            (plain_size,) = table.means(((*prefix, "memory"),), window)
            yield ResourceUsage(cpu_cores=cores, memory_bytes=plain_size)


def _mean_usage(
    table: SeriesTable, prefix: SeriesKey, memory: str, window: MomentRange
) -> ResourceUsage:
    (usage,) = _mean_usages(table, (prefix,), memory, window)
    return usage


def _memory_aggregates(
    table: SeriesTable, of: str, memory: str, windows: Sequence[MomentRange]
) -> list[Aggregates]:
    """Return those of the policy's memory, or without page cache where it has no values.

    A report without memory would count the node as degraded, and a pod without memory as unused.
    """
    sizes = table.aggregates((of, memory), windows)
    if all(size[0] is not None for size in sizes):
        return sizes
    plain_sizes = table.aggregates((of, "memory"), windows)
    pairs = zip(sizes, plain_sizes, strict=True)
    return [size if size[0] is not None else plain for size, plain in pairs]


def _device_usage(
    table: SeriesTable, of: SeriesKey, key: str, totals: Mapping[str, int], window: MomentRange
) -> DeviceUsage:
    core, memory = table.means(((*of, key, "core"), (*of, key, "memory")), window)
    return DeviceUsage(
        key=key, core_percent=core, memory_bytes=memory, memory_total_bytes=totals.get(key)
    )


def _has_usage(use: DeviceUsage) -> bool:
    return use.core_percent is not None or use.memory_bytes is not None


def _numa_aggregates(table: SeriesTable, window: MomentRange) -> tuple[NumaAggregate, ...]:
    aggregates = []
    for name in sorted(table.names("numa"), key=int):
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
    # without devices of pods the thousands of other keys need no search
    keys = tables.pods.series_keys() if tables.pods.names("pod-device") else ()
    for uid, key in sorted({key[1:3] for key in keys if key[0] == "pod-device"}):
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
    names = table.names(of)
    usages = _mean_usages(table, [(of, name) for name in names], memory, window)
    for name, mean_usage in zip(names, usages, strict=True):
        if mean_usage.cpu_cores is not None and mean_usage.memory_bytes is not None:
            yield name, mean_usage


def _aggregate_windows(
    tables: SeriesTables, now_s: float, lengths_s: Sequence[int], memory: str
) -> tuple[UsageAggregate, ...]:
    table = tables.node
    windows = [table.window(now_s - length_s, now_s) for length_s in lengths_s]
    columns = zip(
        lengths_s,
        _aggregate_usage(table, "node", memory, windows, lengths_s),
        _aggregate_usage(table, "system", memory, windows, lengths_s),
        _aggregate_devices(tables, windows),
        strict=True,
    )
    return tuple(
        UsageAggregate(
            duration_s=length_s, node=node, system=system, devices=devices if node else ()
        )
        for length_s, node, system, devices in columns
    )


def _aggregate_usage(
    table: SeriesTable,
    of: str,
    memory: str,
    windows: Sequence[MomentRange],
    lengths_s: Sequence[int],
) -> Iterator[tuple[tuple[str, ResourceUsage], ...]]:
    """Yield the five values of each window.

    None while the CPU samples span less than half of it.
    """
    cpu = table.aggregates((of, "cpu"), windows)
    sizes = _memory_aggregates(table, of, memory, windows)
    for window, length_s, *columns in zip(windows, lengths_s, cpu, sizes, strict=True):
        if table.span_s((of, "cpu"), window) < MIN_WINDOW_RATIO * length_s:
            yield ()
            continue
        rows = zip(AGGREGATE_NAMES, *columns, strict=True)
        yield tuple((name, ResourceUsage(cpu_cores=c, memory_bytes=m)) for name, c, m in rows)


def _aggregate_devices(
    tables: SeriesTables, windows: Sequence[MomentRange]
) -> Iterator[tuple[tuple[str, tuple[DeviceUsage, ...]], ...]]:
    """Yield each window's values of the cards, by name of the value."""
    keys = tables.node.names("device")
    cards = [list(_aggregate_device(tables, key, windows)) for key in keys]
    for position in range(len(windows)):
        columns = zip(*(card[position] for card in cards), strict=True)
        yield tuple(
            (name, tuple(filter(_has_usage, column)))
            for name, column in zip(AGGREGATE_NAMES, columns, strict=False)
        )


def _aggregate_device(
    tables: SeriesTables, key: str, windows: Sequence[MomentRange]
) -> Iterator[list[DeviceUsage]]:
    """Yield a card's five values in each window."""
    total = tables.totals.get(key)
    core = tables.node.aggregates(("device", key, "core"), windows)
    memory = tables.node.aggregates(("device", key, "memory"), windows)
    for columns in zip(core, memory, strict=True):
        yield [
            DeviceUsage(key=key, core_percent=c, memory_bytes=m, memory_total_bytes=total)
            for c, m in zip(*columns, strict=True)
        ]


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
        names = self._pods.names("pod")
        cpu_keys = (("pod", uid, "cpu") for uid in names)
        memory_keys = (("pod", uid, "memory") for uid in names)
        cpu = self._pods.percentiles(cpu_keys, window, fraction, jumps=True)
        memory = self._pods.percentiles(memory_keys, window, fraction, jumps=False)
        return {
            uid: (cores, size)
            for uid, cores, size in zip(names, cpu, memory, strict=True)
            if cores is not None and size is not None
        }

    def node_percentile(self, now_s: float, window_s: float, fraction: float) -> Amounts | None:
        """Return that percentile of the node's CPU and memory; `None` unless it has both."""
        window = self._node.window(now_s - window_s, now_s)
        keys = (("node", "cpu"), ("node", "memory"))
        cpu, memory = self._node.percentiles(keys, window, fraction, jumps=False)
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
