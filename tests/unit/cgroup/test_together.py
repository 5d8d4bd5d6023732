"""Many files at once give what one by one gives, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import usage_files
from agent.errors import ParseError

Parse = Callable[[bytes], object]
Together = Callable[[Sequence[bytes]], Sequence[object]]
BOTH: list[tuple[Parse, Together]] = [
    (usage_files.parse_memory_stat_v2, usage_files.parse_memory_stats_v2),
    (usage_files.parse_cpu_stat_v2, usage_files.parse_cpu_stats_v2),
]

MEMORY_KEYS = (
    *("anon", "file", "swapcached"),
    *("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"),
)
CPU_KEYS = (
    *("usage_usec", "user_usec", "core_sched.force_idle_usec"),
    *("nr_periods", "nr_throttled", "throttled_usec", "nr_bursts"),
)
COUNTERS = st.integers(0, (1 << 61) - 1)
SIZES = st.integers(0, (1 << 49) - 1)  # five of them are no more than a memory has


def memory(numbers: Sequence[int], after: str = "slab_reclaimable") -> bytes:
    keys = [*MEMORY_KEYS, after]
    return "".join(f"{k} {n}\n" for k, n in zip(keys, numbers, strict=True)).encode()


def cpu(numbers: Sequence[int]) -> bytes:
    return "".join(f"{k} {n}\n" for k, n in zip(CPU_KEYS, numbers, strict=False)).encode()


ZEROS = memory([0] * 9)
IDLE = cpu([0] * 7)


@given(st.lists(st.lists(SIZES, min_size=9, max_size=9).map(memory), min_size=1, max_size=9))
def test_memory_is_that_of_the_files_one_by_one(files: list[bytes]) -> None:
    assert usage_files.parse_memory_stats_v2(files) == [
        usage_files.parse_memory_stat_v2(data) for data in files
    ]


@pytest.mark.parametrize("keys", [3, 7])  # without the cpu controller there is no throttling
@given(data=st.data())
def test_cpu_time_is_that_of_the_files_one_by_one(keys: int, data: st.DataObject) -> None:
    numbers = st.lists(COUNTERS, min_size=keys, max_size=keys)
    files = data.draw(st.lists(numbers.map(cpu), min_size=1, max_size=9))
    assert usage_files.parse_cpu_stats_v2(files) == [
        usage_files.parse_cpu_stat_v2(file) for file in files
    ]


@pytest.mark.parametrize("after", ["workingset_0", "zswap", "a", "sec_pagetables"])
def test_what_follows_the_lists_of_pages_is_the_kernels_choice(after: str) -> None:
    files = [memory([n] * 9, after) for n in (7, 10**12)]
    try:
        result: Sequence[object] = usage_files.parse_memory_stats_v2(files)
    except ParseError:
        assert after == "a"  # then the caller takes them one by one
    else:
        assert result == [usage_files.parse_memory_stat_v2(data) for data in files]


@pytest.mark.parametrize("cut", range(1, 120))
def test_a_cut_memory_file_gives_no_shorter_number(cut: int) -> None:
    whole = memory([123456] * 9)
    equal_or_refused(BOTH[0], [whole, whole[:-cut]])


@pytest.mark.parametrize(
    ("work", "files"),
    [
        (usage_files.parse_cpu_stats_v2, [IDLE, b""]),
        (usage_files.parse_cpu_stats_v2, [b"", IDLE]),
        (usage_files.parse_cpu_stats_v2, [IDLE, IDLE[:-1]]),
        (usage_files.parse_cpu_stats_v2, [IDLE, cpu([0] * 3)]),
        (
            usage_files.parse_cpu_stats_v2,
            [IDLE, IDLE[:13], IDLE[13:] + IDLE],
        ),  # keys that slip over
        (usage_files.parse_cpu_stats_v2, [b"usage_usec \n"]),
        (usage_files.parse_cpu_stats_v2, [b"usage_usec 1 2\n"]),
        (usage_files.parse_cpu_stats_v2, [b"usage_usec -1\n"]),
        (usage_files.parse_cpu_stats_v2, [b"usage_usec 1_0\n"]),
        (usage_files.parse_cpu_stats_v2, [b"usage_usec 1\nnice2_usec 5\n"]),  # not the number 25
        (usage_files.parse_cpu_stats_v2, [b"usage_usec0 \n"]),
        (usage_files.parse_cpu_stats_v2, [b"usage_usec " + b"9" * 5000 + b"\n"]),
        (usage_files.parse_cpu_stats_v2, [b"usage_usec %d\n" % (1 << 64)]),
        (usage_files.parse_memory_stats_v2, [ZEROS, b""]),
        (usage_files.parse_memory_stats_v2, [b"", ZEROS]),
        (usage_files.parse_memory_stats_v2, [b"\0" * 64]),
        (usage_files.parse_memory_stats_v2, [memory([1 << 64] * 9)]),
        (usage_files.parse_memory_stats_v2, [ZEROS.replace(b"active_file", b"x")]),
    ],
)
def test_files_that_differ_or_are_no_kernels_are_refused(
    work: Together, files: list[bytes]
) -> None:
    with pytest.raises(ParseError):
        work(files)


@given(st.sampled_from(BOTH), st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_no_bytes_make_it_raise_anything_else(
    both: tuple[Parse, Together], files: list[bytes]
) -> None:
    equal_or_refused(both, files)


@given(st.sampled_from(BOTH), st.sampled_from([ZEROS, IDLE]), st.data())
def test_damaged_files_are_taken_as_one_by_one_or_refused(
    both: tuple[Parse, Together], whole: bytes, data: st.DataObject
) -> None:
    files = []
    for _ in range(2):
        at = data.draw(st.integers(0, len(whole)))
        patch = data.draw(st.text("0123456789 \n_a-", max_size=4)).encode()
        files.append(whole[:at] + patch + whole[at + len(patch) :])
    equal_or_refused(both, files)


def equal_or_refused(both: tuple[Parse, Together], files: list[bytes]) -> None:
    parse_one, work = both
    try:
        result = work(files)
    except ParseError:
        return
    assert result == [parse_one(data) for data in files]
