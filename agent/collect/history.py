"""What was measured in the last half hour, in memory of a bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from agent.collect.groups import GroupTable
from agent.collect.report import Boards, ReportPolicy, build
from agent.collect.rings import Board, Key
from agent.model.inventory import DeviceSample
from agent.model.usage import GroupUsage, NodeUsage, UsageReport, UsageSample

Item = tuple[Key, float | None]
Owners = Mapping[int, tuple[str, str]]  # pod uid and container id, by pid

MAX_WINDOW_S = 1800.0
MAX_NODE_SERIES = 4096  # 512 devices and as many memory nodes as a machine may have
MAX_POD_SERIES = 8192  # 2,000 pods and their devices
MAX_POD_VALUES = MAX_POD_SERIES * 301  # 20 MB: with a longer window fewer series fit


class History:
    """Bounded series: node, system, memory nodes and devices for half an hour, pods for less.

    `interval_s` is that of the samples: faster ones reach back less far.
    """

    def __init__(self, interval_s: float = 1.0, pod_window_s: float = 300.0) -> None:
        self._interval_s = interval_s
        self._node: Board = Board(_capacity(MAX_WINDOW_S, interval_s), MAX_NODE_SERIES)
        self._pods: Board = Board(_capacity(pod_window_s, interval_s), MAX_POD_SERIES)
        self._totals: dict[str, int] = {}
        self._alive: set[str] = set()  # uids of pods, names of applications that have series

    def add(
        self,
        now_s: float,
        sample: UsageSample,
        devices: Iterable[DeviceSample] = (),
        owners: Owners | None = None,
    ) -> None:
        """Take in one cycle; `devices` are those sampled since the last one, once each."""
        samples = tuple(devices)
        self._node.open(now_s)
        self._node.put(node_items(sample.node))
        self._node.put(device_items(samples))
        alive = {uid for uid, _ in (owners or {}).values()} | sample.pods.keys()
        alive |= sample.applications.keys()
        if self._alive - alive:
            self._pods.keep(lambda key: key[1] in alive)
        self._alive = alive
        self._pods.open(now_s)
        self._pods.put(pod_items(sample.pods))
        self._pods.put(group_items("application", sample.applications))
        self._pods.put(pod_device_items(samples, owners or {}))
        totals = {d.key: d.memory_total_bytes for d in samples if d.memory_total_bytes is not None}
        self._totals.update(totals)

    def remember_pods(self, window_s: float) -> None:
        """Reach back that far for pods from now on, at most half an hour.

        What was kept so far is dropped when it must reach back farther: pods are told again with
        the next cycle, and their means grow into the window as after a start.
        """
        capacity = _capacity(min(window_s, MAX_WINDOW_S), self._interval_s)
        if capacity > self._pods.capacity:
            self._pods = Board(capacity, min(MAX_POD_SERIES, MAX_POD_VALUES // capacity))
            self._alive = set()

    def report(self, now_s: float, policy: ReportPolicy | None = None) -> UsageReport:
        """Return means over the aggregation period and percentiles over the policy's windows."""
        self._node.forget(now_s - MAX_WINDOW_S)
        kept = {key[1] for key in self._node.known() if key[0] == "device"}
        self._totals = {key: total for key, total in self._totals.items() if key in kept}
        boards = Boards(self._node, self._pods, self._totals)
        return build(boards, now_s, policy or ReportPolicy())


def _capacity(window_s: float, interval_s: float) -> int:
    return math.ceil(window_s / interval_s) + 1  # a closed window has both ends


def node_items(node: NodeUsage) -> Iterator[Item]:
    """Yield the node's, the system's and the memory nodes' values."""
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


def pod_items(pods: Mapping[str, GroupUsage]) -> Iterator[Item]:
    """Yield each pod's values; of a cycle's own table without making a `GroupUsage` a pod."""
    if isinstance(pods, GroupTable):
        for uid, cpu, memory in zip(pods.index, pods.cpu_cores, pods.memory, strict=True):
            yield ("pod", uid, "cpu"), cpu
            if memory is not None:
                yield ("pod", uid, "memory"), memory[0]
                yield ("pod", uid, "memory-with-cache"), memory[1]
        return
    yield from group_items("pod", pods)


def group_items(of: str, groups: Mapping[str, GroupUsage]) -> Iterator[Item]:
    """Yield each group's values below the prefix `of`."""
    for key, use in groups.items():
        yield (of, key, "cpu"), use.cpu_cores
        yield (of, key, "memory"), use.memory_bytes
        yield (of, key, "memory-with-cache"), use.memory_with_cache_bytes


def device_items(samples: Iterable[DeviceSample]) -> Iterator[Item]:
    """Yield the cards' own values; what a driver does not tell is left out."""
    for sample in samples:
        yield ("device", sample.key, "core"), sample.core_percent
        yield ("device", sample.key, "memory"), sample.memory_used_bytes


def pod_device_items(samples: Iterable[DeviceSample], owners: Owners) -> Iterator[Item]:
    """Yield each pod's part of each device: the sum over its processes, of what they tell."""
    sums: dict[Key, float] = {}
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
