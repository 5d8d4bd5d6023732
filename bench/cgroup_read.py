"""A usage cycle of 750 cgroups against plain Python readers and a reader in C."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psutil

from agent.cgroup.layout import CgroupLayout
from agent.host.files import LiveHostFiles
from agent.usage.file_reader import DescriptorCache, ReadSchedule
from agent.usage.monitor import PodUsageReader, UsageCollector
from agent.usage.node_usage import NodeCounterReader
from bench.counters import cost, cost_metric, cpu_ms
from bench.harness import Row, compare
from bench.limit_in_c import built
from bench.usage.cgroup_trees import cgroups, fill_v2, stir_v1, version_1, version_2

SOURCE = Path(__file__).parent / "usage" / "cgroup_read_limit.c"
CYCLES = 5  # a figure: CPU time of one cycle is near the clock's grain

# as in the C file
COUNTER, THROTTLING_V1, CPU_STAT_V2, MEMORY_NUMA_V1, MEMORY_STAT_V2, DIRECTORY = range(6)
V1_FILES = (
    ("cpuacct", "cpuacct.usage", COUNTER),
    ("cpu", "cpu.stat", THROTTLING_V1),
    ("memory", "memory.numa_stat", MEMORY_NUMA_V1),
)
V2_FILES = (("cpu", "cpu.stat", CPU_STAT_V2), ("memory", "memory.stat", MEMORY_STAT_V2))
V1_NAIVE = (("cpuacct", "cpuacct.usage"), ("cpu", "cpu.stat"), ("memory", "memory.stat"))
V2_NAIVE = (("cpu", "cpu.stat"), ("memory", "memory.stat"))
GATE_V1 = "ratio_limit<=1.5,ratio_peer<=0.25"


@contextmanager
def c_reader(layout: CgroupLayout) -> Iterator[Callable[[], object] | None]:
    """Build the reader in C and let it follow the tree's files; `None` without a compiler."""
    with built(SOURCE) as reader:
        if reader is None:
            yield None
            return
        for path, kind in c_files(layout):
            if reader.reader_add(path.encode(), kind) != 0:
                raise OSError(f"{path}: the reader in C cannot open it")
        if reader.reader_cycle() != 0:
            raise OSError("the reader in C cannot read all files")
        try:
            yield reader.reader_cycle
        finally:
            reader.reader_reset()


def c_files(layout: CgroupLayout) -> Iterator[tuple[str, int]]:
    """Yield every file and watched directory of the tree with its kind."""
    pods, containers = cgroups()
    root = layout.root or ""
    for controller, name, kind in V2_FILES if layout.version == 2 else V1_FILES:
        for below in [*pods, *containers]:
            yield f"{layout.directory(controller, root + below)}/{name}", kind
    for below in ["", "/burstable", "/besteffort", *pods]:
        yield f"{layout.directory('memory', root + below)}", DIRECTORY


def naive(layout: CgroupLayout) -> Callable[[], object]:
    """Return a cycle as one would write it: open, read, a dict of all lines."""
    files = V2_NAIVE if layout.version == 2 else V1_NAIVE
    root = layout.root or ""

    def read(path: str) -> dict[str, int]:
        with open(path) as file:  # noqa: PTH123 - the peer is what one writes first
            words = [line.split() for line in file.read().splitlines()]
        return {line[0]: int(line[-1]) for line in words}

    def cycle() -> None:
        pods = sorted(
            os.path.join(root, directory, name)
            for directory in ("", "burstable", "besteffort")
            for name in os.listdir(f"{layout.directory('memory', root)}/{directory}")
            if name.startswith("pod")
        )
        for pod in pods:
            names = os.listdir(layout.directory("memory", pod) or "")
            for cgroup in [pod, *(f"{pod}/{name}" for name in names if len(name) == 64)]:
                for controller, name in files:
                    read(f"{layout.directory(controller, cgroup)}/{name}")

    return cycle


def cgroupspy_cycle(root: str) -> Callable[[], object] | None:
    """Return a cycle by cgroupspy below `root`; `None` where it is not installed."""
    try:
        from cgroupspy import trees  # noqa: PLC0415 - an extra
    except ImportError:
        return None

    def cycle() -> None:
        tree = trees.Tree()
        for node in tree.walk(tree.root):
            if root.encode() in node.full_path and node.controller is not None:
                for value in ("usage", "stat"):
                    getattr(node.controller, value, None)

    return cycle


def _repeat(work: Callable[[], object]) -> Callable[[], float]:
    def figure() -> float:
        return cost(lambda: [work() for _ in range(CYCLES)]) / CYCLES

    return figure


def _subject(layout: CgroupLayout) -> Callable[[], object]:
    host = LiveHostFiles()
    groups = PodUsageReader(host, DescriptorCache(host), layout, (0,), ReadSchedule())
    now_s = count(1.0)

    def cycle() -> None:
        groups.refresh()
        groups.read(next(now_s))

    return cycle


def rows() -> Iterator[Row]:
    """Yield reads of the tree on both versions, the whole cycle, and the node's own files."""
    metric = cost_metric()
    with version_1() as layout:
        if layout is not None:
            yield from _version_1_rows(layout, metric)
    with version_2() as layout, c_reader(layout) as limit:
        yield from _version_2_rows(layout, limit, metric)
    yield _node_row(metric)


def _version_1_rows(layout: CgroupLayout, metric: str) -> Iterator[Row]:
    """Yield idle groups, and all containers busy; the naive reader asks the dearer memory.stat."""
    reader, plainly = _subject(layout), naive(layout)
    subject, plain = _repeat(reader), _repeat(plainly)
    with c_reader(layout) as limit:
        least = _repeat(limit) if limit else None
        yield compare("cgroup_read_v1", metric, subject, peer=plain, limit=least, gate=GATE_V1)

        def stirred(work: Callable[[], object]) -> Callable[[], float]:
            def figure() -> float:
                chosen = stir_v1(layout)
                spent = cost(work)
                del chosen
                return spent

            return figure

        yield compare(
            "cgroup_read_v1_all_changed",
            metric,
            stirred(reader),
            peer=stirred(plainly),
            limit=stirred(limit) if limit else None,
            gate=GATE_V1,
        )
    other = cgroupspy_cycle(layout.root or "")
    if other is not None:
        yield compare("cgroup_read_v1_cgroupspy", metric, subject, peer=lambda: cost(other))
    collector = UsageCollector(LiveHostFiles(), layout=layout)
    now_s = count(1.0)
    yield compare(
        "usage_cycle_v1",
        "cpu_ms",
        lambda: cpu_ms(lambda: [collector.measure(next(now_s)) for _ in range(CYCLES)]) / CYCLES,
        gate="subject<=15",
    )


def _version_2_rows(
    layout: CgroupLayout, limit: Callable[[], object] | None, metric: str
) -> Iterator[Row]:
    """Yield the worst and the best case: all files changed since the last cycle, and none.

    No gate on the limit: a file in memory costs the kernel a tenth of what a cgroup's does, so
    that the ratio says what the parsing costs and not what a node would see.
    """
    subject, plain = _subject(layout), naive(layout)
    steps = count(1)

    def changed(work: Callable[[], object]) -> Callable[[], float]:
        def figure() -> float:
            fill_v2(layout, next(steps))
            return cost(work)

        return figure

    for name, wrap in (("all_changed", changed), ("unchanged", _repeat)):
        yield compare(
            f"cgroup_read_v2_{name}",
            metric,
            wrap(subject),
            peer=wrap(plain),
            limit=wrap(limit) if limit else None,
            gate="ratio_peer<=0.25",
        )


def _node_row(metric: str) -> Row:
    host = LiveHostFiles()
    node = NodeCounterReader(host, DescriptorCache(host), ReadSchedule())
    return compare(
        "node_read",
        metric,
        _repeat(node.read),
        peer=_repeat(lambda: (psutil.cpu_times(), psutil.virtual_memory())),
    )
