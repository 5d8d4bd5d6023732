"""Windows of the history to the report that NodeMetric publishes.

Means and percentiles are those of Koordinator's metric cache.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.collect.rings import Board, Key, Window
from agent.model.usage import (
    Aggregate,
    ApplicationWindow,
    DeviceUse,
    NumaWindow,
    PodWindow,
    Resources,
    UsageReport,
)

WITH_PAGE_CACHE = "usageWithPageCache"
HALF = 0.5  # of a window must be there before it is told
LEAST_AGGREGATE_S = 60.0  # upstream's floor

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
NAMES = ("avg", *(name for name, _ in PERCENTILES))


class ReportPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`spec.metricCollectPolicy` of NodeMetric, with its defaults."""

    aggregate_s: float = 300.0
    windows_s: tuple[int, ...] = (300, 600, 1800)
    # hot pages need kidled, which mainline kernels lack: as upstream, the first then stands in
    memory: str = "usageWithoutPageCache"


class Boards(msgspec.Struct, frozen=True):
    """The series that a report is made from; `totals` is the devices' memory in bytes."""

    node: Board
    pods: Board
    totals: Mapping[str, int]


def _float32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def index(count: int, percentile: float) -> int:
    """Return max(floor(count x percentile) - 1, 0), multiplied in single precision."""
    return max(int(_float32(_float32(count) * _float32(percentile))) - 1, 0)


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; `None` of nothing."""
    return sum(values) / len(values) if values else None


def five(values: Sequence[float]) -> tuple[float | None, ...]:
    """Return avg, p50, p90, p95, p99 without interpolation; all `None` of nothing."""
    if not values:
        return (None,) * len(NAMES)
    ranked = sorted(values)
    return (mean(values), *(ranked[index(len(ranked), p)] for _, p in PERCENTILES))


def build(boards: Boards, now_s: float, policy: ReportPolicy) -> UsageReport:
    """Return the report at one moment; a series without samples stays absent."""
    memory = "memory-with-cache" if policy.memory == WITH_PAGE_CACHE else "memory"
    start_s = now_s - max(policy.aggregate_s, LEAST_AGGREGATE_S)
    window = boards.node.window(start_s, now_s)
    cards = (
        _device(boards.node, ("device",), key, boards.totals, window)
        for key in _names(boards.node, ("device",))
    )
    pods = boards.pods.window(start_s, now_s)
    return UsageReport(
        node=_means(boards.node, ("node",), memory, window),
        system=_means(boards.node, ("system",), "memory", window),
        devices=tuple(use for use in cards if _used(use)),
        aggregates=tuple(_aggregate(boards, now_s, length, memory) for length in policy.windows_s),
        numa=_numa(boards.node, window),
        pods=_pods(boards, pods, memory),
        applications=tuple(
            ApplicationWindow(name=name, use=means)
            for name, means in _whole_means(boards.pods, "application", memory, pods)
        ),
    )


def _means(board: Board, of: Key, memory: str, window: Window) -> Resources:
    return Resources(
        cpu_cores=mean(board.values((*of, "cpu"), window)),
        memory_bytes=mean(_memory(board, of, memory, window)),
    )


def _memory(board: Board, of: Key, memory: str, window: Window) -> list[float]:
    """Return the values that were asked for, or those without page cache if there are none.

    A report without memory would count the node as degraded, and a pod without it as using
    nothing.
    """
    return board.values((*of, memory), window) or board.values((*of, "memory"), window)


def _names(board: Board, of: Key) -> list[str]:
    """Return the sorted names that follow the prefix `of` in the board's keys."""
    size = len(of)
    return sorted({key[size] for key in board.known() if key[:size] == of})


def _device(
    board: Board, of: Key, key: str, totals: Mapping[str, int], window: Window
) -> DeviceUse:
    return DeviceUse(
        key=key,
        core_percent=mean(board.values((*of, key, "core"), window)),
        memory_bytes=mean(board.values((*of, key, "memory"), window)),
        memory_total_bytes=totals.get(key),
    )


def _used(use: DeviceUse) -> bool:
    return use.core_percent is not None or use.memory_bytes is not None


def _numa(board: Board, window: Window) -> tuple[NumaWindow, ...]:
    found = []
    for name in sorted(_names(board, ("numa",)), key=int):
        node = _means(board, ("numa", name), "memory", window)
        system = _means(board, ("numa-system", name), "memory", window)
        if node != Resources():
            told = system if system != Resources() else None
            found.append(NumaWindow(node_id=int(name), node=node, system=told))
    return tuple(found)


def _pods(boards: Boards, window: Window, memory: str) -> tuple[PodWindow, ...]:
    """Return the pods of which both values are known: half a pod would count as using nothing."""
    devices: dict[str, list[DeviceUse]] = {}
    owned = {key[1:3] for key in boards.pods.known() if key[0] == "pod-device"}
    for uid, key in sorted(owned):
        use = _device(boards.pods, ("pod-device", uid), key, boards.totals, window)
        if _used(use):
            devices.setdefault(uid, []).append(use)
    return tuple(
        PodWindow(uid=uid, use=means, devices=tuple(devices.get(uid, ())))
        for uid, means in _whole_means(boards.pods, "pod", memory, window)
    )


def _whole_means(
    board: Board, of: str, memory: str, window: Window
) -> Iterator[tuple[str, Resources]]:
    for name in _names(board, (of,)):
        means = _means(board, (of, name), memory, window)
        if means.cpu_cores is not None and means.memory_bytes is not None:
            yield name, means


def _aggregate(boards: Boards, now_s: float, length_s: int, memory: str) -> Aggregate:
    board = boards.node
    window = board.window(now_s - length_s, now_s)
    node = _five(board, "node", memory, window, length_s)
    devices = _five_devices(boards, window) if node else ()
    system = _five(board, "system", "memory", window, length_s)
    return Aggregate(duration_s=length_s, node=node, system=system, devices=devices)


def _five(
    board: Board, of: str, memory: str, window: Window, length_s: int
) -> tuple[tuple[str, Resources], ...]:
    """Return the five values; none while the CPU's samples span less than half the window."""
    if board.span_s((of, "cpu"), window) < HALF * length_s:
        return ()
    cpu = five(board.values((of, "cpu"), window))
    used = five(_memory(board, (of,), memory, window))
    pairs = zip(NAMES, cpu, used, strict=True)
    return tuple((name, Resources(cpu_cores=c, memory_bytes=m)) for name, c, m in pairs)


def _five_devices(boards: Boards, window: Window) -> tuple[tuple[str, tuple[DeviceUse, ...]], ...]:
    """Return each card's five values, by name of the value."""
    columns = [list(_five_uses(boards, key, window)) for key in _names(boards.node, ("device",))]
    if not columns:
        return ()
    return tuple(
        (name, tuple(column[i] for column in columns if _used(column[i])))
        for i, name in enumerate(NAMES)
    )


def _five_uses(boards: Boards, key: str, window: Window) -> Iterable[DeviceUse]:
    core = five(boards.node.values(("device", key, "core"), window))
    memory = five(boards.node.values(("device", key, "memory"), window))
    total = boards.totals.get(key)
    for c, m in zip(core, memory, strict=True):
        yield DeviceUse(key=key, core_percent=c, memory_bytes=m, memory_total_bytes=total)
