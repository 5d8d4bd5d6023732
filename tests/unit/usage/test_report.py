from __future__ import annotations

import pytest

from agent.usage.history import SeriesTables, UsageReportPolicy, build_report
from agent.usage.series import SeriesTable, aggregate_values, percentile_index


@pytest.mark.parametrize(
    ("count", "percentile", "expected"),
    [
        pytest.param(300, 0.95, 284, id="n=300,p=.95"),
        pytest.param(1, 0.95, 0, id="n=1"),
        pytest.param(1, 0.5, 0, id="n=1,p=.5"),
        pytest.param(2, 0.5, 0, id="n=2,p=.5"),
        pytest.param(100, 0.9, 89, id="n=100,p=.9"),
        pytest.param(100, 0.99, 98, id="n=100,p=.99"),
        pytest.param(10, 0.95, 8, id="n=10,p=.95"),
        pytest.param(1800, 0.99, 1781, id="n=1800,p=.99"),
    ],
)
def test_the_index_is_computed_in_single_precision(
    count: int, percentile: float, expected: int
) -> None:
    assert percentile_index(count, percentile) == expected


def test_five_values_of_an_unsorted_list() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert aggregate_values(values) == (50.5, 50.0, 90.0, 95.0, 99.0)


def test_nothing_has_no_mean_and_no_percentiles() -> None:
    empty = SeriesTable(2, 2)
    assert empty.means((("node", "cpu"),), empty.window(0.0, 1.0)) == [None]
    assert aggregate_values([]) == (None,) * 5


def boards(seconds: int, step_s: float = 1.0) -> SeriesTables:
    """Fill one sample a step: node CPU 1.0 and then 3.0 by halves, memory 10."""
    node, pods = SeriesTable(1801, 100), SeriesTable(301, 100)
    steps = int(seconds / step_s) + 1
    for i in range(steps):
        node.begin_moment(i * step_s)
        node.set_values(
            [
                (("node", "cpu"), 1.0 if i < steps // 2 else 3.0),
                (("node", "memory"), 10.0),
                (("node", "memory-with-cache"), 25.0),
                (("system", "cpu"), 0.5),
                (("system", "memory"), 4.0),
                (("device", "g", "core"), 50.0),
                (("device", "g", "memory"), 7.0),
            ]
        )
    return SeriesTables(node, pods, {"g": 9})


def test_a_window_less_than_half_full_is_empty() -> None:
    report = build_report(boards(149), 149.0, UsageReportPolicy())
    assert [(a.node, a.system, a.devices) for a in report.aggregates] == [((), (), ())] * 3
    assert report.node.cpu_cores == pytest.approx(2.0, abs=0.02)


def test_a_window_half_full_is_reported() -> None:
    report = build_report(boards(150), 150.0, UsageReportPolicy())
    reports = [bool(a.node) for a in report.aggregates]
    assert reports == [True, False, False]
    names = [name for name, _ in report.aggregates[0].node]
    assert names == ["avg", "p50", "p90", "p95", "p99"]


def test_devices_are_in_every_reported_window() -> None:
    report = build_report(boards(600), 600.0, UsageReportPolicy())
    by_name = dict(report.aggregates[1].devices)
    assert by_name["p95"][0].core_percent == 50.0
    assert by_name["avg"][0].memory_total_bytes == 9


def test_the_memory_policy_chooses_the_nodes_series_and_never_the_systems() -> None:
    filled = boards(300)
    with_cache = build_report(filled, 300.0, UsageReportPolicy(memory="usageWithPageCache"))
    hot = build_report(filled, 300.0, UsageReportPolicy(memory="usageWithHotPageCache"))
    assert with_cache.node.memory_bytes == 25.0
    assert with_cache.system.memory_bytes == 4.0
    assert hot.node.memory_bytes == 10.0


def test_the_aggregation_period_is_at_least_a_minute() -> None:
    report = build_report(boards(300), 300.0, UsageReportPolicy(aggregate_s=1))
    assert report.node.cpu_cores == pytest.approx(3.0)


def test_without_samples_everything_is_absent() -> None:
    report = build_report(
        SeriesTables(SeriesTable(2, 2), SeriesTable(2, 2), {}), 0.0, UsageReportPolicy()
    )
    assert report.node.cpu_cores is None
    assert (report.devices, report.pods, report.numa) == ((), (), ())
