"""Asks all strategies once a cycle, within the limits of their modes."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.cgroup.cpu import UNLIMITED_QUOTA, Bandwidth
from agent.cgroup.enforcement import EnforcementPlan, MemoryReclaim, StrategyValues
from agent.cgroup.keys import CPUS, HIGH, QUOTA, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.reclaim import MemoryReclaimer
from agent.cgroup.write_plan import DesiredValue
from agent.config.containers import ENFORCE_MODES, BrakeSettings, EnforceSettings
from agent.kube.eviction import EvictionService
from agent.qos.brake import BrakeState, step_brake
from agent.qos.eviction.candidacy import explain_pod
from agent.qos.eviction.history import EvictionHistory, advance_history, loop_of, record_requests
from agent.qos.eviction.history_file import EvictionHistoryFile
from agent.qos.eviction.state import EvictionState
from agent.qos.eviction.strategies import EvictionStrategy
from agent.qos.eviction.victims import EvictionPod
from agent.qos.inputs import QosInputBuilder
from agent.qos.strategy import AnyStrategy, CurrentValues, QosInputs, QosPod, StrategyPlan
from agent.slo.requests import requested_strategies
from agent.slo.status import is_frozen
from agent.snapshot.node import IdentityMemo, NodeSnapshot
from agent.snapshot.pod import (
    EvictionFeedback,
    EvictionOutcome,
    EvictionRequest,
    EvictionResult,
    EvictionRuleView,
    PodEvictionView,
)
from agent.snapshot.publications import AuditRecord
from agent.snapshot.self_check import EnforcementView, FileCondition, StrategyState, StrategyStatus
from agent.snapshot.slo import NodeSlo

log = logging.getLogger(__name__)

OFF, PLAN, ON = ENFORCE_MODES
UNDECIDED = (StrategyState.FROZEN, StrategyState.WAITING, StrategyState.FAILED)
DEFAULT_BRAKE = BrakeSettings()
NO_FEEDBACK = EvictionFeedback()
ENDED_PODS = (EvictionOutcome.EVICTED, EvictionOutcome.KILLED)
AUDITED = (*ENDED_PODS, EvictionOutcome.PLANNED)
STOPPED = "stopped"  # by the brake
NOT_CONFIRMED = "the API server has not confirmed the NodeSLO for too long, or it is unreadable"


def strategy_modes(names: Iterable[str], enforce: EnforceSettings) -> Mapping[str, str]:
    """Return each strategy's mode, which is never more than `enforce.mode`."""
    return {
        name: min(getattr(enforce.strategies, name, OFF), enforce.mode, key=ENFORCE_MODES.index)
        for name in names
    }


class PodProtection:
    """Removes the values of pods in protected namespaces from plans.

    On cgroup version 1 the kernel refuses to narrow the group of all best-effort pods while one of
    them has more CPUs or a larger quota. Therefore CPU sets are not removed, nor is the end of a
    quota that exceeds that of the group. For one thread.
    """

    def __init__(self, namespaces: frozenset[str]) -> None:
        self._namespaces = namespaces
        self._cgroups = IdentityMemo[frozenset[str]]()
        self._plans: defaultdict[str, IdentityMemo[StrategyPlan]] = defaultdict(IdentityMemo)

    def apply(self, owner: str, plan: StrategyPlan, inputs: QosInputs) -> StrategyPlan:
        """Return the plan of a strategy without protected pods; the same object while it is."""
        if not self._namespaces or not plan.values:
            return plan
        pods = inputs.pods
        cgroups = self._cgroups.get((pods,), lambda: self._protected_cgroups(pods))
        if not cgroups:
            return plan
        return self._plans[owner].get((plan, cgroups), lambda: _without(plan, cgroups, inputs))

    def _protected_cgroups(self, pods: tuple[QosPod, ...]) -> frozenset[str]:
        return frozenset(
            cgroup
            for pod in pods
            if pod.view.namespace in self._namespaces
            for cgroup in (pod.cgroup, *(container.cgroup for container in pod.containers))
            if cgroup
        )


def _without(plan: StrategyPlan, cgroups: frozenset[str], inputs: QosInputs) -> StrategyPlan:
    limits = {
        value.cgroup: value.value
        for value in plan.values
        if isinstance(value.value, Bandwidth)
        and value.cgroup not in cgroups
        and not _is_end(value.value)
    }
    values: tuple[DesiredValue, ...] = tuple(
        value
        for value in plan.values
        if value.key is CPUS or value.cgroup not in cgroups or _is_obstacle(value, limits, inputs)
    )
    return plan if len(values) == len(plan.values) else msgspec.structs.replace(plan, values=values)


def _is_obstacle(desired: DesiredValue, limits: Mapping[str, Bandwidth], inputs: QosInputs) -> bool:
    """Return whether a group's own quota, which would end, exceeds that of a group above."""
    if inputs.layout.version != 1 or not _is_end(desired.value):
        return False
    current, cgroup = inputs.current, desired.cgroup
    own = current.original(cgroup, QUOTA) or current.value(cgroup, QUOTA)
    return (
        isinstance(own, Bandwidth)
        and not _is_end(own)
        and any(
            cgroup.startswith(f"{group}/") and own.is_looser(limit)
            for group, limit in limits.items()
        )
    )


def _is_end(value: CgroupValue) -> bool:
    return isinstance(value, Bandwidth) and value.quota_us == UNLIMITED_QUOTA


class QosEngine:
    """Holds the states of the strategies. Belongs to the collector thread."""

    def __init__(
        self,
        strategies: tuple[AnyStrategy, ...],
        modes: Mapping[str, str],
        interval_s: float,
        slo_stale_s: float,
        brake_settings: BrakeSettings = DEFAULT_BRAKE,
        protected_namespaces: Iterable[str] = (),
    ) -> None:
        """Strategies are asked in this order; `interval_s` is that of usage samples.

        No strategy writes files of pods in `protected_namespaces`.
        """
        self.modes = modes
        self._strategies = strategies
        self._slo_stale_s = slo_stale_s
        self._builder = QosInputBuilder(interval_s)
        self._protection = PodProtection(frozenset(protected_namespaces))
        self._states: dict[str, object] = {
            strategy.name: strategy.start() for strategy in strategies
        }
        self._values: dict[str, StrategyValues] = {}
        self._failed: dict[str, str] = {}  # the bug of a strategy that was logged
        self.evictions = EvictionHistory()  # of all strategies
        # with those that were only planned, which must not keep others from evicting
        self._planned_evictions = EvictionHistory()
        self._brake_settings = brake_settings
        self._brake = BrakeState()
        self._requests = IdentityMemo[Mapping[str, str]]()  # of the last NodeSLO
        self._inputs: QosInputs | None = None  # of the last cycle
        self._hold = ("", "")  # state and reason of all strategies that decide nothing now

    def plan(
        self,
        snapshot: NodeSnapshot,
        layout: CgroupLayout,
        current: CurrentValues,
        now_s: float,
        feedback: EvictionFeedback = NO_FEEDBACK,
    ) -> EnforcementPlan:
        """Return what all strategies want now.

        While the NodeSLO is frozen, strategies are not asked: what they wanted last stays. While
        the brake holds, nothing is written, restored or evicted, as in plan mode.
        """
        inputs = self._builder.build(snapshot, layout, current, now_s)
        self._record_feedback(snapshot, feedback, now_s)
        is_braked = self._brake.is_holding(now_s)
        inputs = msgspec.structs.replace(inputs, metric_published_s=feedback.metric_published_s)
        evictions: list[EvictionRequest] = []
        reclaims: list[MemoryReclaim] = []
        frozen = is_frozen(snapshot.cluster.slo, now_s, self._slo_stale_s)
        self._inputs, self._hold = inputs, ("", "")
        if frozen:
            self._hold = StrategyState.FROZEN.value, NOT_CONFIRMED
        elif is_braked:
            self._hold = STOPPED, self._brake.reason
        statuses: list[StrategyStatus] = []
        decided: set[str] = set()
        for strategy in self._strategies:
            mode = self.modes.get(strategy.name, OFF)
            if mode == ON and is_braked:
                mode = PLAN
            if mode == OFF:
                plan = self._plan_of_off(strategy.name, inputs.slo)
            elif frozen:
                plan = StrategyPlan(state=StrategyState.FROZEN, message=NOT_CONFIRMED)
            else:
                inputs = msgspec.structs.replace(inputs, evictions=self._history(mode))
                plan = self._ask(strategy, inputs)
                plan = self._protection.apply(strategy.name, plan, inputs)
                evictions += self._record_evictions(plan, now_s, is_planned=mode != ON)
                reclaims += plan.reclaims if mode == ON else ()
            if plan.state in (StrategyState.FROZEN, StrategyState.FAILED):
                values = self._values.get(strategy.name)
            else:
                values = self._record_values(strategy.name, plan)
            if plan.state not in UNDECIDED and not is_braked:
                decided.add(strategy.name)
            statuses.append(_status(strategy.name, mode, plan, values))
        enforced, planned = self._values_of(ON), self._values_of(PLAN)
        return EnforcementPlan(
            enforced=() if is_braked else enforced,
            planned=(*enforced, *planned) if is_braked else planned,
            owners=frozenset(self._states),
            decided=frozenset(decided),
            evictions=tuple(evictions),
            reclaims=tuple(reclaims),
            view=EnforcementView(
                strategies=tuple(statuses),
                is_frozen=frozen,
                brake=self._brake.reason if is_braked else "",
            ),
        )

    def explain_eviction(self, pod_uid: str) -> PodEvictionView | None:
        """Return which rules may evict a pod, by the last cycle; `None`: it lacked the pod."""
        if self._inputs is None:
            return None
        pod: EvictionPod | None = None
        rules: list[EvictionRuleView] = []
        for strategy in self._strategies:
            state, mode = self._states[strategy.name], self.modes.get(strategy.name, OFF)
            if isinstance(strategy, EvictionStrategy) and isinstance(state, EvictionState):
                inputs = msgspec.structs.replace(self._inputs, evictions=self._history(mode))
                explained = strategy.explain(pod_uid, inputs, state, mode)
                if explained is not None:
                    pod = explained[0]
                    rules += (self._held(one, strategy.name) for one in explained[1])
        return None if pod is None else explain_pod(pod, self.evictions, self._inputs.now_s, rules)

    def _held(self, rule: EvictionRuleView, strategy: str) -> EvictionRuleView:
        """Return the rule as its strategy lets it act."""
        state, reason = self._hold
        if rule.mode == OFF:
            state, reason = OFF, _off_reason(strategy)
        return msgspec.structs.replace(rule, state=state, reason=reason) if state else rule

    def record_refusals(self, count: int, now_s: float) -> None:
        """Record writes of strategies that the kernel refused in this cycle."""
        self._brake = step_brake(self._brake, self._brake_settings, now_s, refusals=count)

    def _record_feedback(
        self, snapshot: NodeSnapshot, feedback: EvictionFeedback, now_s: float
    ) -> None:
        terminating = frozenset(pod.uid for pod in snapshot.pods.value if pod.terminating)
        made = [result for result in feedback.results if not result.request.is_planned]
        self.evictions = advance_history(self.evictions, now_s, made, terminating)
        self._planned_evictions = advance_history(
            self._planned_evictions, now_s, feedback.results, terminating
        )
        count = sum(result.outcome in ENDED_PODS for result in feedback.results)
        self._brake = step_brake(self._brake, self._brake_settings, now_s, evictions=count)

    def _record_evictions(
        self, plan: StrategyPlan, now_s: float, *, is_planned: bool
    ) -> tuple[EvictionRequest, ...]:
        requests = tuple(
            msgspec.structs.replace(eviction, is_planned=is_planned) for eviction in plan.evictions
        )
        if not is_planned:
            self.evictions = record_requests(self.evictions, requests, now_s)
        self._planned_evictions = record_requests(self._planned_evictions, requests, now_s)
        return requests

    def _history(self, mode: str) -> EvictionHistory:
        """Return what a strategy of this mode knows of earlier evictions."""
        return self.evictions if mode == ON else self._planned_evictions

    def load_history(self, history: EvictionHistory) -> None:
        """Begin with the evictions of an earlier agent."""
        self.evictions = self._planned_evictions = history

    def _plan_of_off(self, name: str, slo: NodeSlo) -> StrategyPlan:
        """Return the plan of a strategy that is off, which says so if the NodeSLO requests it."""
        requests = self._requests.get((slo,), lambda: requested_strategies(slo))
        field = requests.get(name)
        message = f"NodeSLO {field} asks for it; {_off_reason(name)}" if field else ""
        return StrategyPlan(state=StrategyState.OFF, message=message)

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
            if before is not None and before.targets == targets:
                targets = before.targets
            self._values[name] = StrategyValues(owner=name, values=plan.values, targets=targets)
        return self._values[name]

    def _values_of(self, mode: str) -> tuple[StrategyValues, ...]:
        return tuple(
            self._values[strategy.name]
            for strategy in self._strategies
            if strategy.name in self._values and self.modes.get(strategy.name) == mode
        )


def _off_reason(strategy: str) -> str:
    return f"enforce.strategies.{strategy} or enforce.mode is off"


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


def eviction_record(result: EvictionResult, wall_s: float) -> AuditRecord:
    """Return the record of an eviction, with Koordinator's reason."""
    request, pod = result.request, result.request.pod
    return AuditRecord(
        wall_s=wall_s,
        owner=f"{loop_of(request)}_eviction",
        reason=f"trigger by koordlet feature {request.feature}",
        message=request.message,
        source="NodeSLO spec.resourceUsedThresholdWithBE",
        path=f"pod {pod.namespace}/{pod.name}",
        key="eviction",
        new=result.outcome.value,
        planned=request.is_planned,
    )


class StrategyRunner:
    """Asks the strategies and hands on their evictions. Belongs to the collector thread."""

    def __init__(
        self,
        engine: QosEngine,
        evictions: EvictionService,
        reclaimer: MemoryReclaimer,
        history_file: EvictionHistoryFile,
    ) -> None:
        self._engine = engine
        self._evictions = evictions
        self._reclaimer = reclaimer
        self._history_file = history_file
        self._is_history_loaded = False
        self._results: tuple[EvictionResult, ...] = ()  # that the last plan was made with

    def plan(
        self, snapshot: NodeSnapshot, layout: CgroupLayout, current: CurrentValues, now_s: float
    ) -> EnforcementPlan:
        """Return what the strategies want of files now; their evictions are requested."""
        if not self._is_history_loaded:
            self._engine.load_history(self._history_file.load(now_s))
            self._is_history_loaded = True
        feedback = self._evictions.take_feedback()
        self._results = feedback.results
        plan = self._engine.plan(snapshot, layout, current, now_s, feedback)
        if any(not eviction.is_planned for eviction in plan.evictions):
            self._history_file.save(self._engine.evictions)  # before a crash could forget them
        self._evictions.submit(plan.evictions)
        for reclaim in plan.reclaims:
            directory = layout.directory(HIGH.controller, reclaim.cgroup)
            if directory is not None:
                self._reclaimer.reclaim(directory, reclaim.size_bytes)
        return plan

    def explain_eviction(self, pod_uid: str) -> PodEvictionView | None:
        """Return which rules may evict a pod; `None`: it is not listed."""
        return self._engine.explain_eviction(pod_uid)

    def record_refusals(self, count: int, now_s: float) -> None:
        """Record writes that the kernel refused in this cycle."""
        self._engine.record_refusals(count, now_s)

    def audits(self, wall_s: float) -> Iterator[AuditRecord]:
        """Yield records of the evictions that the last plan was made with."""
        for result in self._results:
            if result.outcome in AUDITED:
                yield eviction_record(result, wall_s)

    def conditions(self) -> Iterator[FileCondition]:
        """Yield conditions of evictions."""
        evictions = self._evictions.status()
        if evictions.blocked:
            count, example = len(evictions.blocked), evictions.blocked[0]
            message = f"disruption budgets protect {count} pods that have to go, as {example}"
            if count == 1:
                message = f"disruption budgets protect 1 pod that has to go: {example}"
            yield FileCondition(reason="EvictionBlocked", message=message)
        if evictions.problem:
            yield FileCondition(reason="EvictionFailed", message=evictions.problem)
        if self._reclaimer.problem:
            yield FileCondition(reason="ReclaimRefused", message=self._reclaimer.problem)
