"""Explains one pod: which rules of evictions may take it, in which order, and what holds them."""

from __future__ import annotations

from collections.abc import Iterable

from agent.qos.eviction.amounts import EvictionFeature, usage_limits
from agent.qos.eviction.decision import evict, eviction_obstacle
from agent.qos.eviction.history import EvictionHistory
from agent.qos.eviction.state import EvictionInputs, EvictionState, ReportState
from agent.qos.eviction.tasks import TaskBuilder
from agent.qos.eviction.victims import (
    CPU,
    MEMORY,
    REQUEST_FEATURES,
    Amounts,
    EvictionPod,
    exclusion,
    used_resource,
    victims,
)
from agent.snapshot.pod import EvictionRuleView, PodEvictionView
from agent.snapshot.slo import ResourceThresholds

RELEASED = "it was evicted, or it terminates: what it has counts as released"
USED_UNITS = {CPU: "cpu_milli", MEMORY: "memory_bytes"}


def explain_rules(
    inputs: EvictionInputs, state: EvictionState, pod: EvictionPod, mode: str
) -> tuple[EvictionRuleView, ...]:
    """Return what the rules of one loop, whose strategy has this mode, mean for a pod."""
    decision = evict(inputs, state)
    obstacle = eviction_obstacle(inputs, decision.state)
    usage = TaskBuilder(inputs, decision.state)
    ending_uids = {*inputs.history.ending(inputs.now_s), *inputs.history.ending_until_s}
    uid, views = pod.ref.uid, []
    for report in decision.reports:
        reasons = [report.reason]
        if report.state not in (ReportState.OFF, ReportState.INVALID):
            reasons += [_usage_text(report.feature, usage, inputs.slo), obstacle]
        order = victims(report.feature, inputs.pods, inputs.slo)
        candidates = [one.ref.uid for one in order if one.ref.uid not in ending_uids]
        reason = exclusion(report.feature, pod, inputs.slo)
        view = EvictionRuleView(
            rule=report.feature.value,
            mode=mode,
            state=report.state.value,
            reason="; ".join(dict.fromkeys(filter(None, reasons))),
            release=_rows(report.release),
            exclusion=reason or (RELEASED if uid in ending_uids else ""),
            place=candidates.index(uid) + 1 if uid in candidates else 0,
            candidates=len(candidates),
        )
        views.append(view)
    return tuple(views)


def _usage_text(feature: EvictionFeature, usage: TaskBuilder, slo: ResourceThresholds) -> str:
    """Return how near the usage is to the threshold; empty for a rule that compares requests."""
    limits, resource = usage_limits(feature, slo), used_resource(feature)
    used, capacity = usage.used(resource), usage.capacity(resource)
    if feature in REQUEST_FEATURES or limits is None or used is None or not capacity:
        return ""
    return (
        f"{used * 100 // capacity} % of the node's {resource} is used;"
        f" it evicts from {limits.threshold} % down to {limits.lower} %"
    )


def explain_pod(
    pod: EvictionPod,
    history: EvictionHistory,
    now_s: float,
    rules: Iterable[EvictionRuleView],
) -> PodEvictionView:
    """Return what decides over a pod, with its rules."""
    return PodEvictionView(
        protection=pod.protection,
        eviction_priority=pod.eviction_priority,
        priority=pod.priority,
        label_priority=pod.priority if pod.label_priority is None else pod.label_priority,
        used=_rows({USED_UNITS[name]: amount for name, amount in pod.used.items()}),
        requested=_rows(pod.requests),
        recently=_recent_text(history, pod.ref.uid, now_s),
        rules=tuple(rules),
    )


def _rows(amounts: Amounts) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(amounts.items()))


def _recent_text(history: EvictionHistory, uid: str, now_s: float) -> str:
    if uid in history.in_flight:
        return "its eviction is requested, and not answered"
    if history.ending_until_s.get(uid, 0.0) > now_s:
        return RELEASED
    left_s = history.blocked_until_s.get(uid, 0.0) - now_s
    if left_s > 0:
        return f"its eviction was refused, as by a disruption budget; next try in {left_s:.0f} s"
    return ""
