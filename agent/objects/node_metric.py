"""Renders NodeMetric's status: usage of the node, its pods and its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec

from agent.clock import rfc3339
from agent.snapshot.device import VendorDevice
from agent.snapshot.node import NodeSnapshot, SnapshotMemo
from agent.snapshot.pod import PodView
from agent.snapshot.publications import DesiredObject, Json
from agent.snapshot.usage import (
    DeviceUsage,
    NumaAggregate,
    PodAggregate,
    Prediction,
    ResourceUsage,
    UsageAggregate,
)
from agent.wire_formats import api_values, quantities
from agent.wire_formats.annotations import default_priority_class, named_priority_class, qos_class
from agent.wire_formats.device_object import select_devices

API_VERSION = "slo.koordinator.sh/v1alpha1"
AGGREGATE_NAMES = ("avg", "p50", "p90", "p95", "p99")

GPU_CORE = "koordinator.sh/gpu-core"  # percent of one card
GPU_MEMORY = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"

MIN_PERIOD_S = 30.0  # upstream's floor
MAX_PERIOD_S = 86400.0
MISSING_OBJECT_PERIOD_S = 5.0  # while the object does not exist


# by key, in the order of the Device object: what is the same in every entry of one device
Devices = Mapping[str, Json]


class _NamedPod(msgspec.Struct, frozen=True):
    """What is the same in every entry of one pod."""

    uid: str
    fields: Json


class NodeMetricPublisher:
    """Renders the last usage report. koord-manager creates the object itself.

    Nothing is rendered before the first report, nor after a failed one: consumers judge staleness
    by `updateTime`, so it must not change while the values are old.
    """

    name = "node_metric"

    def __init__(self, interval_s: float = 60.0) -> None:
        self.interval_s = max(MIN_PERIOD_S, interval_s)
        self._named_pods = SnapshotMemo(lambda snapshot: (snapshot.pods.value,), _named_pods)

    def period_s(self, snapshot: NodeSnapshot) -> float:
        """Return the seconds to the next report; the object may set them.

        While the object does not exist, the period is short, so that the first report follows its
        creation soon.
        """
        if _lacks_object(snapshot):
            return MISSING_OBJECT_PERIOD_S
        policy = snapshot.cluster.metric_policy.value
        interval_s = (policy.report_interval_s if policy is not None else None) or self.interval_s
        return min(max(MIN_PERIOD_S, interval_s), MAX_PERIOD_S)

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:
        """Return the object with its status; the agent does not write `spec`."""
        report = snapshot.report
        if report.taken_s is None or report.error or _lacks_object(snapshot):
            return ()
        body: Json = {
            "apiVersion": API_VERSION,
            "kind": "NodeMetric",
            "metadata": {"name": snapshot.node.name},
            "status": _status(snapshot, now_s, self._named_pods(snapshot)),
        }
        desired = DesiredObject(
            file_name="nodemetric.yaml",
            api_version=API_VERSION,
            kind="NodeMetric",
            name=snapshot.node.name,
            body=body,
            status_only=True,
        )
        return (desired,)


def _lacks_object(snapshot: NodeSnapshot) -> bool:
    return snapshot.cluster.is_clustered and snapshot.cluster.metric_policy.value is None


def format_duration(seconds: int) -> str:
    """Format seconds as Go's `time.Duration` prints them: 5m0s, 1h0m0s, 45s."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest_s = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{rest_s}s"
    return f"{minutes}m{rest_s}s" if minutes else f"{rest_s}s"


def _status(snapshot: NodeSnapshot, now_s: float, named_pods: Sequence[_NamedPod]) -> Json:
    report = snapshot.report.value
    view = snapshot.devices.value
    published = () if view.provisional_minors else select_devices(view.devices).published
    devices = {device.key: _device_fields(device.info) for device in published}
    node: dict[str, object] = {
        "nodeUsage": _resource_map(report.node, report.devices, devices),
        "systemUsage": _resource_map(report.system),
    }
    if report.aggregates:
        node["aggregatedNodeUsages"] = [_node_usages(a, devices) for a in report.aggregates]
        node["aggregatedSystemUsages"] = [_usages(a, a.system) for a in report.aggregates]
    if report.numa:
        node["numaUsages"] = [_numa_entry(window) for window in report.numa]
    status: dict[str, object] = {"updateTime": rfc3339(now_s), "nodeMetric": node}
    if pods := _pod_entries(named_pods, report.pods, devices):
        status["podsMetric"] = pods
    if applications := _applications(snapshot):
        status["hostApplicationMetric"] = applications
    if report.prediction is not None:
        status |= _predictions(report.prediction)
    return status


def _predictions(prediction: Prediction) -> Json:
    """Return the smaller reclaimable of both predictors and the larger peak, by resource.

    Where nothing can be predicted, the reclaimable is an empty map, as upstream's, and not 0.
    """
    if prediction.error:
        return {"prodReclaimableMetric": {"resource": {}}}
    reclaimable, peak = prediction.reclaimable(), prediction.peak()
    return {
        "prodReclaimableMetric": {"resource": _resource_map(reclaimable)},
        "prodPeakMetric": {"resource": _resource_map(peak)},
    }


def _applications(snapshot: NodeSnapshot) -> list[Json]:
    """Return the applications that NodeSLO names, by name; classes as in NodeSLO."""
    applications = {
        application.name: application
        for application in snapshot.cluster.slo.value.slo.host_applications
    }
    entries: list[Json] = []
    for window in sorted(snapshot.report.value.applications, key=lambda window: window.name):
        if window.name in applications:
            application = applications[window.name]
            classes = {"priority": application.priority, "qos": application.qos}
            known_classes = {key: value for key, value in classes.items() if value}
            entries.append(
                {"name": window.name, "usage": _resource_map(window.use), **known_classes}
            )
    return entries


def _resource_map(
    use: ResourceUsage, device_uses: Sequence[DeviceUsage] = (), devices: Devices | None = None
) -> Json:
    """Return `resources` and `devices`; each is left out when empty, the map itself never is."""
    resources: dict[str, str] = {}
    cores, memory_bytes = use.cpu_cores, use.memory_bytes
    if cores is not None:
        resources["cpu"] = quantities.format_milli(cores)
    if memory_bytes is not None:
        resources["memory"] = quantities.format_binary(int(memory_bytes))
    resource_map: dict[str, object] = {"resources": resources} if resources else {}
    if device_uses and (entries := _device_entries(device_uses, devices or {})):
        resource_map["devices"] = entries
    return resource_map


def _device_fields(info: VendorDevice) -> Json:
    return {
        "type": info.kind.wire_type,
        "id": api_values.clean_text(info.uuid or ""),
        "minor": info.minor,
        "health": info.health.is_in_service,
    }


def _device_entries(uses: Sequence[DeviceUsage], devices: Devices) -> list[Json]:
    """Return the usage of published devices, by type and minor."""
    by_key = {use.key: use for use in uses}
    return [
        {**fields, "resources": _device_resources(use)}
        for key, fields in devices.items()
        if (use := by_key.get(key)) is not None
    ]


def _device_resources(use: DeviceUsage) -> Json:
    resources: dict[str, str] = {}
    if use.core_percent is not None:
        resources[GPU_CORE] = quantities.format_decimal(int(use.core_percent))
    if use.memory_bytes is not None:
        resources[GPU_MEMORY] = quantities.format_binary(int(use.memory_bytes))
        if use.memory_total_bytes:
            ratio = int(100 * use.memory_bytes / use.memory_total_bytes)
            resources[GPU_MEMORY_RATIO] = quantities.format_decimal(ratio)
    return resources


def _node_usages(aggregate: UsageAggregate, devices: Devices) -> Json:
    by_name = dict(aggregate.devices)
    maps = {
        name: _resource_map(use, by_name.get(name, ()), devices) for name, use in aggregate.node
    }
    return _aggregate_entry(aggregate, maps)


def _usages(aggregate: UsageAggregate, values: Sequence[tuple[str, ResourceUsage]]) -> Json:
    return _aggregate_entry(aggregate, {name: _resource_map(use) for name, use in values})


def _aggregate_entry(aggregate: UsageAggregate, maps: Mapping[str, Json]) -> Json:
    """Return one window, always with all five keys; maps are empty with too few samples."""
    return {
        "duration": format_duration(aggregate.duration_s),
        "usage": {name: maps.get(name, {}) for name in AGGREGATE_NAMES},
    }


def _numa_entry(window: NumaAggregate) -> Json:
    entry: dict[str, object] = {
        "numaNodeID": window.node_id,
        "nodeUsage": _resource_map(window.node),
    }
    if window.system is not None:
        entry["systemUsage"] = _resource_map(window.system)
    return entry


def _named_pods(snapshot: NodeSnapshot) -> tuple[_NamedPod, ...]:
    """Return the pods whose names are known, by namespace and name."""
    pods = {pod.uid: pod for pod in snapshot.pods.value if pod.name}
    return tuple(
        _NamedPod(pod.uid, _pod_fields(pod))
        for pod in sorted(pods.values(), key=attrgetter("namespace", "name"))
    )


def _pod_fields(pod: PodView) -> Json:
    qos = qos_class(pod)
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "priority": named_priority_class(pod) or default_priority_class(qos),
        "qos": qos,
    }


def _pod_entries(
    pods: Sequence[_NamedPod], windows: Sequence[PodAggregate], devices: Devices
) -> list[Json]:
    """Return the pods that have usage, in the order of `pods`."""
    by_uid = {window.uid: window for window in windows}
    return [
        {**pod.fields, "podUsage": _resource_map(window.use, window.devices, devices)}
        for pod in pods
        if (window := by_uid.get(pod.uid)) is not None
    ]
