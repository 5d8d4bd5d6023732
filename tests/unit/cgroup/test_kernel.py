"""The collector on this machine's own cgroups, of version 1 or 2 as they are mounted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from agent.cgroup import usage_files
from agent.cgroup.layout import CgroupLayout, detect_layout
from agent.host.files import LiveHostFiles
from agent.usage.monitor import UsageCollector
from tests.cgroups import container_id
from tests.patience import PATIENCE_S

CONTROLLERS = ("cpu", "cpuacct", "memory")
BUSY = "n = 0\nfor i in range(3_000_000): n += i\nprint(n, flush=True)\ninput()\n"
HOLD = "kept = bytearray(b'x') * (32 << 20)\nprint(len(kept), flush=True)\ninput()\n"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups needs root"),
]


class Groups:
    """Own cgroups below `/xpu-<pid>-kernel` in every hierarchy that the collector reads."""

    def __init__(self, layout: CgroupLayout, created: ExitStack) -> None:
        self.layout = layout
        self._made = created
        points = {layout.mount(controller) for controller in CONTROLLERS} | {layout.unified}
        self._points = sorted(point for point in points if point)
        self.make("")

    def make(self, below: str) -> Callable[[], None]:
        """Make a group; return what removes it, which also happens at the end."""
        paths = [f"{point}{self.layout.root}{below}" for point in self._points]

        def remove() -> None:
            for path in paths:
                if os.path.isdir(path):
                    os.rmdir(path)

        for path in paths:
            os.mkdir(path)
        self._made.callback(remove)
        return remove

    def run(self, below: str, code: str) -> subprocess.Popen[str]:
        """Run Python in a group until it has printed a line; it then waits for its end."""
        files = [f"{point}{self.layout.root}{below}/cgroup.procs" for point in self._points]
        enter = "import sys\nfor p in sys.argv[1:]:\n    with open(p, 'w') as f: f.write('0')\n"
        child = subprocess.Popen(
            [sys.executable, "-c", enter + code, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._made.callback(end, child)
        assert child.stdout is not None
        assert child.stdout.readline().strip()
        return child


def end(child: subprocess.Popen[str]) -> None:
    """Let a child end, and wait until it has left its group."""
    child.communicate("\n" if child.poll() is None else None, timeout=PATIENCE_S)


@pytest.fixture
def groups() -> Iterator[Groups]:
    result = detect_layout(LiveHostFiles())
    if result is None or any(result.mount(controller) is None for controller in CONTROLLERS):
        pytest.skip("no cgroup file system that a test may use")
    if result.version == 2:
        pytest.skip("version 2 lets nobody but the owner of the root delegate controllers")
    layout = CgroupLayout(
        version=result.version,
        driver="cgroupfs",
        mounts=result.mounts,
        unified=result.unified,
        root=f"/xpu-{os.getpid()}-kernel",
    )
    with ExitStack() as created:
        yield Groups(layout, created)


def collector(groups: Groups) -> UsageCollector:
    return UsageCollector(LiveHostFiles(), layout=groups.layout)


def test_a_busy_child_counts_in_its_container_and_pod(groups: Groups) -> None:
    cid = container_id(1)
    groups.make("/poda")
    groups.make(f"/poda/{cid}")
    collect = collector(groups)
    collect.measure(time.monotonic())
    before = os.times()
    end(groups.run(f"/poda/{cid}", BUSY))
    spent = os.times()
    spent_s = spent.children_user + spent.children_system
    spent_s -= before.children_user + before.children_system
    sample = collect.measure(time.monotonic())
    pod, container = sample.pods["a"], sample.containers[cid]
    assert pod.cpu_total_ns == container.cpu_total_ns
    assert container.cpu_total_ns is not None
    # the child's start is charged where it was started, before it entered the group
    assert 0 < container.cpu_total_ns / 1e9 <= spent_s + 0.05
    assert pod.cpu_cores is not None
    assert pod.cpu_cores > 0


def test_memory_of_numa_stat_equals_that_of_memory_stat(groups: Groups) -> None:
    cid = container_id(1)
    groups.make("/poda")
    groups.make(f"/poda/{cid}")
    groups.run(f"/poda/{cid}", HOLD)
    directory = groups.layout.directory("memory", f"{groups.layout.root}/poda")
    collect = collector(groups)
    # the kernel adds up a group's pages every two seconds at the latest, for both files
    until_s = time.monotonic() + 10
    while True:
        use = collect.measure(1.0).pods["a"]
        stat = usage_files.parse_memory_stat_v1(LiveHostFiles().read(f"{directory}/memory.stat"))
        if (use.memory_bytes or 0) >= 30 << 20 or time.monotonic() > until_s:
            break
        time.sleep(0.1)
    assert use.memory_bytes is not None
    assert use.memory_bytes >= 30 << 20
    # pages in per-CPU batches are added to either file a moment later
    assert abs(use.memory_bytes - stat[0]) <= 4 << 20


def test_throttled_periods_are_reported_for_a_group_with_a_quota(groups: Groups) -> None:
    groups.make("/poda")
    quota = f"{groups.layout.directory('cpu', f'{groups.layout.root}/poda')}/cpu.cfs_quota_us"
    with open(quota, "w") as file:  # noqa: PTH123 - a kernel file
        file.write("20000")
    collect = collector(groups)
    collect.measure(1.0)
    end(groups.run("/poda", BUSY))
    use = collect.measure(2.0).pods["a"]
    assert use.periods
    assert use.throttled_periods
    assert use.throttled_ratio is not None
    assert 0 < use.throttled_ratio <= 1


def test_groups_that_come_and_go_are_followed_within_a_cycle(groups: Groups) -> None:
    groups.make("/poda")
    inner = groups.make(f"/poda/{container_id(1)}")
    collect = collector(groups)
    assert list(collect.measure(1.0).containers) == [container_id(1)]
    groups.make("/podb")
    assert list(collect.measure(2.0).pods) == ["a", "b"]
    inner()
    groups.make(f"/poda/{container_id(2)}")  # takes its place: the link count is as it was
    collect.measure(3.0)
    assert list(collect.measure(4.0).containers) == [container_id(2)]


def test_a_group_removed_while_its_descriptor_is_open_skips_itself_only(groups: Groups) -> None:
    remove = groups.make("/poda")
    groups.make("/podb")
    collect = collector(groups)
    collect.measure(1.0)
    remove()
    sample = collect.measure(2.0)
    assert list(sample.pods) == ["b"]
    assert sample.pods["b"].cpu_cores == 0.0


def test_descriptors_of_removed_groups_are_closed(groups: Groups) -> None:
    collect = collector(groups)
    collect.measure(1.0)
    before = len(os.listdir("/proc/self/fd"))
    removes = [groups.make(f"/pod{i}") for i in range(20)]
    collect.measure(2.0)
    assert len(os.listdir("/proc/self/fd")) == before + 20 * 4  # three files and the directory
    for remove in removes:
        remove()
    collect.measure(3.0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_pressure_is_read_from_the_unified_tree_of_a_hybrid_host(groups: Groups) -> None:
    is_hybrid = groups.layout.version == 1 and groups.layout.unified
    if not is_hybrid or not os.path.exists("/proc/pressure/cpu"):
        pytest.skip("no cgroup2 beside version 1, or a kernel without pressure")
    groups.make("/poda")
    end(groups.run("/poda", BUSY))
    pressure = collector(groups).measure(1.0).pods["a"].pressure
    assert pressure is not None
    assert set(pressure) == {"cpu", "memory", "io"}
    assert pressure["cpu"].some_total_us >= 0


def test_another_reader_of_version_1_sees_the_same(groups: Groups) -> None:
    trees = pytest.importorskip("cgroupspy.trees", reason="needs the extra v1-tools")
    groups.make("/poda")
    end(groups.run("/poda", BUSY))
    tree = trees.Tree()
    path = f"{groups.layout.root}/poda".encode()
    controllers = [
        node.controller for node in tree.walk(tree.root) if node.full_path.endswith(path)
    ]
    by_kind = {
        type(controller).__name__: controller
        for controller in controllers
        if controller is not None
    }
    # The kernel may account for the last moments of a process late: a counter that only grows
    # is read by the other reader before and after.
    least_cpu_ns = by_kind["CpuAcctController"].usage
    use = collector(groups).measure(1.0).pods["a"]
    most_cpu_ns = by_kind["CpuAcctController"].usage
    stat = by_kind["MemoryController"].stat
    anon = sum(stat[f"total_{key}"] for key in ("inactive_anon", "active_anon", "unevictable"))
    throttling = by_kind["CpuController"].stat
    assert 0 < least_cpu_ns <= use.cpu_total_ns <= most_cpu_ns
    assert use.memory_bytes is not None
    assert abs(use.memory_bytes - anon) <= 1 << 20  # freed pages leave in batches
    assert (use.periods, use.throttled_periods) == (
        throttling["nr_periods"],
        throttling["nr_throttled"],
    )
