"""What stands after each word of the API server, and when only to hold."""

from __future__ import annotations

import pytest

from agent.slo.status import SloFreshness, build_slo_view, freshness, is_frozen
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NODE_SLO_DEFAULTS, NodeSloView
from tests.unit.slo.wire import Tree

STALE_S = 1800.0
HOUR_S = 3600.0


def node_slo(percent: object = 40, version: str = "7", **metadata: object) -> Tree:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "node-0", "resourceVersion": version, "generation": 3, **metadata},
        "spec": {
            "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": percent}
        },
    }


IN_FORCE = build_slo_view(node_slo(), NodeSloView())


def test_an_object_is_in_force_with_its_version() -> None:
    assert (IN_FORCE.found, IN_FORCE.resource_version, IN_FORCE.generation) == (True, "7", 3)
    assert IN_FORCE.slo.thresholds.cpu_suppress_threshold_percent == 40
    assert (IN_FORCE.refused_count, IN_FORCE.problem) == (0, "")


def test_a_deleted_object_leaves_the_defaults() -> None:
    assert build_slo_view(None, IN_FORCE) == NodeSloView()
    assert NodeSloView().slo == NODE_SLO_DEFAULTS


def test_the_object_in_force_is_not_read_again() -> None:
    assert build_slo_view(node_slo(percent=99), IN_FORCE) is IN_FORCE
    assert build_slo_view(node_slo(version="8"), IN_FORCE) is not IN_FORCE


def test_an_object_without_a_version_is_read_each_time() -> None:
    first = build_slo_view(node_slo(version=""), NodeSloView())
    again = build_slo_view(node_slo(percent=50, version=""), first)
    assert again.slo.thresholds.cpu_suppress_threshold_percent == 50


def test_a_wrong_value_is_reported_and_the_object_is_in_force() -> None:
    slo_view = build_slo_view(node_slo(percent=400, version="8"), IN_FORCE)
    assert (slo_view.refused_count, len(slo_view.refused)) == (1, 1)
    assert slo_view.slo.thresholds.cpu_suppress_threshold_percent == 65
    assert slo_view.slo.thresholds.enable


@pytest.mark.parametrize(
    "raw", [5, "x", [], {"spec": 5}, {"spec": [{}]}, {"spec": "{}", "metadata": {}}], ids=repr
)
def test_an_object_that_cannot_be_read_leaves_the_one_before_in_force_and_says_so(
    raw: object,
) -> None:
    slo_view = build_slo_view(raw, IN_FORCE)
    assert slo_view.problem
    assert (slo_view.slo, slo_view.resource_version) == (IN_FORCE.slo, "7")
    assert is_frozen(SnapshotPart(slo_view, 0.0), 0.0, STALE_S)
    healed = build_slo_view(node_slo(), slo_view)
    assert healed == IN_FORCE


@pytest.mark.parametrize("spec", [{}, {"spec": None}, {"spec": {}}])
def test_an_object_that_requests_nothing_is_found(spec: Tree) -> None:
    slo_view = build_slo_view({"metadata": {"resourceVersion": "9"}, **spec}, IN_FORCE)
    assert (slo_view.found, slo_view.slo) == (True, NODE_SLO_DEFAULTS)


@pytest.mark.parametrize(
    "metadata", [None, 5, [], {"resourceVersion": 7, "generation": "3"}, {"generation": True}]
)
def test_odd_metadata_does_not_hide_the_spec(metadata: object) -> None:
    slo_view = build_slo_view({**node_slo(), "metadata": metadata}, NodeSloView())
    assert (slo_view.resource_version, slo_view.generation) == ("", None)
    assert slo_view.slo == IN_FORCE.slo


@pytest.mark.parametrize(
    ("taken_s", "now_s", "expected"),
    [
        (None, 0.0, SloFreshness.NEVER),
        (None, 10 * HOUR_S, SloFreshness.NEVER),
        (0.0, 0.0, SloFreshness.FRESH),
        (0.0, STALE_S, SloFreshness.FRESH),
        (0.0, STALE_S + 0.1, SloFreshness.STALE),
        (100.0, 0.0, SloFreshness.FRESH),
    ],
)
def test_standing_follows_age(taken_s: float | None, now_s: float, expected: SloFreshness) -> None:
    part = SnapshotPart(IN_FORCE, taken_s)
    assert freshness(part, now_s, STALE_S) is expected
    assert is_frozen(part, now_s, STALE_S) is (expected is not SloFreshness.FRESH)


def test_six_hours_without_the_api_server_freeze_what_was_in_force_and_change_nothing() -> None:
    part = SnapshotPart(IN_FORCE, 0.0)
    entries = [is_frozen(part, float(now_s), STALE_S) for now_s in range(0, 6 * 3600, 60)]
    assert entries.index(True) * 60 == STALE_S + 60
    assert all(entries[31:])
    assert part.value.slo == IN_FORCE.slo  # nothing but an answer puts another in its place
    back = SnapshotPart(build_slo_view(node_slo(percent=50, version="99"), part.value), 6 * HOUR_S)
    assert not is_frozen(back, 6 * HOUR_S, STALE_S)
    assert back.value.slo.thresholds.cpu_suppress_threshold_percent == 50


def test_a_start_without_the_api_server_holds_what_an_earlier_run_put_in_place() -> None:
    assert is_frozen(SnapshotPart(NodeSloView()), 0.0, STALE_S)


def test_an_object_that_is_known_to_be_gone_lets_plans_undo() -> None:
    assert not is_frozen(SnapshotPart(build_slo_view(None, IN_FORCE), 5.0), 6.0, STALE_S)
