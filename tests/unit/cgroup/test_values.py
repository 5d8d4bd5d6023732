from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import cpu, keys
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import (
    BURST,
    BVT,
    CPUS,
    KEYS_BY_NAME,
    MEMORY,
    QUOTA,
    SHARES,
    CgroupKey,
    CgroupValue,
)
from agent.cgroup.usage_files import PAGE_BYTES
from agent.cgroup.write_plan import DesiredValue
from agent.errors import ParseError


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        *((2, 1), (28, 1), (29, 2), (102, 4), (512, 20), (1024, 39), (2048, 79)),
        (262144, 10000),
    ],
)
def test_weight_by_the_linear_formula(given_: int, expected: int) -> None:  # V14, C3
    assert cpu.linear_weight(given_) == expected


@pytest.mark.parametrize("wrong", [1, 262145])
def test_shares_out_of_range_have_no_weight(wrong: int) -> None:  # V14
    with pytest.raises(ParseError):
        cpu.linear_weight(wrong)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [(2, 1), (102, 17), (512, 59), (1024, 100), (4096, 303), (262144, 10000)],
)
def test_weight_by_the_quadratic_formula(given_: int, expected: int) -> None:  # V16
    assert cpu.quadratic_weight(given_) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"max 100000\n", Bandwidth(-1, 100000)), (b"250000 50000\n", Bandwidth(250000, 50000))],
)
def test_cpu_max_has_two_fields(text: bytes, expected: Bandwidth) -> None:  # V17
    assert QUOTA.parse(2, (text,)) == expected


@pytest.mark.parametrize("text", [b"100000", b"", b"max", b"1 2 3", b"x 100000", b"-5 100000"])
def test_cpu_max_of_another_form_is_refused(text: bytes) -> None:  # V17
    with pytest.raises(ParseError):
        QUOTA.parse(2, (text,))


@pytest.mark.parametrize(
    ("version", "old", "new", "texts"),
    [
        pytest.param(1, (100000, 100000), (-1, 100000), ["-1"], id="V18 v1"),
        pytest.param(2, (100000, 100000), (-1, 100000), ["max 100000"], id="V18 v2"),
        pytest.param(2, (100000, 50000), (150000, 100000), ["150000 100000"], id="V18 period"),
        pytest.param(2, (-1, 100000), (-1, 50000), ["max 50000"], id="V19"),
        pytest.param(1, (100000, 100000), (100000, 50000), ["50000"], id="period alone"),
        pytest.param(1, (-1, 100000), (60000, 50000), ["50000", "60000"], id="from no limit"),
        pytest.param(1, (60000, 50000), (-1, 100000), ["-1", "100000"], id="to no limit"),
        pytest.param(1, (50000, 50000), (100000, 100000), ["-1", "100000", "100000"], id="same"),
        pytest.param(1, (50000, 50000), (300000, 100000), ["-1", "100000", "300000"], id="beyond"),
        pytest.param(1, (50000, 100000), (80000, 50000), ["50000", "80000"], id="between"),
        pytest.param(1, (80000, 50000), (50000, 100000), ["100000", "50000"], id="period first"),
    ],
)
def test_the_way_from_one_bandwidth_to_another(
    version: int, old: tuple[int, int], new: tuple[int, int], texts: list[str]
) -> None:
    result = cpu.bandwidth_writes(version, Bandwidth(*old), Bandwidth(*new))
    assert [text for _, text, _ in result] == texts
    assert result[-1][2] == Bandwidth(*new)


pairs = st.builds(
    Bandwidth,
    st.one_of(st.just(-1), st.integers(1000, 10**7)),
    st.integers(1000, 10**6),
)


@given(pairs, pairs)
def test_between_two_bandwidths_nothing_is_in_force_that_a_neighbour_could_refuse(
    old: Bandwidth, new: Bandwidth
) -> None:
    for _, _, after in cpu.bandwidth_writes(1, old, new):
        allowed = after.quota_us == -1 or not (
            (after.is_looser(old) and after.is_looser(new))
            or (old.is_looser(after) and new.is_looser(after))
        )
        assert allowed


@pytest.mark.parametrize(("version", "text"), [(1, "-1"), (2, "max")])
def test_no_memory_limit_is_written_as_the_version_wants(version: int, text: str) -> None:  # V20
    assert MEMORY.text(version, -1) == text


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        (1, b"9223372036854771712\n", -1),
        (1, b"9223372036854710272\n", -1),  # 64 KiB pages
        (2, b"max\n", -1),
        (1, b"1048576\n", 1048576),
    ],
)
def test_no_memory_limit_is_read_in_each_spelling(
    version: int, text: bytes, expected: int
) -> None:  # V20
    assert MEMORY.parse(version, (text,)) == expected


@pytest.mark.parametrize(("found", "met"), [(100, True), (39, True), (50, False)])
def test_a_weight_of_either_formula_stands_for_the_shares(found: int, met: bool) -> None:  # V21
    both = (cpu.linear_weight(1024), cpu.quadratic_weight(1024))
    wish = DesiredValue(
        cgroup="/x", key=SHARES, value=both[0], equivalents=both, owner="batch_resources"
    )
    assert wish.is_met(found) is met


def test_cpus_are_compared_as_sets() -> None:  # V22
    assert CPUS.is_equivalent(CPUS.parse(1, (b"0-3,8\n",)), CPUS.parse(1, (b"8,0,1,2,3",)))


@pytest.mark.parametrize("text", [b"0-4097", b"1-2-3", b"a"])
def test_cpus_of_no_machine_are_refused(text: bytes) -> None:  # V22
    with pytest.raises(ParseError):
        CPUS.check(1, CPUS.parse(1, (text,)))


@pytest.mark.parametrize(
    ("key", "version", "value"),
    [(BVT, 1, 3), (SHARES, 1, 1), (BURST, 1, 100_000_001), (QUOTA, 1, Bandwidth(999))],
)
def test_values_out_of_range_are_refused(
    key: CgroupKey, version: int, value: CgroupValue
) -> None:  # V23
    with pytest.raises(ParseError):
        key.check(version, value)


BYTES = 2**63 - 1
# the ranges of the kernels that have these files: version 1, then version 2
RANGES = {
    "cpu.shares": ((2, 262144), (1, 10000)),
    "cpu.cfs_burst_us": ((0, 100_000_000), (0, BYTES)),
    "cpu.bvt_warp_ns": ((-1, 2), (-1, 2)),
    "cpu.idle": ((0, 1), (0, 1)),
    "memory.min": ((0, BYTES), (0, BYTES)),
    "memory.low": ((0, BYTES), (0, BYTES)),
    "memory.high": ((0, BYTES), (0, BYTES)),
    "memory.wmark_ratio": ((0, 100), (0, 100)),
    "memory.wmark_scale_factor": ((1, 1000), (1, 1000)),
    "memory.wmark_min_adj": ((-25, 50), (-25, 50)),
    "memory.priority": ((0, 12), (0, 12)),
    "memory.use_priority_oom": ((0, 1), (0, 1)),
    "memory.oom.group": ((0, 1), (0, 1)),
    "memory.pagecache_limit.enable": ((0, 1), (0, 1)),
    "memory.pagecache_limit.size": ((0, BYTES), (0, BYTES)),
    "memory.pagecache_limit.sync": ((0, 1), (0, 1)),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", RANGES)
def test_each_number_has_the_range_of_the_kernel(name: str, version: int) -> None:
    key, (low, high) = KEYS_BY_NAME[name], RANGES[name][version - 1]
    assert [key.check(version, value) for value in (low, high)] == [low, high]
    for value in (low - 1, high + 1):
        with pytest.raises(ParseError):
            key.check(version, value)


def test_no_limit_of_protection_is_within_the_range() -> None:  # V23
    high = KEYS_BY_NAME["memory.high"]
    assert high.check(2, high.parse(2, (b"max\n",))) == keys.NO_LIMIT
    assert high.is_equivalent(keys.NO_LIMIT, high.parse(2, (b"9223372036854775807\n",)))


def test_bytes_are_compared_after_the_kernel_cut_them_to_pages() -> None:  # V24
    desired = 1_000_000
    assert MEMORY.is_equivalent(desired, desired // PAGE_BYTES * PAGE_BYTES)
    assert not MEMORY.is_equivalent(desired, desired // PAGE_BYTES * PAGE_BYTES - PAGE_BYTES)


@pytest.mark.parametrize("version", [1, 2])
def test_a_negative_identity_is_a_number_and_no_absent_limit(version: int) -> None:  # C6
    assert BVT.text(version, -1) == "-1"


def test_an_empty_set_is_written_as_a_newline() -> None:
    assert CPUS.text(1, frozenset()) == "\n"


@pytest.mark.parametrize(
    ("key", "new", "old", "looser", "merged"),
    [
        (MEMORY, 200, 100, True, 200),  # C7
        (MEMORY, 100, 200, False, 200),
        (MEMORY, 5, -1, False, -1),
        (MEMORY, -1, 100, True, -1),
        (CPUS, frozenset({2, 3, 4, 5}), frozenset({0, 1, 2, 3}), True, frozenset(range(6))),  # C8
        (CPUS, frozenset({1, 2}), frozenset({0, 1, 2, 3}), False, frozenset(range(4))),
        (QUOTA, Bandwidth(-1), Bandwidth(100000), True, Bandwidth(-1)),
        (QUOTA, Bandwidth(100000), Bandwidth(60000, 50000), False, Bandwidth(60000, 50000)),
    ],
)
def test_what_is_looser_and_what_allows_both(
    key: CgroupKey, new: CgroupValue, old: CgroupValue, looser: bool, merged: CgroupValue
) -> None:
    assert key.is_looser(new, old) is looser
    assert key.merge(new, old) == merged


@given(st.sampled_from(keys.ALL_KEYS), st.integers(1, 2), st.binary(max_size=64))
def test_no_bytes_of_a_file_do_harm(key: CgroupKey, version: int, data: bytes) -> None:
    try:
        value = key.parse(version, (data,) * len(key.files(version) or ("",)))
    except ParseError:
        return
    assert key.from_ledger(key.to_ledger(value)) == value
