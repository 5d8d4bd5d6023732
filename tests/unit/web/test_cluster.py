"""What the page says of the cluster."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.kube.session.state import SessionState
from agent.kube.watch.account import WatchState
from agent.kube.watch.state import Phase as WatchPhase
from agent.kubelet.base import KubeletState
from agent.model.cluster.facts import ClusterFacts
from agent.model.part import Part
from agent.model.slo.in_force import slo_view
from agent.model.slo.view import SloView
from agent.publish.cluster.state import Phase, Rival, WriterState
from agent.publish.series.cluster import ClusterStatus
from agent.web.page import render_page
from tests import factory
from tests.unit.web.view import HOSTILE, StillView, eight_cards

SLO = slo_view(
    {"metadata": {"resourceVersion": "12"}, "spec": {"cpuBurstStrategy": {"policy": HOSTILE}}},
    SloView(),
)
NEVER = Part(SloView())
STATUS = ClusterStatus(
    session=SessionState(reachable=True, last_answer_s=factory.NOW_S),
    watches=(
        WatchState(resource="nodes", phase=WatchPhase.WATCHING, objects=1),
        WatchState(resource="nodeslos", phase=WatchPhase.ABSENT, last_error=f"404 {HOSTILE}"),
    ),
    writers=(
        WriterState(kind="Device", name="n", publisher="device", phase=Phase.IDLE, written=3),
    ),
    events=None,
    kubelet=KubeletState(pods="ok"),
)


def page(status: ClusterStatus | None, slo: Part[SloView] = NEVER) -> str:
    shown = eight_cards(cluster=ClusterFacts(clustered=True, slo=slo))
    return render_page(StillView(shown, status=status))


def test_standalone_mode_has_no_cluster_to_show() -> None:
    assert "<h2>Cluster</h2>" not in page(None)


def test_who_answers_and_what_is_followed_are_seen_at_a_glance() -> None:
    shown = page(STATUS)
    for words in ("answered 3 s ago", "1 object, heard never", "absent", "> idle<", "> ok<"):
        assert words in shown


def test_an_object_that_is_held_says_why_and_by_whom() -> None:
    rival = Rival(name=f"koordlet{HOSTILE}", fields=tuple(f".spec.f{n}" for n in range(6)))
    held = WriterState(
        kind="Device",
        name="n",
        publisher="device",
        phase=Phase.HELD,
        error="held by koordlet",
        last_ack_s=factory.BOOT_S - 60,
        rivals=(replace(rival, time_s=factory.BOOT_S - 5),),
    )
    shown = page(replace(STATUS, writers=(held,)))
    assert "> held<" in shown
    assert "held by koordlet" in shown
    assert "60 s ago" in shown
    assert ".spec.f3 and 2 more (5 s ago)" in shown
    assert HOSTILE not in shown


@pytest.mark.parametrize(
    ("slo", "words"),
    [
        pytest.param(NEVER, "none: defaults, frozen", id="never told"),
        pytest.param(Part(SloView(), factory.NOW_S), "none: defaults<", id="none"),
        pytest.param(
            Part(SLO, factory.NOW_S), "version 12, confirmed 3 s ago; refused values: 1,", id="one"
        ),
        pytest.param(Part(SLO, factory.NOW_S - 9000), "in force, frozen", id="stale"),
        pytest.param(Part(slo_view(5, SLO), factory.NOW_S), "cannot be used", id="unreadable"),
    ],
)
def test_the_node_slo_says_how_sure_of_it_we_are(slo: Part[SloView], words: str) -> None:
    assert words in page(STATUS, slo)


def test_values_of_the_node_slo_that_are_not_used_are_listed_with_their_reason() -> None:
    shown = page(STATUS, Part(SLO, factory.NOW_S))
    assert "spec.cpuBurstStrategy.policy" in shown
    assert "must be one of none, cpuBurstOnly, cfsQuotaBurstOnly, auto" in shown
    assert HOSTILE not in shown
