"""Figures of the plug-in: counts by method and result, and times that add up."""

from __future__ import annotations

from agent.nri.statistics import LATENCY_BOUNDS_S, NriCounters
from agent.snapshot.container import MethodStatistics, NriStatistics


def test_at_the_start_there_is_nothing() -> None:
    assert NriCounters().statistics == NriStatistics()


def test_answers_are_counted_by_method_result_and_time() -> None:
    figures = NriCounters()
    for result, took_s in (("ok", 0.00005), ("ok", 0.0001), ("late", 0.5), ("ok", 9.0)):
        figures.count_answer("CreateContainer", result, took_s)
    figures.count_answer("Configure", "ok", 0.001)
    state = figures.statistics
    assert [method.method for method in state.methods] == ["Configure", "CreateContainer"]
    assert state.late == 1
    found = state.methods[1]
    assert found.results == (("late", 1), ("ok", 3))
    assert found.latency.sum_s == 0.00005 + 0.0001 + 0.5 + 9.0
    by_bound = dict(zip((*LATENCY_BOUNDS_S, None), found.latency.buckets, strict=True))
    assert (by_bound[0.0001], by_bound[0.25], by_bound[0.5], by_bound[2], by_bound[None]) == (
        2, 2, 3, 3, 4,
    )  # fmt: skip


def test_figures_that_were_taken_do_not_change() -> None:
    figures = NriCounters()
    before = figures.statistics
    figures.count_answer("Configure", "ok", 1)
    figures.ends["NoSocket"] += 1
    assert before == NriStatistics()
    assert figures.statistics.ends == (("NoSocket", 1),)
    assert isinstance(figures.statistics.methods[0], MethodStatistics)
