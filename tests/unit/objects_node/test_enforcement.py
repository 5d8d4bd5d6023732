"""The Node's condition `EnforcementHealthy`."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.objects.fault_conditions import merge_node_conditions
from agent.objects.node import NodeConditionPublisher
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import (
    EnforcementView,
    FileCondition,
    StrategyState,
    StrategyStatus,
)
from tests.factory import BOOT_S, gpu, nic
from tests.unit.objects_node.test_condition import snapshot_with

NOW_S = BOOT_S + 7200
ACTIVE = StrategyStatus(name="cpu_burst", mode="on", state=StrategyState.ACTIVE)
Tree = Any


def body(view: EnforcementView, *, has_card: bool = True) -> Tree:
    snapshot = snapshot_with(gpu(0) if has_card else nic(0))
    snapshot = replace(snapshot, enforcement=SnapshotPart(view, 1.0))
    return NodeConditionPublisher().render(snapshot, NOW_S)[0].body


def condition(view: EnforcementView, **more: bool) -> Tree:
    """Return the condition; `None` without one."""
    listed = {one["type"]: one for one in body(view, **more)["status"]["conditions"]}
    return listed.get("EnforcementHealthy")


def problems(*reasons: str) -> tuple[FileCondition, ...]:
    return tuple(FileCondition(reason=reason, message=f"about {reason}") for reason in reasons)


def test_it_is_true_while_requested_values_are_set() -> None:
    view = EnforcementView(strategies=(ACTIVE,), turned_s=BOOT_S + 10)
    for has_card in (True, False):
        one = condition(view, has_card=has_card)
        assert (one["status"], one["reason"]) == ("True", "AllSet")


@pytest.mark.parametrize("state", [StrategyState.OFF, StrategyState.IDLE])
def test_without_any_request_there_is_none(state: StrategyState) -> None:
    assert condition(EnforcementView(strategies=(replace(ACTIVE, state=state),))) is None
    assert condition(EnforcementView()) is None


def test_a_lasting_problem_makes_it_false_with_its_reason() -> None:
    view = EnforcementView(
        strategies=(ACTIVE,), conditions=problems("ForeignWriter"), turned_s=BOOT_S + 10
    )
    one = condition(view)
    assert (one["status"], one["reason"]) == ("False", "ForeignWriter")
    assert one["message"] == "about ForeignWriter"
    several = condition(replace(view, conditions=problems("WritesStopped", "StrategyFailed")))
    assert (several["reason"], several["message"]) == (
        "SeveralReasons",
        "WritesStopped; StrategyFailed",
    )


def test_many_problems_are_bounded() -> None:
    view = EnforcementView(conditions=problems(*(f"R{number}" * 500 for number in range(100))))
    assert len(condition(view)["message"]) <= 1024


def test_its_time_is_that_of_the_change_and_nothing_is_written_while_it_stands() -> None:
    view = EnforcementView(strategies=(ACTIVE,), turned_s=BOOT_S + 10)
    live = body(view)
    later = body(replace(view, turned_s=BOOT_S + 500))
    assert merge_node_conditions(live, later) == live
    broken = body(replace(view, conditions=problems("A"), turned_s=BOOT_S + 500))
    merged: Tree = merge_node_conditions(live, broken)
    times = {one["type"]: one["lastTransitionTime"] for one in merged["status"]["conditions"]}
    before = {one["type"]: one["lastTransitionTime"] for one in live["status"]["conditions"]}
    assert times["EnforcementHealthy"] > before["EnforcementHealthy"]
