"""Which states of strategies become conditions, and when."""

from __future__ import annotations

import pytest

from agent.qos.conditions import LASTING_S, ConditionState, strategy_conditions
from agent.snapshot.self_check import EnforcementView, StrategyState, StrategyStatus


def view(state: StrategyState, *, frozen: bool = False, brake: str = "") -> EnforcementView:
    status = StrategyStatus(name="cpu_burst", mode="on", state=state, message="no cpu.max.burst")
    return EnforcementView(strategies=(status,), is_frozen=frozen, brake=brake)


def reasons_after(
    seconds: float, *views: EnforcementView, is_clustered: bool = True
) -> list[tuple[str, str]]:
    """Return the conditions of the last view, where the others each lasted so long."""
    state, now_s = ConditionState(), 100.0
    conditions, state = strategy_conditions(views[0], state, now_s, is_clustered=is_clustered)
    for one in views:
        now_s += seconds
        conditions, state = strategy_conditions(one, state, now_s, is_clustered=is_clustered)
    return [(condition.reason, condition.message) for condition in conditions]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (StrategyState.FAILED, "StrategyFailed"),
        (StrategyState.UNSUPPORTED, "StrategyUnsupported"),
        (StrategyState.WAITING, "StrategyWaiting"),
    ],
)
def test_a_state_that_lasts_is_a_condition_that_names_the_strategy_and_why(
    state: StrategyState, reason: str
) -> None:
    assert reasons_after(LASTING_S - 0.1, view(state)) == []
    assert reasons_after(LASTING_S, view(state)) == [(reason, "cpu_burst: no cpu.max.burst")]


@pytest.mark.parametrize("state", [StrategyState.OFF, StrategyState.IDLE, StrategyState.ACTIVE])
def test_what_is_in_order_is_no_condition(state: StrategyState) -> None:
    assert reasons_after(10_000.0, view(state)) == []


def test_a_state_that_changes_begins_anew() -> None:
    failed, active = view(StrategyState.FAILED), view(StrategyState.ACTIVE)
    assert reasons_after(9.0, failed, active, failed) == []


def test_a_lasting_freeze_is_one_condition_in_a_cluster_only() -> None:
    frozen = view(StrategyState.FROZEN, frozen=True)
    assert reasons_after(LASTING_S - 0.1, frozen) == []
    ((reason, message),) = reasons_after(LASTING_S, frozen)
    assert reason == "EnforcementFrozen"
    assert "files keep their values" in message
    assert reasons_after(LASTING_S, frozen, is_clustered=False) == []
    assert reasons_after(LASTING_S, view(StrategyState.OFF, frozen=True)) == []


def test_a_brake_is_a_condition_at_once() -> None:
    braked = view(StrategyState.ACTIVE, brake="101 writes were refused within 10 minutes")
    assert reasons_after(0.0, braked) == [
        ("EnforcementStopped", "101 writes were refused within 10 minutes")
    ]
