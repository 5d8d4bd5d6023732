from __future__ import annotations

import pytest

from agent.snapshot.usage import CgroupUsage
from agent.usage.cgroup_usage import CgroupUsageTable, cpu_rates, throttled_ratio


@pytest.mark.parametrize(
    ("before", "now", "ratio"),
    [
        ((10, 2), (30, 7), 0.25),
        ((10, 2), (10, 2), 0.0),
        ((10, 2), (5, 2), None),
        ((10, 2), (20, 1), None),
        (None, (10, 2), None),
        ((10, 2), None, None),
    ],
)
def test_throttled_ratio(
    before: tuple[int, int] | None, now: tuple[int, int] | None, ratio: float | None
) -> None:
    assert throttled_ratio(before, now) == ratio


@pytest.mark.parametrize(
    ("before", "now", "elapsed_s", "cores"),
    [
        (0, 3_000_000_000, 2.0, 1.5),
        (5, 5, 1.0, 0.0),
        (6, 5, 1.0, None),
        (None, 5, 1.0, None),
        (5, None, 1.0, None),
        (0, 5, 0.0, None),
        (0, 5, -1.0, None),
        (0, 5, None, None),
    ],
)
def test_rates(
    before: int | None, now: int | None, elapsed_s: float | None, cores: float | None
) -> None:
    assert cpu_rates([before], [now], elapsed_s) == [cores]


def test_a_counter_that_grows_faster_than_all_cpus_work_has_no_rate() -> None:
    assert cpu_rates([0, 0], [9_000_000_000, 1 << 63], 1.0, cpus=4) == [9.0, None]
    assert cpu_rates([0], [13_000_000_000], 1.0, cpus=4) == [None]
    assert cpu_rates([0], [1 << 63], 1.0) == [None]  # nor on a host that does not tell its CPUs


def test_a_table_is_a_mapping_of_usage() -> None:
    table = CgroupUsageTable(
        index={"a": 0, "b": 1},
        cpu_cores=[0.5, None],
        cpu_ns=[7, None],
        memory=[(1, 2), None],
        throttling=[(4, 2), None],
        previous_throttling=[(2, 1), None],
        pressure=[None, None],
    )
    assert dict(table) == {
        "a": CgroupUsage(
            cpu_cores=0.5,
            cpu_total_ns=7,
            memory_bytes=1,
            memory_with_cache_bytes=2,
            throttled_ratio=0.5,
            throttled_periods=2,
            periods=4,
        ),
        "b": CgroupUsage(),
    }
    assert table == dict(table)
    assert "c" not in table
