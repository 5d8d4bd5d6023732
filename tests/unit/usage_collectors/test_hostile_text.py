"""Whatever a file holds, a parser returns figures or raises `ParseError`: nothing else ends it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.host.block_devices import parse_disk_stat, split_lvm_name
from agent.usage.cold_memory import parse_idle_page_stats
from agent.usage.perf_counters import parse_group_reading
from agent.usage.resctrl_monitor import parse_counter
from agent.usage.storage import parse_io_stat, parse_throttle_counts

HUGE = b"9" * 5000  # Python refuses to convert so many digits

TEXTS = (
    b"8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n",
    b"8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n",
    b"5 0 16 9 7 0 32 9 0 1500 18\n",
    b"4096\n",
    b"# version: 1.0\n# page_scans: 99\n# scan_period_in_seconds: 5\n# use_hierarchy: 1\n",
)

PARSERS: tuple[Callable[[bytes], object], ...] = (
    parse_io_stat,
    parse_throttle_counts,
    parse_idle_page_stats,
    parse_counter,
    lambda data: parse_disk_stat(data.decode("utf-8", "replace")),
    lambda data: split_lvm_name(data.decode("utf-8", "replace")),
    lambda data: parse_group_reading(data, 2),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a file that is cut, doubled, or has a part replaced by something that is no part."""
    text = draw(st.sampled_from(TEXTS))
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, len(text)))
    part = draw(
        st.one_of(
            st.binary(max_size=8),
            st.sampled_from([b"max", b"-1", b"1e9", b"\0", b"\n\n", HUGE, b"%d" % (1 << 64), text]),
        )
    )
    return text[:begin] + part + text[end:]


@pytest.mark.parametrize("parser", range(len(PARSERS)))
@given(data=st.one_of(damaged(), st.binary(max_size=200)))
def test_a_parser_returns_figures_or_refuses(parser: int, data: bytes) -> None:
    try:
        PARSERS[parser](data)
    except ParseError:
        return


@given(data=damaged())
@example(data=b"8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=\t0\n")
def test_figures_of_block_io_are_never_negative_nor_beyond_64_bits(data: bytes) -> None:
    try:
        devices = parse_io_stat(data)
    except ParseError:
        return
    for io in devices.values():
        figures = (io.read_bytes, io.written_bytes, io.reads, io.writes)
        assert all(0 <= figure < 1 << 64 for figure in figures)


@given(st.integers(0, len(TEXTS[0]) - 1))
def test_a_file_that_is_cut_never_gives_a_shorter_number(end: int) -> None:
    try:
        assert parse_io_stat(TEXTS[0][:end]) == {}
    except ParseError:
        return
