"""Figures of the plug-in: counts by method and result, and times that add up."""

from __future__ import annotations

from agent.nri.figures import BOUNDS_S, Figures, MethodFigures, NriState


def test_at_the_start_there_is_nothing() -> None:
    assert Figures().state == NriState()


def test_answers_are_counted_by_method_result_and_time() -> None:
    figures = Figures()
    for result, took_s in (("ok", 0.00005), ("ok", 0.0001), ("late", 0.5), ("ok", 9.0)):
        figures.answered("CreateContainer", result, took_s)
    figures.answered("Configure", "ok", 0.001)
    state = figures.state
    assert [one.method for one in state.methods] == ["Configure", "CreateContainer"]
    assert state.late == 1
    found = state.methods[1]
    assert found.results == (("late", 1), ("ok", 3))
    assert found.sum_s == 0.00005 + 0.0001 + 0.5 + 9.0
    by_bound = dict(zip((*BOUNDS_S, None), found.buckets, strict=True))
    assert (by_bound[0.0001], by_bound[0.25], by_bound[0.5], by_bound[2], by_bound[None]) == (
        2, 2, 3, 3, 4,
    )  # fmt: skip


def test_figures_that_were_taken_do_not_change() -> None:
    figures = Figures()
    before = figures.state
    figures.answered("Configure", "ok", 1)
    figures.ends["NoSocket"] += 1
    assert before == NriState()
    assert figures.state.ends == (("NoSocket", 1),)
    assert isinstance(figures.state.methods[0], MethodFigures)
