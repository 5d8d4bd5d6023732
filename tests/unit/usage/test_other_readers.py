"""Other programs read the same figures from generated trees, from this machine and from our page.

cgroupspy reads version 1, psutil the node, prometheus-client the page. `test_kernel.py` compares
with cgroupspy on groups of this machine's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from agent.host.files import LiveHostFiles
from agent.metrics.text_format import LabelCache, sample_line
from agent.usage.monitor import UsageCollector
from tests.cgroups import CgroupHost

few = settings(max_examples=25, deadline=None)
LARGE = st.integers(0, (1 << 48) - 1)


@few
@given(cpu_ns=LARGE, anon=st.integers(0, 1 << 30), cache=st.integers(0, 1 << 30), periods=LARGE)
def test_cgroupspy_reads_the_same_figures_from_a_tree_of_version_1(
    cpu_ns: int, anon: int, cache: int, periods: int
) -> None:
    nodes = pytest.importorskip("cgroupspy.nodes", reason="needs the extra v1-tools")
    with TemporaryDirectory() as folder:
        host = CgroupHost(Path(folder), version=1)
        host.group("/poda", cpu_ns=cpu_ns, anon=anon, cache=cache, throttling=(periods, periods))
        use = UsageCollector(host.files).measure(100.0).pods["a"]

        def controller(name: str) -> Any:
            path = str(host.path(f"{host.points[name]}/kubepods/poda")).encode()
            return nodes.Node.CONTROLLERS[name.encode()](SimpleNamespace(full_path=path))

        assert use.cpu_total_ns == controller("cpuacct").usage
        memory = controller("memory").stat
        without_cache = ("inactive_anon", "active_anon", "unevictable")
        keys = (*without_cache, "inactive_file", "active_file")
        assert use.memory_bytes == sum(memory[f"total_{key}"] for key in without_cache)
        assert use.memory_with_cache_bytes == sum(memory[f"total_{key}"] for key in keys)
        throttling = controller("cpu").stat
        assert (use.periods, use.throttled_periods) == (
            throttling["nr_periods"],
            throttling["nr_throttled"],
        )


TICKS = st.integers(0, 1 << 40)
MEMINFO = """MemTotal:       {total} kB
MemFree:        {free} kB
MemAvailable:   {available} kB
Buffers:        0 kB
Cached:         0 kB
Active:         0 kB
Inactive:       0 kB
Shmem:          0 kB
"""


@few
@given(
    ticks=st.lists(TICKS, min_size=10, max_size=10),
    total=st.integers(1, 1 << 40),
    shares=st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_psutil_reads_the_same_figures_from_a_tree(
    ticks: list[int], total: int, shares: tuple[int, int]
) -> None:
    free, available = (total * share // 100 for share in shares)
    assume(available)  # psutil replaces 0 by an estimate of its own
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        host = CgroupHost(Path(folder))
        row = " ".join(map(str, ticks))
        host.write("/proc/stat", f"cpu  {row}\ncpu0 {row}\nbtime 1\n")
        host.write("/proc/meminfo", MEMINFO.format(total=total, free=free, available=available))
        patch.setattr(psutil, "PROCFS_PATH", str(host.path("/proc")))
        node = UsageCollector(host.files).measure(100.0).node
        memory, cpu = psutil.virtual_memory(), psutil.cpu_times()
    assert node.memory_total_bytes == memory.total
    assert node.memory_bytes == memory.total - memory.available
    assert node.memory_with_cache_bytes == memory.total - memory.free
    busy_s = cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq
    assert (node.cpu_total_ns or 0) / 1e9 == pytest.approx(busy_s)


def test_psutil_reads_the_same_figures_from_this_machine() -> None:
    collector = UsageCollector(LiveHostFiles())
    before = psutil.cpu_times()
    node = collector.measure(100.0).node
    after, memory = psutil.cpu_times(), psutil.virtual_memory()
    collector.close()
    busy_s = [one.user + one.nice + one.system + one.irq + one.softirq for one in (before, after)]
    assert node.cpu_total_ns is not None
    assert busy_s[0] - 0.1 <= node.cpu_total_ns / 1e9 <= busy_s[1] + 0.1
    assert node.memory_total_bytes == memory.total
    assert node.memory_bytes is not None
    assert node.memory_bytes == pytest.approx(memory.total - memory.available, abs=256 << 20)


NAMES = ("node", "pod", "namespace")
SAMPLES = st.dictionaries(
    st.tuples(*(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12) for _ in NAMES)),
    st.floats(allow_nan=False),
    max_size=6,
)


class OneFamily(Collector):
    """Samples of one gauge, for prometheus-client's own exposition."""

    def __init__(self, samples: dict[tuple[str, ...], float]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("xpu_x", "Help.", labels=NAMES)
        for values, value in self._samples.items():
            family.add_metric(values, value)
        yield family


def parsed(text: str) -> dict[frozenset[tuple[str, str]], float]:
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(SAMPLES)
def test_prometheus_client_prints_and_reads_the_same_samples(
    samples: dict[tuple[str, ...], float],
) -> None:
    registry = CollectorRegistry()
    registry.register(OneFamily(samples))
    labels = LabelCache({})
    lines = [
        sample_line("xpu_x", labels.prefix(NAMES, values), value)
        for values, value in samples.items()
    ]
    page = "# HELP xpu_x Help.\n# TYPE xpu_x gauge\n" + "".join(lines)
    expected = {
        frozenset(zip(NAMES, values, strict=True)): value for values, value in samples.items()
    }
    assert parsed(page) == expected
    assert parsed(generate_latest(registry).decode()) == parsed(page)
