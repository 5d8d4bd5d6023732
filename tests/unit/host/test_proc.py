"""Parsers of /proc: what they take from real text, what they leave out, that they never crash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.host.proc import (
    CpuTicks,
    has_fake_numa,
    parse_cpuinfo,
    parse_isolcpus,
    parse_meminfo,
    parse_numa_status,
    parse_stat,
)
from agent.wire_formats.kernel_text import format_cpu_list

STAT = """cpu  100 20 30 400 50 6 7 8 9 10
cpu0 50 10 15 200 25 3 4 4 5 5
cpu3 50 10 15 200
intr 12345 0 0 9
btime 1767323045
processes 42
"""


def test_the_first_line_of_stat_is_the_whole_machine() -> None:
    assert parse_stat(STAT).total == CpuTicks(
        user=100, nice=20, system=30, idle=400, iowait=50, irq=6, softirq=7, steal=8
    )


def test_busy_time_leaves_out_idle_iowait_and_steal() -> None:
    assert parse_stat(STAT).total.busy == 100 + 20 + 30 + 6 + 7


def test_stat_lists_online_cpus_by_number() -> None:
    assert {cpu: ticks.busy for cpu, ticks in parse_stat(STAT).cpus.items()} == {0: 82, 3: 75}


def test_stat_has_the_boot_time_of_the_machine() -> None:
    assert parse_stat(STAT).boot_time_s == 1_767_323_045


def test_a_stat_that_was_cut_short_has_no_boot_time() -> None:
    assert parse_stat(STAT.partition("btime")[0]).boot_time_s is None


@pytest.mark.parametrize(
    "line", ["cpu1 1 2 3", "cpu01 1 2 3 4", "cpu99999 1 2 3 4", "cpu1 1 2 -3 4"]
)
def test_a_bad_line_of_stat_costs_its_cpu_only(line: str) -> None:
    assert dict(parse_stat(f"cpu 1 2 3 4\n{line}\ncpu2 1 2 3 4\n").cpus).keys() == {2}


@pytest.mark.parametrize("text", ["", "intr 1", "cpu0 1 2 3 4", "cpu x"])
def test_a_stat_without_its_first_line_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_stat(text)


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("MemTotal:       1024 kB\n", {"MemTotal": 1 << 20}),
        ("Node 8 MemTotal:    2 kB\n", {"MemTotal": 2048}),
        ("HugePages_Total:     4\n", {"HugePages_Total": 4}),
        ("Active(anon):   1 kB\n", {"Active(anon)": 1024}),
        ("MemTotal: 18446744073709551615 kB", {"MemTotal": None}),
        ("MemTotal: -1 kB\nMemFree: 1 kB", {"MemFree": 1024}),
        ("MemTotal: many kB", {}),
        ("", {}),
    ],
)
def test_meminfo_is_in_bytes(text: str, figures: dict[str, int | None]) -> None:
    assert parse_meminfo(text) == figures


@pytest.mark.parametrize(
    ("text", "model", "vendor"),
    [
        (
            "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R)\n\n"
            "processor\t: 1\nvendor_id\t: Other\nmodel name\t: Other\n",
            "Intel(R) Xeon(R)",
            "GenuineIntel",
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", None, "ARM"),
        ("CPU implementer : 0xee\n", None, "0xee"),
        ("processor : 0\ncpu : POWER9, altivec supported\n", None, None),
        ("", None, None),
    ],
)
def test_cpuinfo_names_the_first_processor(
    text: str, model: str | None, vendor: str | None
) -> None:
    assert parse_cpuinfo(text) == (model, vendor)


@pytest.mark.parametrize(
    ("cmdline", "printed"),
    [
        ("quiet", ""),
        ("isolcpus=2-3,8 quiet", "2-3,8"),
        ("isolcpus=domain,managed_irq,nohz,4", "4"),
        ("isolcpus=1 isolcpus=2", "2"),
        ("isolcpus=managed_irq", ""),
        ("isolcpus=0-7:1/2", "0,2,4,6"),
    ],
)
def test_isolated_cpus_are_those_of_the_last_option(cmdline: str, printed: str) -> None:
    assert format_cpu_list(parse_isolcpus(cmdline)) == printed


@pytest.mark.parametrize(
    ("cmdline", "fake"),
    [("numa=off", False), ("quiet numa=fake=4", True), ("xnuma=fake=4", False), ("", False)],
)
def test_invented_memory_nodes_are_noticed(cmdline: str, fake: bool) -> None:
    assert has_fake_numa(cmdline) is fake


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("Node:      255\nStatus:    online\nAddress:   40000000000\n", 255),
        ("Node: 0", 0),
        ("Node: -1\nStatus: offline\n", None),
        ("Node: 99999\n", None),
        ("", None),
    ],
)
def test_numa_status_names_a_node(text: str, node: int | None) -> None:
    assert parse_numa_status(text) == node


HOSTILE = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="cpu btimeNode:kBMT0123456789-=,\n\0 ", max_size=300),
)


@pytest.mark.parametrize(
    "parser",
    [parse_stat, parse_meminfo, parse_cpuinfo, parse_isolcpus, has_fake_numa, parse_numa_status],
)
@settings(deadline=None)
@given(text=HOSTILE)
def test_hostile_text_raises_nothing_but_a_parse_error(
    parser: Callable[[str], object], text: str
) -> None:
    with suppress(ParseError):
        parser(text)
