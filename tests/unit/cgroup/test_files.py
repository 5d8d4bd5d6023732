from __future__ import annotations

from agent.cgroup import usage_files
from agent.cgroup.layout import CgroupLayout
from agent.recording.tree import TreeFiles

V1 = CgroupLayout(
    version=1,
    driver="cgroupfs",
    mounts=(("cpuacct", "/c/cpuacct"), ("memory", "/c/memory")),
    unified="/c/unified",
    root="/kubepods",
)
V2 = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified="/c", root="/kubepods")
NUMA = b"total=0 N0=0\nhierarchical_total=2 N0=2\nhierarchical_file=1 N0=1\n"
NUMA += b"hierarchical_anon=1 N0=1\nhierarchical_unevictable=0 N0=0\n"


def test_paths_follow_the_controller() -> None:
    assert usage_files.CPU_V1.path(V1, "/kubepods/a") == "/c/cpuacct/kubepods/a/cpuacct.usage"
    assert usage_files.THROTTLING_V1.path(V1, "/kubepods/a") is None
    assert usage_files.MEMORY_STAT.path(V2, "/kubepods/a") == "/c/kubepods/a/memory.stat"


def test_version_1_memory_comes_from_numa_stat_where_the_kernel_has_it() -> None:
    host = TreeFiles.from_entries({"/c/memory/kubepods/memory.numa_stat": NUMA})
    assert usage_files.memory_source(host, V1) == (
        usage_files.MEMORY_NUMA,
        usage_files.parse_memory_numa_v1,
    )


def test_a_kernel_without_numa_or_hierarchical_lines_is_read_by_memory_stat() -> None:
    for entries in ({}, {"/c/memory/kubepods/memory.numa_stat": b"total=0 N0=0\n"}):
        host = TreeFiles.from_entries(entries)
        assert usage_files.memory_source(host, V1) == (
            usage_files.MEMORY_STAT,
            usage_files.parse_memory_stat_v1,
        )


def test_version_2_memory_comes_from_memory_stat() -> None:
    result = usage_files.memory_source(TreeFiles.from_entries({}), V2)
    assert result == (usage_files.MEMORY_STAT_V2, usage_files.parse_memory_stat_v2)


def test_pressure_is_searched_below_cpuacct_then_in_the_unified_tree() -> None:
    places = usage_files.pressure_paths(V1, "/kubepods/a")
    assert [place[0] for place in places] == [
        "/c/cpuacct/kubepods/a/cpu.pressure",
        "/c/unified/kubepods/a/cpu.pressure",
    ]
    assert usage_files.pressure_paths(V2, "/a") == (
        ("/c/a/cpu.pressure", "/c/a/memory.pressure", "/c/a/io.pressure"),
    )
