from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import usage_files
from agent.errors import ParseError
from agent.snapshot.usage import Pressure

STAT_V1 = b"""cache 9142272
rss 14155776
inactive_anon 1
active_anon 2
inactive_file 3
active_file 4
unevictable 5
hierarchical_memory_limit 9223372036854771712
total_cache 594059264
total_inactive_anon 4096
total_active_anon 8192
total_inactive_file 12288
total_active_file 16384
total_unevictable 20480
"""
STAT_V2 = b"""anon 1000
file 2000
inactive_anon 4096
active_anon 8192
inactive_file 12288
active_file 16384
unevictable 20480
slab 7
"""
NUMA_V1 = b"""total=0 N0=0 N1=0
file=0 N0=0 N1=0
anon=0 N0=0 N1=0
unevictable=0 N0=0 N1=0
hierarchical_total=15 N0=10 N1=5
hierarchical_file=7 N0=5 N1=2
hierarchical_anon=3 N0=3 N1=0
hierarchical_unevictable=5 N0=2 N1=3
"""
NUMA_V2 = b"""anon N0=4096 N1=8192
file N0=100 N1=0
kernel_stack N0=5 N1=6
file_mapped N0=7 N1=8
"""
CPU_V2 = b"""usage_usec 1500000
user_usec 1000000
system_usec 500000
core_sched.force_idle_usec 0
nr_periods 10
nr_throttled 4
throttled_usec 77
nr_bursts 0
burst_usec 0
"""
PARSERS: list[Callable[[bytes], object]] = [
    usage_files.parse_counter,
    usage_files.parse_cpu_stat_v2,
    usage_files.parse_throttling_v1,
    usage_files.parse_memory_stat_v1,
    usage_files.parse_memory_stat_v2,
    usage_files.parse_memory_numa_v1,
    usage_files.parse_numa_nodes_v1,
    usage_files.parse_numa_nodes_v2,
    usage_files.parse_pressure,
]
WHOLE = [b"12345\n", CPU_V2, b"nr_periods 3\nnr_throttled 1\n", STAT_V1, STAT_V2, NUMA_V1, NUMA_V2]


def test_version_1_memory_counts_the_groups_below() -> None:
    assert usage_files.parse_memory_stat_v1(STAT_V1) == (4096 + 8192 + 20480, 61440)


def test_version_2_memory_is_hierarchical_already() -> None:
    assert usage_files.parse_memory_stat_v2(STAT_V2) == (4096 + 8192 + 20480, 61440)


def test_numa_stat_uses_the_hierarchical_lines_because_a_pod_itself_holds_nothing() -> None:
    page = usage_files.PAGE_BYTES
    assert usage_files.parse_memory_numa_v1(NUMA_V1) == (8 * page, 15 * page)
    assert usage_files.parse_numa_nodes_v1(NUMA_V1) == {0: 10 * page, 1: 5 * page}


def test_version_2_numa_stat_is_bytes_on_every_page_size() -> None:
    assert usage_files.parse_numa_nodes_v2(NUMA_V2) == {0: 4196, 1: 8192}


def test_version_2_cpu_stat_has_time_in_nanoseconds_and_throttling() -> None:
    assert usage_files.parse_cpu_stat_v2(CPU_V2) == (1_500_000_000, (10, 4))


def test_version_2_cpu_stat_without_the_controller_has_no_throttling() -> None:
    short = CPU_V2[: CPU_V2.index(b"nr_periods")]
    assert usage_files.parse_cpu_stat_v2(short) == (1_500_000_000, None)


def test_throttling_of_version_1() -> None:
    assert usage_files.parse_throttling_v1(b"nr_periods 3\nnr_throttled 1\nthrottled_time 9\n") == (
        3,
        1,
    )


def test_pressure_with_and_without_a_full_line() -> None:
    some = b"some avg10=1.75 avg60=2.65 avg300=1.00 total=9027703\n"
    full = b"full avg10=0.25 avg60=0.00 avg300=0.00 total=12\n"
    alone = Pressure(some_avg10=1.75, some_total_us=9027703)
    both = Pressure(some_avg10=1.75, some_total_us=9027703, full_avg10=0.25, full_total_us=12)
    assert usage_files.parse_pressure(some) == alone
    assert usage_files.parse_pressure(some + full) == both


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\0" * 64,
        b"usage_usec\n",
        b"usage_usec " + b"9" * 5000 + b"\n",
        b"-5\n",
        b"1_0\n",
        b"12",
        b"some avg10=x\n",
    ],
)
def test_what_no_kernel_prints_is_refused(parser: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ParseError):
        parser(data)


@pytest.mark.parametrize(
    ("parser", "data"),
    [
        (usage_files.parse_memory_stat_v2, STAT_V2[: STAT_V2.index(b"unevictable") + 14]),
        (usage_files.parse_memory_numa_v1, NUMA_V1[: NUMA_V1.rindex(b"=5") + 2]),
        (usage_files.parse_cpu_stat_v2, CPU_V2[:14]),
        (usage_files.parse_throttling_v1, b"nr_periods 30\nnr_throttled 1"),
        (usage_files.parse_numa_nodes_v2, NUMA_V2[:20]),
        (usage_files.parse_counter, b"123"),
    ],
)
def test_a_cut_file_gives_no_shorter_number(parser: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ParseError):
        parser(data)


@given(st.sampled_from(PARSERS), st.binary(max_size=300))
def test_no_bytes_make_a_parser_raise_anything_else(
    parser: Callable[[bytes], object], data: bytes
) -> None:
    with contextlib.suppress(ParseError):
        parser(data)


@given(st.sampled_from(PARSERS), st.sampled_from(WHOLE), st.data())
def test_damaged_files_are_parsed_or_refused(
    parser: Callable[[bytes], object], whole: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(whole)))
    patch = data.draw(st.binary(max_size=4))
    with contextlib.suppress(ParseError):
        parser(whole[:at] + patch + whole[at + len(patch) :])
