"""The usage of a node and its pods as its NodeMetric reports it. Untrusted input."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from agent.wire_formats.cluster_objects import ObjectMeta, parse_duration_s
from plugins.scheduler.devices.device_table import Amounts
from plugins.scheduler.pod_object import CPU, MEMORY, parse_amounts

DEFAULT_REPORT_INTERVAL_S = 60.0
MAX_PODS = 4096  # of one node


class PodUsage(msgspec.Struct, frozen=True):
    """The reported usage of one pod: milli-cores and bytes."""

    amounts: Amounts
    is_prod: bool


class ReportedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One NodeMetric. `updated_s` is wall-clock time; without it the object counts as expired."""

    node: str
    updated_s: float | None = None
    report_interval_s: float = DEFAULT_REPORT_INTERVAL_S
    usage: Amounts = {}
    system: Amounts = {}
    aggregates: Mapping[int, Mapping[str, Amounts]] = {}  # by seconds, then type
    pods: Mapping[str, PodUsage] = {}  # by namespace/name

    def aggregate(self, kind: str, duration_s: int) -> Amounts | None:
        """Return one aggregate; of the longest duration that has the type for a duration of 0."""
        durations = [duration_s] if duration_s else sorted(self.aggregates, reverse=True)
        for duration in durations:
            amounts = self.aggregates.get(duration, {}).get(kind)
            if amounts:
                return amounts
        return None


class _ResourceMap(msgspec.Struct):
    resources: dict[str, str | int | float] | None = None


class _Aggregate(msgspec.Struct):
    duration: str = ""
    usage: dict[str, _ResourceMap] | None = None


class _NodeMap(msgspec.Struct, rename="camel"):
    node_usage: _ResourceMap | None = None
    system_usage: _ResourceMap | None = None
    aggregated_node_usages: list[_Aggregate] | None = None


class _PodMap(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    priority: str = ""
    pod_usage: _ResourceMap | None = None


class _UsageStatus(msgspec.Struct, rename="camel"):
    update_time: str | None = None
    node_metric: _NodeMap | None = None
    pods_metric: list[_PodMap] | None = None


class _Policy(msgspec.Struct, rename="camel"):
    report_interval_seconds: int | None = None


class _Spec(msgspec.Struct, rename="camel"):
    metric_collect_policy: _Policy | None = None


class ReportedUsageObject(msgspec.Struct):
    """The fields of a NodeMetric's JSON that are read; `reported_usage` makes a usage of it."""

    metadata: ObjectMeta
    spec: _Spec | None = None
    status: _UsageStatus | None = None


def reported_usage(body: ReportedUsageObject) -> ReportedUsage:
    """Return the usage that an object reports."""
    status = body.status or _UsageStatus()
    policy = (body.spec and body.spec.metric_collect_policy) or _Policy()
    node = status.node_metric or _NodeMap()
    interval_s = policy.report_interval_seconds or 0
    return ReportedUsage(
        node=body.metadata.name,
        updated_s=parse_time_s(status.update_time),
        report_interval_s=float(interval_s) if interval_s > 0 else DEFAULT_REPORT_INTERVAL_S,
        usage=_amounts(node.node_usage),
        system=_amounts(node.system_usage),
        aggregates={
            int(duration_s): {name: _amounts(one) for name, one in (entry.usage or {}).items()}
            for entry in node.aggregated_node_usages or ()
            if (duration_s := parse_duration_s(entry.duration)) is not None
        },
        pods={
            f"{one.namespace}/{one.name}": PodUsage(
                _amounts(one.pod_usage), is_prod=one.priority == "koord-prod"
            )
            for one in (status.pods_metric or ())[:MAX_PODS]
        },
    )


def _amounts(usage: _ResourceMap | None) -> Amounts:
    amounts = (usage.resources if usage is not None else None) or {}
    return parse_amounts(
        {name: str(value) for name, value in amounts.items() if name in (CPU, MEMORY)}
    )


def parse_time_s(text: str | None) -> float | None:
    """Return the wall-clock seconds of a time in an object; `None` if it is invalid."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
