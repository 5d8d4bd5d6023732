"""Turns states of strategies that last into conditions: pure, with the times in a state.

A strategy that waits for its first sample, or a cgroup that is being made, is no problem; one that
does not do for long what a NodeSLO asks for is reported once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.snapshot.self_check import EnforcementView, FileCondition, StrategyState, StrategyStatus

LASTING_S = 10.0

_REASONS = {
    StrategyState.FAILED: "StrategyFailed",
    StrategyState.UNSUPPORTED: "StrategyUnsupported",
    StrategyState.WAITING: "StrategyWaiting",
}
FROZEN_REASON = "EnforcementFrozen"
STOPPED_REASON = "EnforcementStopped"
_STANDING_STILL = "files keep their values, and nothing new is decided"


class ConditionState(msgspec.Struct, frozen=True, kw_only=True):
    """Since when each strategy is in its state; times are monotonic."""

    since: Mapping[str, tuple[StrategyState, float]] = MappingProxyType({})
    frozen_since_s: float | None = None


def strategy_conditions(
    view: EnforcementView, state: ConditionState, now_s: float, *, is_clustered: bool
) -> tuple[tuple[FileCondition, ...], ConditionState]:
    """Return the conditions of this cycle and the state for the next one.

    Without a cluster nobody can ask for anything, so that nothing is frozen.
    """
    since = {strategy.name: _since(strategy, state, now_s) for strategy in view.strategies}
    may_decide = any(strategy.state is not StrategyState.OFF for strategy in view.strategies)
    frozen_since_s = None
    if view.is_frozen and is_clustered and may_decide:
        frozen_since_s = now_s if state.frozen_since_s is None else state.frozen_since_s
    conditions = [
        FileCondition(reason=_REASONS[strategy.state], message=_message(strategy))
        for strategy in view.strategies
        if strategy.state in _REASONS and now_s - since[strategy.name][1] >= LASTING_S
    ]
    if frozen_since_s is not None and now_s - frozen_since_s >= LASTING_S:
        messages = [
            strategy.message
            for strategy in view.strategies
            if strategy.state is StrategyState.FROZEN
        ]
        message = f"{next(iter(messages), '')}: {_STANDING_STILL}".removeprefix(": ")
        conditions.append(FileCondition(reason=FROZEN_REASON, message=message))
    if view.brake:
        conditions.append(FileCondition(reason=STOPPED_REASON, message=view.brake))
    return tuple(conditions), ConditionState(since=since, frozen_since_s=frozen_since_s)


def _since(
    status: StrategyStatus, state: ConditionState, now_s: float
) -> tuple[StrategyState, float]:
    before = state.since.get(status.name)
    return before if before is not None and before[0] is status.state else (status.state, now_s)


def _message(status: StrategyStatus) -> str:
    return f"{status.name}: {status.message or status.state.value}"
