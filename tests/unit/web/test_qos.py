"""The page's section about quality of service."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import AuditRecord
from agent.snapshot.self_check import (
    EnforcementView,
    FileCondition,
    StrategyState,
    StrategyStatus,
)
from agent.web.page.document import render_page
from agent.web.page.qos_section import MAX_CHANGES, qos_section
from tests import factory
from tests.unit.web.view import HOSTILE, StillView, eight_cards

CHANGE = AuditRecord(
    wall_s=1.7e9,
    owner="cpu_suppression",
    path=f"/sys/fs/cgroup/cpuset/kubepods/{HOSTILE}/cpuset.cpus",
    key="cpuset.cpus",
    old="0-63",
    new="0-3",
    source="NodeSLO spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent",
)


def render_part(*changes: AuditRecord, **members: object) -> str:
    status = StrategyStatus(
        name="cpu_suppression",
        mode="on",
        state=StrategyState.ACTIVE,
        message=HOSTILE,
        values=9,
        figures=(("suppressed_cpus", 12.0), ("budget_milli", 3500.5)),
    )
    view = replace(EnforcementView(strategies=(status,)), **members)
    snapshot = replace(
        factory.snapshot(), enforcement=SnapshotPart(view, factory.NOW_S), audit=changes
    )
    return qos_section(snapshot)


def test_each_strategy_has_its_mode_state_figures_and_why() -> None:
    page = render_part()
    for words in ("cpu suppression", "active", "suppressed cpus", ">12<", ">3500.5<", ">9<"):
        assert words in page
    assert "alert(&#x27;x&#x27;)" in page
    assert "<script>" not in page


def test_the_last_changes_are_shown_the_newest_first_with_the_field_that_requests_them() -> None:
    old = replace(CHANGE, old="x" * 5000, new="7", source="", message="set cpus to 7")
    page = render_part(*[replace(CHANGE, new=f"0-{number}") for number in range(100)], old)
    assert page.index("<strong>7</strong>") < page.index("<strong>0-99</strong>")
    assert "cpuSuppressThresholdPercent" in page
    assert "set cpus to 7" in page
    assert page.count("→") == MAX_CHANGES
    assert "x" * 100 not in page


def test_refused_planned_and_restored_changes_say_so() -> None:
    assert "errno 22" in render_part(replace(CHANGE, errno=22))
    assert "planned" in render_part(replace(CHANGE, planned=True))
    assert "original value restored" in render_part(replace(CHANGE, restore="restored", source=""))
    assert "another program has written" in render_part(
        replace(CHANGE, restore="foreign", source="")
    )


def test_a_freeze_a_brake_and_lasting_problems_stand_before_the_table() -> None:
    condition = FileCondition(reason="ForeignWriter", message="files are written by others")
    page = render_part(is_frozen=True, brake="101 writes were refused", conditions=(condition,))
    for words in ("has not confirmed the NodeSLO", "101 writes were refused", "ForeignWriter"):
        assert page.index(words) < page.index("<table")


def test_without_strategies_and_changes_there_is_no_section() -> None:
    assert qos_section(factory.snapshot()) == ""
    none: NodeSnapshot = replace(
        factory.snapshot(), enforcement=SnapshotPart(EnforcementView(), 1.0)
    )
    assert qos_section(none) == ""


def test_the_page_has_the_section() -> None:
    view = EnforcementView(
        strategies=(StrategyStatus(name="cpu_burst", mode="on", state=StrategyState.IDLE),)
    )
    page = render_page(StillView(eight_cards(enforcement=SnapshotPart(view, 1.0))))
    assert ">Quality of service</h2>" in page
