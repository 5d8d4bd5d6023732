from __future__ import annotations

import pytest

from agent.metrics.exposition import MetricsRenderer
from agent.slo.status import build_slo_view
from agent.snapshot.cluster import ClusterView
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSloView

VIEW = build_slo_view(
    {"metadata": {}, "spec": {"cpuBurstStrategy": {"policy": "x", "cpuBurstPercent": -1, "n": 1}}},
    NodeSloView(),
)


def series(
    part: SnapshotPart[NodeSloView], now_s: float, *, clustered: bool = True
) -> dict[str, float]:
    snapshot = NodeSnapshot(
        node=NodeIdentity(name="n"), cluster=ClusterView(is_clustered=clustered, slo=part)
    )
    page = MetricsRenderer({}).render(snapshot, now_s).decode()
    prefix = "xpu_agent_node_slo_"
    result = {}
    for line in page.splitlines():
        if line.startswith(prefix):
            name, _, value = line.partition('{node="n"} ')
            result[name.removeprefix(prefix)] = float(value)
    return result


@pytest.mark.parametrize(
    ("part", "now_s", "expected"),
    [
        (SnapshotPart(NodeSloView()), 9.0, {"found": 0, "frozen": 1}),
        (SnapshotPart(NodeSloView(), 1.0), 9.0, {"found": 0, "age_seconds": 8, "frozen": 0}),
        (SnapshotPart(VIEW, 1.0), 9.0, {"found": 1, "age_seconds": 8, "frozen": 0}),
        (SnapshotPart(VIEW, 0.0), 4000.0, {"found": 1, "age_seconds": 4000, "frozen": 1}),
        (
            SnapshotPart(build_slo_view(5, VIEW), 1.0),
            9.0,
            {"found": 1, "age_seconds": 8, "frozen": 1},
        ),
    ],
    ids=["never told", "none", "fresh", "stale", "unreadable"],
)
def test_the_metrics_say_how_sure_of_the_node_slo_we_are(
    part: SnapshotPart[NodeSloView], now_s: float, expected: dict[str, float]
) -> None:
    result = series(part, now_s)
    wrong = part.value.refused_count
    assert result == {"refused_values": wrong, "unknown_fields": 1 if wrong else 0, **expected}


def test_wrong_and_unknown_values_are_counted() -> None:
    assert (VIEW.refused_count, VIEW.unknown_fields) == (2, 1)


def test_outside_of_a_cluster_there_are_no_series_of_the_node_slo() -> None:
    assert series(SnapshotPart(VIEW, 1.0), 9.0, clustered=False) == {}
