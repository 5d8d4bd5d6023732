"""LoadAware: refuses nodes that are too busy, and scores the idle capacity of the others.

Rules and texts are those of Koordinator's `pkg/scheduler/plugins/loadaware`. A node's usage is that
of its NodeMetric, plus estimates of pods that were bound too late to be in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.wire_formats.cluster_objects import parse_duration_s
from agent.wire_formats.json_values import JSON_ERRORS
from plugins.scheduler.devices.device_table import Amounts
from plugins.scheduler.load.load_settings import (
    AggregatedUsage,
    AggregationType,
    CpuMemory,
    LoadScoreSettings,
)
from plugins.scheduler.load.pod_load import RESOURCES, PodLoad
from plugins.scheduler.load.reported_usage import ReportedUsage

EXPIRED = "node(s) nodeMetric expired"
THRESHOLDS_ANNOTATION = "scheduling.koordinator.sh/usage-thresholds"
MAX_SCORE = 100


class LoadThresholds(msgspec.Struct, frozen=True):
    """The usage in percent above which a node refuses pods."""

    usage: CpuMemory
    prod_usage: CpuMemory
    aggregated: AggregatedUsage | None = None


class _AggregatedEntry(msgspec.Struct, rename="camel"):
    usage_thresholds: dict[str, int] | None = None
    usage_aggregation_type: AggregationType | None = None
    usage_aggregated_duration: str = ""


class _ThresholdsEntry(msgspec.Struct, rename="camel"):
    usage_thresholds: dict[str, int] | None = None
    prod_usage_thresholds: dict[str, int] | None = None
    aggregated_usage: _AggregatedEntry | None = None


_THRESHOLDS = msgspec.json.Decoder(_ThresholdsEntry)


def node_thresholds(settings: LoadScoreSettings, annotation: str | None) -> LoadThresholds:
    """Return the thresholds of a node: those of its annotation replace those of the settings."""
    thresholds = LoadThresholds(
        settings.usage_thresholds, settings.prod_usage_thresholds, settings.aggregated
    )
    if annotation is None:
        return thresholds
    try:
        entry = _THRESHOLDS.decode(annotation)
        aggregated = _aggregated(entry.aggregated_usage)
    except JSON_ERRORS:
        return thresholds
    return LoadThresholds(
        _percents(entry.usage_thresholds) or thresholds.usage,
        _percents(entry.prod_usage_thresholds) or thresholds.prod_usage,
        aggregated or thresholds.aggregated,
    )


def _percents(thresholds: Mapping[str, int] | None) -> CpuMemory | None:
    if not thresholds:
        return None
    return CpuMemory(**{name: max(0, thresholds.get(name, 0)) for name in RESOURCES})


def _aggregated(entry: _AggregatedEntry | None) -> AggregatedUsage | None:
    percents = None if entry is None else _percents(entry.usage_thresholds)
    if entry is None or percents is None:
        return None
    duration_s = parse_duration_s(entry.usage_aggregated_duration) or 0
    return AggregatedUsage(
        usage_thresholds=percents,
        usage_aggregation_type=entry.usage_aggregation_type,
        usage_duration_s=max(0, int(duration_s)),
    )


class UsageView(msgspec.Struct, frozen=True):
    """The usage of a node that is compared: that of prod pods, an aggregate, or the average."""

    is_prod: bool = False
    aggregation: str | None = None
    duration_s: int = 0


NO_PERCENTS = CpuMemory()
AVERAGE_VIEW, PROD_VIEW = UsageView(), UsageView(is_prod=True)


def filter_view(pod: PodLoad, thresholds: LoadThresholds) -> tuple[UsageView, CpuMemory]:
    """Return the usage that is compared for a pod, and its thresholds."""
    if pod.is_prod and thresholds.prod_usage != NO_PERCENTS:
        return PROD_VIEW, thresholds.prod_usage
    aggregated = thresholds.aggregated
    if (
        aggregated is not None
        and aggregated.usage_aggregation_type
        and aggregated.usage_thresholds != NO_PERCENTS
    ):
        view = UsageView(
            aggregation=aggregated.usage_aggregation_type, duration_s=aggregated.usage_duration_s
        )
        return view, aggregated.usage_thresholds
    return AVERAGE_VIEW, thresholds.usage


def score_view(pod: PodLoad, settings: LoadScoreSettings) -> UsageView:
    """Return the usage that is scored for a pod."""
    if pod.is_prod and settings.scores_prod_usage:
        return UsageView(is_prod=True)
    aggregated = settings.aggregated
    if aggregated is not None and aggregated.score_aggregation_type:
        return UsageView(
            aggregation=aggregated.score_aggregation_type, duration_s=aggregated.score_duration_s
        )
    return UsageView()


def estimated_usage(
    usage: ReportedUsage, pods: Iterable[PodLoad], settings: LoadScoreSettings, view: UsageView
) -> Amounts:
    """Return the usage of a node with all pods that are assigned to it."""
    base, is_complete = _base(usage, settings, view)
    total = {name: base.get(name, 0) for name in RESOURCES}
    for pod in pods:
        if view.is_prod and not pod.is_prod:
            continue
        entry = usage.pods.get(pod.name)
        reported: Amounts = {} if entry is None else entry.amounts
        if is_complete and reported and not _is_estimated(pod, usage, settings):
            continue
        for name, estimate in pod_estimate(pod, settings).items():
            total[name] += max(0, estimate - (reported.get(name, 0) if is_complete else 0))
    return total


def _base(
    usage: ReportedUsage, settings: LoadScoreSettings, view: UsageView
) -> tuple[Amounts, bool]:
    """Return the reported usage, and whether it has the pods in it."""
    if view.is_prod:
        prod = [pod.amounts for pod in usage.pods.values() if pod.is_prod]
        if settings.prod_usage_includes_system:
            prod.append(usage.system)
        return {name: sum(one.get(name, 0) for one in prod) for name in RESOURCES}, True
    if view.aggregation is None:
        return usage.usage, True
    aggregate = usage.aggregate(view.aggregation, view.duration_s)
    if aggregate is not None:
        return aggregate, True
    return ({}, False) if view.duration_s else (usage.usage, True)


def _is_estimated(pod: PodLoad, usage: ReportedUsage, settings: LoadScoreSettings) -> bool:
    """Return whether a pod has not reached its usual usage yet."""
    if usage.updated_s is None:
        return True
    after_scheduled_s = settings.estimated_s_after_scheduled
    after_initialized_s = settings.estimated_s_after_initialized
    if settings.allows_pod_estimates:
        after_scheduled_s = pod.own_s_after_scheduled or after_scheduled_s
        after_initialized_s = pod.own_s_after_initialized or after_initialized_s
    if pod.bound_s is not None:
        if pod.bound_s > usage.updated_s - usage.report_interval_s:
            return True
        if after_scheduled_s and pod.bound_s + after_scheduled_s > usage.updated_s:
            return True
    return bool(
        after_initialized_s
        and pod.initialized_s is not None
        and pod.initialized_s + after_initialized_s > usage.updated_s
    )


def pod_estimate(pod: PodLoad, settings: LoadScoreSettings) -> Amounts:
    """Return the estimated usage of a pod."""
    factors, allows_own = settings.scaling_factors, settings.allows_pod_estimates
    return {name: pod.estimate(name, factors, allows_own=allows_own) for name in RESOURCES}


def is_expired(usage: ReportedUsage, settings: LoadScoreSettings, now_s: float) -> bool:
    """Return whether a NodeMetric is too old to decide by."""
    return usage.updated_s is None or now_s - usage.updated_s > settings.expiration_s


def exceeded_threshold(
    usage: Amounts, estimate: Amounts, allocatable: Amounts, thresholds: CpuMemory, view: UsageView
) -> str:
    """Return why a node of this usage refuses a pod of this estimate; empty if it does not."""
    for name in RESOURCES:
        threshold, amount = thresholds.of(name), allocatable.get(name, 0)
        if threshold and amount:
            used = usage[name] + estimate[name]
            if (used * 200 + amount) // (2 * amount) > threshold:
                kind = "aggregated usage" if view.aggregation else "usage"
                return f"node(s) {name} {kind} exceed threshold"
    return ""


def load_score(
    usage: Amounts, estimate: Amounts, allocatable: Amounts, settings: LoadScoreSettings
) -> int:
    """Return 0 to 100: the idle part of the node, once a pod of this estimate is there."""
    weights, weight_sum = settings.weights, settings.dominant_resource_weight
    score, dominant = 0, MAX_SCORE
    for name in RESOURCES:
        weight, amount = weights.of(name), allocatable.get(name, 0)
        if weight or settings.dominant_resource_weight:
            used = usage[name] + estimate[name]
            least = (amount - used) * MAX_SCORE // amount if amount and used <= amount else 0
            score += weight * least
            weight_sum += weight
            dominant = min(dominant, least)
    score += settings.dominant_resource_weight * dominant
    return score // weight_sum if weight_sum else 0
