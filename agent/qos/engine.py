"""Asks all strategies once a cycle, within the limits of their modes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from agent.cgroup.enforcement import EnforcementPlan, StrategyValues
from agent.cgroup.layout import CgroupLayout
from agent.config.containers import ENFORCE_MODES, EnforceSettings
from agent.qos.inputs import QosInputBuilder
from agent.qos.strategy import AnyStrategy, CurrentValues, QosInputs, StrategyPlan
from agent.slo.status import is_frozen
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import EnforcementView, StrategyState, StrategyStatus

log = logging.getLogger(__name__)

OFF, PLAN, ON = ENFORCE_MODES
UNDECIDED = (StrategyState.FROZEN, StrategyState.WAITING, StrategyState.FAILED)
NOT_CONFIRMED = "the API server has not confirmed the NodeSLO for too long, or it is unreadable"


def strategy_modes(names: Iterable[str], enforce: EnforceSettings) -> Mapping[str, str]:
    """Return each strategy's mode, which is never more than `enforce.mode`."""
    return {
        name: min(getattr(enforce.strategies, name, OFF), enforce.mode, key=ENFORCE_MODES.index)
        for name in names
    }


class QosEngine:
    """Holds the states of the strategies. Belongs to the collector thread."""

    def __init__(
        self,
        strategies: tuple[AnyStrategy, ...],
        modes: Mapping[str, str],
        interval_s: float,
        slo_stale_s: float,
    ) -> None:
        """Strategies are asked in this order; `interval_s` is that of usage samples."""
        self.modes = modes
        self._strategies = strategies
        self._slo_stale_s = slo_stale_s
        self._builder = QosInputBuilder(interval_s)
        self._states: dict[str, object] = {one.name: one.start() for one in strategies}
        self._values: dict[str, StrategyValues] = {}
        self._failed: dict[str, str] = {}  # the bug of a strategy that was logged

    def plan(
        self, snapshot: NodeSnapshot, layout: CgroupLayout, current: CurrentValues, now_s: float
    ) -> EnforcementPlan:
        """Return what all strategies want now.

        While the NodeSLO is frozen, strategies are not asked: what they wanted last stays.
        """
        inputs = self._builder.build(snapshot, layout, current, now_s)
        frozen = is_frozen(snapshot.cluster.slo, now_s, self._slo_stale_s)
        statuses: list[StrategyStatus] = []
        decided: set[str] = set()
        for strategy in self._strategies:
            mode = self.modes.get(strategy.name, OFF)
            if mode == OFF:
                plan = StrategyPlan(state=StrategyState.OFF)
            elif frozen:
                plan = StrategyPlan(state=StrategyState.FROZEN, message=NOT_CONFIRMED)
            else:
                plan = self._ask(strategy, inputs)
            if plan.state in (StrategyState.FROZEN, StrategyState.FAILED):
                values = self._values.get(strategy.name)
            else:
                values = self._record_values(strategy.name, plan)
            if plan.state not in UNDECIDED:
                decided.add(strategy.name)
            statuses.append(_status(strategy.name, mode, plan, values))
        return EnforcementPlan(
            enforced=self._values_of(ON),
            planned=self._values_of(PLAN),
            owners=frozenset(self._states),
            decided=frozenset(decided),
            view=EnforcementView(strategies=tuple(statuses), is_frozen=frozen),
        )

    def _ask(self, strategy: AnyStrategy, inputs: QosInputs) -> StrategyPlan:
        name = strategy.name
        try:
            plan, self._states[name] = strategy.plan(inputs, self._states[name])
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:200]
            if self._failed.get(name) != text:
                log.error(
                    "strategy_failed", extra={"strategy": name, "error": text}, exc_info=error
                )
            self._failed[name] = text
            return StrategyPlan(state=StrategyState.FAILED, message=text)
        self._failed.pop(name, None)
        return plan

    def _record_values(self, name: str, plan: StrategyPlan) -> StrategyValues | None:
        """Record the desired values; equal ones stay the same object, which costs less later."""
        before = self._values.get(name)
        if not plan.values:
            self._values.pop(name, None)
            return None
        if before is None or (before.values is not plan.values and before.values != plan.values):
            targets = frozenset(desired.target for desired in plan.values)
            self._values[name] = StrategyValues(owner=name, values=plan.values, targets=targets)
        return self._values[name]

    def _values_of(self, mode: str) -> tuple[StrategyValues, ...]:
        return tuple(
            self._values[one.name]
            for one in self._strategies
            if one.name in self._values and self.modes.get(one.name) == mode
        )


def _status(
    name: str, mode: str, plan: StrategyPlan, values: StrategyValues | None
) -> StrategyStatus:
    return StrategyStatus(
        name=name,
        mode=mode,
        state=plan.state,
        message=plan.message,
        values=0 if values is None else len(values.values),
        figures=plan.figures,
    )
