"""What the page says of the cluster."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.slo.status import build_slo_view
from agent.snapshot.cluster import (
    ApiSessionStatus,
    ClusterServiceStatus,
    ClusterView,
    KubeletStatus,
    WatchPhase,
    WatchStatus,
)
from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import FieldConflict, WriterPhase, WriterState
from agent.snapshot.slo import NodeSloView
from agent.web.page.document import render_page
from tests import factory
from tests.unit.web.view import HOSTILE, StillView, eight_cards

SLO = build_slo_view(
    {"metadata": {"resourceVersion": "12"}, "spec": {"cpuBurstStrategy": {"policy": HOSTILE}}},
    NodeSloView(),
)
NEVER = SnapshotPart(NodeSloView())
STATUS = ClusterServiceStatus(
    session=ApiSessionStatus(reachable=True, last_answer_s=factory.NOW_S),
    watches=(
        WatchStatus(resource="nodes", phase=WatchPhase.WATCHING, objects=1),
        WatchStatus(resource="nodeslos", phase=WatchPhase.ABSENT, last_error=f"404 {HOSTILE}"),
    ),
    writers=(
        WriterState(kind="Device", name="n", publisher="device", phase=WriterPhase.IDLE, written=3),
    ),
    events=None,
    kubelet=KubeletStatus(pods="ok"),
)


def page(status: ClusterServiceStatus | None, slo: SnapshotPart[NodeSloView] = NEVER) -> str:
    cluster = ClusterView(is_clustered=True, slo=slo)
    return render_page(StillView(eight_cards(cluster=cluster, cluster_service=status)))


def test_standalone_mode_has_no_cluster_to_show() -> None:
    assert ">Cluster</h2>" not in page(None)


def test_answers_and_watches_are_visible_at_a_glance() -> None:
    shown = page(STATUS)
    for words in ("answered 3 s ago", "1 object, heard never", "absent", "> idle<", "> ok<"):
        assert words in shown


def test_an_object_that_is_held_says_why_and_by_whom() -> None:
    rival = FieldConflict(
        manager=f"koordlet{HOSTILE}", fields=tuple(f".spec.f{n}" for n in range(6))
    )
    writer_state = WriterState(
        kind="Device",
        name="n",
        publisher="device",
        phase=WriterPhase.IN_CONFLICT,
        error="held by koordlet",
        last_ack_s=factory.BOOT_S - 60,
        conflicts=(replace(rival, time_s=factory.BOOT_S - 5),),
    )
    shown = page(replace(STATUS, writers=(writer_state,)))
    assert "> held<" in shown
    assert "held by koordlet" in shown
    assert "60 s ago" in shown
    assert ".spec.f3 and 2 more (5 s ago)" in shown
    assert HOSTILE not in shown


@pytest.mark.parametrize(
    ("slo", "words"),
    [
        pytest.param(NEVER, "none: defaults, frozen", id="never told"),
        pytest.param(SnapshotPart(NodeSloView(), factory.NOW_S), "none: defaults<", id="none"),
        pytest.param(
            SnapshotPart(SLO, factory.NOW_S),
            "version 12, confirmed 3 s ago; refused values: 1,",
            id="one",
        ),
        pytest.param(SnapshotPart(SLO, factory.NOW_S - 9000), "in force, frozen", id="stale"),
        pytest.param(
            SnapshotPart(build_slo_view(5, SLO), factory.NOW_S), "cannot be used", id="unreadable"
        ),
    ],
)
def test_the_node_slo_says_how_sure_of_it_we_are(
    slo: SnapshotPart[NodeSloView], words: str
) -> None:
    assert words in page(STATUS, slo)


def test_values_of_the_node_slo_that_are_not_used_are_listed_with_their_reason() -> None:
    shown = page(STATUS, SnapshotPart(SLO, factory.NOW_S))
    assert "spec.cpuBurstStrategy.policy" in shown
    assert "must be one of none, cpuBurstOnly, cfsQuotaBurstOnly, auto" in shown
    assert HOSTILE not in shown
