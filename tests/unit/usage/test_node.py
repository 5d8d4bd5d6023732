from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.host.files import LiveHostFiles
from agent.recording.tree import TreeFiles
from agent.usage import node_usage
from agent.usage.monitor import UsageCollector
from tests.cgroups import CgroupHost

STAT = b"""cpu  100 10 50 9000 30 5 6 70 40 3
cpu0 60 10 20 4500 10 5 1 30 40 3
cpu1 40 0 30 4500 20 0 5 40 0 0
intr 1234 0 0
ctxt 99
"""
NODE_MEMINFO = """\
Node {0} MemTotal:       1000 kB
Node {0} MemFree:         300 kB
Node {0} MemUsed:         700 kB
Node {0} Active:          400 kB
Node {0} Active(anon):    300 kB
Node {0} Active(file):    100 kB
Node {0} Inactive(file):   50 kB
Node {0} SReclaimable:     20 kB
"""


def test_busy_is_without_idle_iowait_steal_and_guest() -> None:
    assert node_usage.parse_busy_ticks(STAT) == {None: 171, 0: 96, 1: 75}


def test_the_total_alone_is_taken_where_one_memory_node_is() -> None:
    assert node_usage.parse_total_busy_ticks(STAT) == {None: 171}


def test_a_cut_line_is_no_cpu() -> None:
    assert node_usage.parse_busy_ticks(STAT[:55]) == {None: 171}


def test_memory_of_a_node_is_without_what_can_be_reclaimed() -> None:
    assert node_usage.parse_numa_meminfo(NODE_MEMINFO.format(1).encode()) == 530 * 1024


def test_an_old_kernel_reports_no_available_memory() -> None:
    meminfo = node_usage.parse_meminfo(b"MemTotal:  10 kB\nMemFree:   4 kB\nBuffers: 1 kB\n")
    assert (meminfo.total, meminfo.free, meminfo.available) == (10240, 4096, None)


@given(st.binary(max_size=200))
def test_no_bytes_make_a_parser_raise_anything_else(data: bytes) -> None:
    for parser in (
        node_usage.parse_busy_ticks,
        node_usage.parse_meminfo,
        node_usage.parse_numa_meminfo,
    ):
        try:
            parser(data)
        except ParseError:
            continue


def two_nodes(tmp_path: Path) -> CgroupHost:
    host = CgroupHost(tmp_path)
    for number, cpus in ((0, "0"), (1, "1")):
        directory = f"/sys/devices/system/node/node{number}"
        host.write(f"{directory}/cpulist", f"{cpus}\n")
        host.write(f"{directory}/meminfo", NODE_MEMINFO.format(number))
    return host


def test_memory_nodes_have_their_own_cpu_time_and_pod_memory(tmp_path: Path) -> None:
    host = two_nodes(tmp_path)
    host.group("/poda")
    host.write(
        "/sys/fs/cgroup/kubepods/poda/memory.numa_stat",
        "anon N0=4096 N1=0\nfile N0=4096 N1=100\nkernel_stack N0=1 N1=1\n",
    )
    host.write("/proc/stat", STAT.decode())
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    host.write("/proc/stat", STAT.decode().replace("cpu1 40", "cpu1 140"))
    zero, one = collector.measure(2.0).node.numa
    assert (zero.node_id, zero.cpu_cores, zero.memory_bytes) == (0, 0.0, 530 * 1024)
    assert one.node_id == 1
    assert one.cpu_cores == pytest.approx(1.0)
    assert (zero.pods_memory_bytes, one.pods_memory_bytes) == (8192, 100)


def test_pods_without_numa_stat_leave_their_part_unknown(tmp_path: Path) -> None:
    host = two_nodes(tmp_path)
    host.group("/poda")
    numa = UsageCollector(host.files).measure(1.0).node.numa
    assert [use.pods_memory_bytes for use in numa] == [None, None]


def test_a_cpu_that_is_new_is_skipped_this_round(tmp_path: Path) -> None:
    host = two_nodes(tmp_path)
    host.write("/proc/stat", "\n".join(STAT.decode().splitlines()[:2]) + "\n")
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    host.write("/proc/stat", STAT.decode())
    zero, one = collector.measure(2.0).node.numa
    assert (zero.cpu_cores, one.cpu_cores) == (0.0, None)


def test_an_empty_host_has_no_values() -> None:
    use = UsageCollector(TreeFiles.from_entries({"/proc": b""})).measure(1.0).node
    assert (use.cpu_total_ns, use.memory_bytes, use.numa) == (None, None, ())


def test_this_machine_is_measured() -> None:
    use = UsageCollector(LiveHostFiles()).measure(1.0).node
    assert use.cpu_total_ns is not None
    assert use.memory_total_bytes is not None
    assert use.memory_bytes is not None
    assert 0 < use.memory_bytes < use.memory_total_bytes
