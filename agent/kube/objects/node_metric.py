"""How a NodeMetric object wants usage to be reported; its status is ours and not read."""

from __future__ import annotations

import msgspec

from agent.kube.objects.duration import parse_duration_s
from agent.kube.objects.metadata import Metadata
from agent.kube.resources import NODE_METRICS
from agent.kube.watch.wire import Kind
from agent.model.cluster.facts import MetricPolicy

MAX_SECONDS = 10 * 365 * 86400
MAX_DURATIONS = 64
MEMORY_POLICIES = ("usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache")


class _Spec(msgspec.Struct, rename="camel"):
    metric_collect_policy: dict[str, object] | None = None


class NodeMetricObject(msgspec.Struct):
    """What is read of a NodeMetric's JSON."""

    metadata: Metadata
    spec: _Spec | None = None


def metric_policy(found: NodeMetricObject) -> MetricPolicy:
    """Return the policy; a value that cannot be meant is one that was not said."""
    said = (found.spec.metric_collect_policy if found.spec else None) or {}
    memory = said.get("nodeMemoryCollectPolicy")
    return MetricPolicy(
        aggregate_s=_seconds(said.get("aggregateDurationSeconds")),
        report_interval_s=_seconds(said.get("reportIntervalSeconds")),
        durations_s=_durations_s(said.get("nodeAggregatePolicy")),
        memory=memory if isinstance(memory, str) and memory in MEMORY_POLICIES else None,
    )


def _seconds(value: object) -> float | None:
    # a bool is an int in Python, but no number of seconds
    return float(value) if type(value) is int and 0 < value <= MAX_SECONDS else None


def _durations_s(aggregation: object) -> tuple[int, ...] | None:
    texts = aggregation.get("durations") if isinstance(aggregation, dict) else None
    if not isinstance(texts, list):
        return None
    durations = [parse_duration_s(text) for text in texts[:MAX_DURATIONS] if isinstance(text, str)]
    return tuple(round(s) for s in durations if s is not None and 1 <= s <= MAX_SECONDS)


OWN_NODE_METRIC: Kind[NodeMetricObject, MetricPolicy] = Kind(
    resource=NODE_METRICS, wire=NodeMetricObject, make=metric_policy
)
