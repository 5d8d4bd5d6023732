"""Files of block IO, idle pages and resctrl, whole and damaged: their own figures, or refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.usage.cold_memory import BUCKETS, COLD_ROWS, parse_idle_page_stats
from agent.usage.resctrl_monitor import parse_counter
from agent.usage.storage import parse_io_stat, parse_throttle_counts

COUNTERS = st.integers(0, (1 << 63) - 1)
NUMBERS = st.tuples(st.integers(0, 4095), st.integers(0, 1 << 19)).map(lambda n: f"{n[0]}:{n[1]}")
FIGURES = st.tuples(COUNTERS, COUNTERS, COUNTERS, COUNTERS)
DEVICES = st.dictionaries(NUMBERS, FIGURES, max_size=4)
KEYS = ("rbytes", "wbytes", "rios", "wios")


@given(DEVICES, st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 300))
def test_block_io_of_devices_whose_names_run_into_one_line_is_that_of_the_last_name(
    devices: dict[str, tuple[int, ...]], idle: list[bool], cut: int
) -> None:
    """Kernels 5.14 to 5.16 end the line of a device only if it did something."""
    parts: list[str] = []
    for (number, figures), is_idle_before in zip(devices.items(), idle, strict=False):
        parts.append(f"{7000 + len(parts)}:1 (unknown) " * is_idle_before)
        values = " ".join(f"{key}={value}" for key, value in zip(KEYS, figures, strict=True))
        parts.append(f"{number} {values} dbytes=0 dios=0\n")
    text = "".join([*parts, "9000:1 " * idle[-1]])
    assert {
        number: (io.read_bytes, io.written_bytes, io.reads, io.writes)
        for number, io in parse_io_stat(text.encode()).items()
    } == devices
    try:
        part = parse_io_stat(text[: len(text) - cut].encode())
    except ParseError:
        return
    for number, io in part.items():
        assert (io.read_bytes, io.written_bytes, io.reads, io.writes) == devices[number]


@given(DEVICES, st.permutations(KEYS), st.booleans(), st.integers(0, 300))
def test_block_io_of_version_2_is_that_of_each_device_in_any_order_of_keys(
    devices: dict[str, tuple[int, ...]], order: list[str], has_more: bool, cut: int
) -> None:
    lines = []
    for number, figures in devices.items():
        values = dict(zip(KEYS, figures, strict=True))
        more = " dbytes=0 dios=0 cost.usage=5" if has_more else ""
        lines.append(f"{number} {' '.join(f'{key}={values[key]}' for key in order)}{more}\n")
    text = "".join(lines)
    assert {
        number: (io.read_bytes, io.written_bytes, io.reads, io.writes)
        for number, io in parse_io_stat(text.encode()).items()
    } == devices
    try:
        part = parse_io_stat(text[: len(text) - cut].encode())
    except ParseError:
        return
    for number, io in part.items():
        assert (io.read_bytes, io.written_bytes, io.reads, io.writes) == devices[number]


@given(st.dictionaries(NUMBERS, st.tuples(COUNTERS, COUNTERS), max_size=4), st.integers(0, 300))
def test_block_io_of_version_1_is_that_of_each_device_or_refused(
    devices: dict[str, tuple[int, int]], cut: int
) -> None:
    lines = [
        f"{number} Read {read}\n{number} Write {written}\n{number} Sync 0\n{number} Async 0\n"
        f"{number} Discard 0\n{number} Total {read}\n"
        for number, (read, written) in devices.items()
    ]
    text = "".join([*lines, "Total 5\n"])
    assert parse_throttle_counts(text.encode()) == devices
    try:
        part = parse_throttle_counts(text[: len(text) - cut].encode())
    except ParseError:
        return
    assert part == devices


ROWS = [f"{c}{t}{e}{i}" for c in "cd" for t in "sf" for e in "eu" for i in "ia"] + ["slab"]
COUNT_ROWS = st.lists(
    st.lists(st.integers(0, 1 << 50), min_size=len(BUCKETS), max_size=len(BUCKETS)),
    min_size=len(ROWS),
    max_size=len(ROWS),
)


@given(COUNT_ROWS, st.integers(1, 300), st.integers(0, 400))
def test_cold_memory_is_that_of_its_rows_or_refused(
    rows: list[list[int]], period_s: int, cut: int
) -> None:
    text = (
        f"# version: 1.0\n# page_scans: 99\n# scan_period_in_seconds: {period_s}\n"
        f"# use_hierarchy: 1\n# buckets: {','.join(map(str, BUCKETS))}\n#\n"
    )
    text += "".join(
        f"  {name} {' '.join(f'{count:14}' for count in counts)}\n"
        for name, counts in zip(ROWS, rows, strict=True)
    )
    cold = {name.encode(): counts for name, counts in zip(ROWS, rows, strict=True)}
    expected = sum(
        count
        for row in COLD_ROWS
        for count, age in zip(cold[row], BUCKETS, strict=True)
        if age * period_s >= 300
    )
    assert parse_idle_page_stats(text.encode()).cold_bytes() == expected
    try:
        part = parse_idle_page_stats(text[: len(text) - cut].encode())
    except ParseError:
        return
    assert part.cold_bytes() == expected


@given(st.integers(0, 1 << 66), st.integers(0, 3))
def test_a_count_of_resctrl_is_its_own_or_refused(count: int, cut: int) -> None:
    text = f"{count}\n"
    try:
        assert parse_counter(text[: len(text) - cut].encode()) == count
    except ParseError:
        assert cut or count >= 1 << 62
