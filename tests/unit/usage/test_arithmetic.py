from __future__ import annotations

import pytest

from agent.usage.node_usage import NodeCounters, busy_cores, numa_usage, subtract_values, sum_values


def counters(busy: dict[int | None, int] | None) -> NodeCounters:
    return NodeCounters(busy=busy, memory=None, node_memory=(), pressure=None)


@pytest.mark.parametrize(
    ("values", "total"), [([], 0), ([1.0, None, 2.0], 3.0), ([None], None), ([None, 0.0], 0.0)]
)
def test_what_is_known_is_summed(values: list[float | None], total: float | None) -> None:
    assert sum_values(values) == total


@pytest.mark.parametrize(
    ("whole", "parts", "left"),
    [
        (5.0, [1.0, 2.0], 2.0),
        (5.0, [], 5.0),
        (1.0, [2.0], 0),
        (None, [1.0], None),
        (5.0, [None], None),
    ],
)
def test_the_rest_is_not_below_nothing(
    whole: float | None, parts: list[float | None], left: float | None
) -> None:
    assert subtract_values(whole, parts) == left


def test_cpus_that_fell_or_are_new_are_left_out() -> None:
    before = counters({None: 100, 0: 50, 1: 50})
    now = counters({None: 300, 0: 40, 1: 150, 2: 9})
    assert busy_cores(before, now, 100.0) == {None: 2.0, 1: 1.0}


def test_cpus_that_work_more_than_there_is_time_are_left_out() -> None:
    before = counters({None: 0, 0: 0, 1: 0})
    now = counters({None: 1 << 40, 0: 100, 1: 1 << 40})
    assert busy_cores(before, now, 100.0, cpus=2) == {0: 1.0}


@pytest.mark.parametrize("elapsed_ticks", [0.0, -5.0])
def test_without_time_nothing_is_busy(elapsed_ticks: float) -> None:
    same = counters({None: 1})
    assert busy_cores(same, same, elapsed_ticks) == {}
    assert busy_cores(None, same, 100.0) == {}
    assert busy_cores(counters(None), same, 100.0) == {}


def test_a_single_memory_node_has_all_cpu_time() -> None:
    (one,) = numa_usage([(0, frozenset({0}))], {None: 1.5}, [7], {0: 3.0})
    assert (one.cpu_cores, one.memory_bytes, one.pods_memory_bytes) == (1.5, 7, 3)


def test_several_memory_nodes_have_that_of_their_cpus() -> None:
    nodes = [(0, frozenset({0, 1})), (1, frozenset({2})), (2, frozenset[int]())]
    busy = {None: 3.0, 0: 0.5, 1: 1.0, 2: 1.5}
    result = numa_usage(nodes, busy, [1, 2, None], {})
    assert [use.cpu_cores for use in result] == [1.5, 1.5, None]
    assert [use.pods_memory_bytes for use in result] == [None, None, None]
