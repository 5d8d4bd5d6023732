"""Metrics under the names of koordlet, for existing dashboards and recording rules.

The names, labels and units are those of koordlet's two registries. Families of koordlet that have
no figure here are listed in `KOORDLET_ABSENT` with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from agent.metrics.cpu_pool_series import BEST_EFFORT, LATENCY_SENSITIVE, SHARED_CPUS
from agent.metrics.enforcement_series import POD_EVICTIONS, burst_values, quota_values
from agent.metrics.families import ExportedFamily
from agent.metrics.text_format import LabelCache, SeriesLines, sample_line
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ContainerResources, ContainerView
from agent.snapshot.usage import ContainerCycles, Prediction, Pressure, ResourceUsage
from agent.snapshot.vendor import AliasMatch, AliasSource, AliasTable, MetricAlias
from agent.wire_formats.quantities import parse_amount

KOORDLET_ALIAS = "koordlet"  # value of `metrics.aliases`
PREFIX = "koordlet_"

_POD = ("node", "pod_namespace", "pod_name", "pod_uid")
_CONTAINER = (*_POD, "container_name", "container_id")
_SCALED = ("node", "pod_namespace", "pod_name", "container_id", "container_name")
_SUPPRESSION = "cpu_suppression"
# figure of the strategy: koordlet's type
_SUPPRESSED = {"cpuset_cpus": "cpuset", "quota_cores": "cfsQuota"}
_PRESSURE = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")
_PRESSURE_NAMES = {"memory": "mem"}  # of resources whose name differs
_PREDICTOR = ("node", "predictor", "resource", "unit")
_AMOUNT = ("node", "resource", "unit")
_PRIORITY = ("node", "priority")
_RESOLD = {
    "kubernetes.io/batch-cpu": "integer",
    "kubernetes.io/batch-memory": "byte",
    "kubernetes.io/mid-cpu": "integer",
    "kubernetes.io/mid-memory": "byte",
}
_PROD = "koord-prod"
_EVICTED = "evicted"  # koordlet's reason of all evictions

_RESOURCES = (*_CONTAINER, "resource", "unit")
# koordlet's: "integer" for all requests, "byte" for all limits
_RIGHT_UNITS = "the unit is that of the resource; koordlet has one for all resources"

_Row = tuple[str, tuple[str, ...], str, str]  # name, labels, family of ours, how it differs

_ROWS: tuple[_Row, ...] = (
    ("node_used_cpu_cores", ("node",), "xpu_node_cpu_usage_cores", ""),
    ("node_used_memory_bytes", ("node",), "xpu_node_memory_used_bytes", ""),
    (
        *("be_suppress_be_used_cpu_cores", ("node",), "xpu_node_best_effort_cpu_usage_cores"),
        "of the best-effort tier's cgroup, not the sum over its pods",
    ),
    ("be_suppress_ls_used_cpu_cores", ("node",), "xpu_node_protected_pods_cpu_usage_cores", ""),
    ("node_predicted_resource_reclaimable", _PREDICTOR, "xpu_node_prod_reclaimable_cpu_cores", ""),
    ("node_predicted_resource_peak", _PREDICTOR, "xpu_node_prod_peak_cpu_cores", ""),
    (
        *("node_priority_resource_reclaimable", ("node", "priority", "resource", "unit")),
        *("xpu_node_prod_reclaimable_cpu_cores", ""),
    ),
    ("node_resource_priority_reclaimable_status", _PRIORITY, "xpu_node_prediction_failed", ""),
    ("node_resource_allocatable", _AMOUNT, "", ""),
    ("node_metric_node_usage", _AMOUNT, "", ""),
    ("node_metric_system_usage", _AMOUNT, "", ""),
    ("node_metric_numa_node_usage", (*_AMOUNT, "numa_node_id"), "", ""),
    ("node_metric_numa_system_usage", (*_AMOUNT, "numa_node_id"), "", ""),
    (
        *("host_application_resource_usage",),
        ("node", "host_application_name", "resource", "priority_class", "qos"),
        *("xpu_host_application_cpu_usage_cores", ""),
    ),
    ("be_suppress_cpu_cores", ("node", "type"), "xpu_node_best_effort_cpus", ""),
    ("container_scaled_cfs_burst_us", _SCALED, "xpu_container_cpu_burst_seconds", ""),
    (
        *("container_scaled_cfs_quota_us", _SCALED, "xpu_container_cpu_quota_cores"),
        "a container without a limit has no sample, not -1",
    ),
    ("cpuset_share_pool_cpu_cores", ("node",), SHARED_CPUS, ""),
    ("cpuset_be_share_pool_cpu_cores", ("node",), SHARED_CPUS, ""),
    ("pod_eviction", ("node", "reason"), "xpu_agent_evictions_total", ""),
    (
        *("pod_eviction_detail", ("node", "pod_namespace", "pod_name", "reason")),
        *(POD_EVICTIONS, ""),
    ),
    ("container_resource_requests", _RESOURCES, "", _RIGHT_UNITS),
    ("container_resource_limits", _RESOURCES, "", _RIGHT_UNITS),
    ("container_cpi", (*_CONTAINER, "cpi_field"), "xpu_container_window_cycles", ""),
    ("container_psi", (*_CONTAINER, *_PRESSURE), "xpu_container_pressure_ratio", ""),
    ("pod_psi", (*_POD, *_PRESSURE), "xpu_pod_pressure_ratio", ""),
    (
        *("resctrl_llc_occupancy", ("node", "cache_id", "qos")),
        *("xpu_node_resctrl_cache_occupancy_bytes", ""),
    ),
    (
        *("resctrl_memory_bandwidth", ("node", "cache_id", "qos", "mb_type")),
        *("xpu_node_resctrl_memory_traffic_bytes_total", ""),
    ),
)

_POOLS = "one series for each CPU: the annotations of NodeResourceTopology list them"
_OWN_METRICS = "the agent measures its own work in families of its own, with other buckets"
KOORDLET_ABSENT: Mapping[str, str] = {
    "start_time": "process_start_time_seconds has it under the name of every client",
    "collect_node_cpu_info_status": "xpu_agent_snapshot_part_failed has it as a gauge",
    "collect_node_numa_info_status": "xpu_agent_snapshot_part_failed has it as a gauge",
    "collect_node_local_storage_info_status": "xpu_agent_collector_success has it as a gauge",
    "cpuset_share_pool_info": _POOLS,
    "cpuset_be_share_pool_info": _POOLS,
    "container_core_sched_cookie": "the hook of core scheduling does not export its cookies",
    "core_sched_cookie_manage_status": "xpu_agent_hook_calls_total counts what the hooks did",
    "container_oom_score_adj": "the agent sets it as the pod asks, and does not export it",
    "resource_update_duration_milliseconds": _OWN_METRICS,
    "kubelet_request_duration_seconds": _OWN_METRICS,
    "runtime_hook_invoked_duration_milliseconds": _OWN_METRICS,
    "runtime_hook_reconciler_invoked_duration_milliseconds": _OWN_METRICS,
}

_Sample = tuple[str, tuple[str, ...], float]  # name, values of its labels, value


def koordlet_table() -> AliasTable:
    """Return for each of koordlet's families how far ours equals it, for the reference."""
    exported = (
        MetricAlias(
            name=f"{PREFIX}{name}",
            type="gauge",
            sources=(AliasSource(family=family),) if family else (),
            match=AliasMatch.NEAR if difference else AliasMatch.SAME,
            note=difference,
        )
        for name, _, family, difference in _ROWS
    )
    absent = (
        MetricAlias(name=f"{PREFIX}{name}", type="", match=AliasMatch.ABSENT, note=reason)
        for name, reason in KOORDLET_ABSENT.items()
    )
    return AliasTable(
        name=KOORDLET_ALIAS, exporter="koordlet", maker="", metrics=(*exported, *absent)
    )


def koordlet_families(aliases: tuple[str, ...]) -> tuple[ExportedFamily, ...]:
    """Return the families, if `metrics.aliases` has them."""
    if KOORDLET_ALIAS not in aliases:
        return ()
    return tuple(
        ExportedFamily(
            name=f"{PREFIX}{name}",
            type="gauge",
            help=f"As koordlet exports it{f'; {difference}' if difference else ''}.",
            labels=labels,
            stability="alpha",
            alias_of=family,
        )
        for name, labels, family, difference in _ROWS
    )


def koordlet_series(
    snapshot: NodeSnapshot,
    aliases: tuple[str, ...],
    labels: LabelCache,
    shared_cpus: Mapping[str, int],
    *,
    usage_is_fresh: bool,
) -> SeriesLines:
    """Yield the requested families; what is not known has no sample."""
    if KOORDLET_ALIAS not in aliases:
        return
    node = snapshot.node.name or "unknown"
    samples: dict[str, list[_Sample]] = {name: [] for name, *_ in _ROWS}
    sources = [
        _allocatable_samples(snapshot),
        _eviction_samples(snapshot),
        _suppression_samples(snapshot),
        _scaled_samples(snapshot),
        _resource_samples(snapshot),
        _shared_cpu_samples(shared_cpus),
    ]
    report = snapshot.report
    # reports are made on the thread that measures usage, at intervals of up to a day
    if usage_is_fresh and report.taken_s is not None and not report.error:
        sources += [_report_samples(snapshot), _application_samples(snapshot)]
        if report.value.prediction is not None:
            sources.append(_prediction_samples(report.value.prediction))
    if usage_is_fresh:
        sources += [_node_samples(snapshot), _resctrl_samples(snapshot)]
    for source in sources:
        for one in source:
            samples[one[0]].append(one)
    pod_lines = _pod_lines(snapshot, labels, node) if usage_is_fresh else {}
    for name, names, *_ in _ROWS:
        family = f"{PREFIX}{name}"
        lines = [
            sample_line(family, labels.prefix(names, (node, *values)), value)
            for _, values, value in samples[name]
        ]
        yield family, lines or pod_lines.get(name, [])


def _node_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    usage = snapshot.usage.value
    for name, value in (
        ("node_used_cpu_cores", usage.node.cpu_cores),
        ("node_used_memory_bytes", usage.node.memory_bytes),
    ):
        if value is not None:
            yield name, (), value
    tier = usage.best_effort.use if usage.best_effort is not None else None
    if tier is not None and tier.cpu_cores is not None:
        yield "be_suppress_be_used_cpu_cores", (), tier.cpu_cores


def _report_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    report = snapshot.report.value
    for name, use in (
        ("node_metric_node_usage", report.node),
        ("node_metric_system_usage", report.system),
    ):
        for resource, unit, value in _amounts(use):
            yield name, (resource, unit), value
    for numa in report.numa:
        for name, use in (
            ("node_metric_numa_node_usage", numa.node),
            ("node_metric_numa_system_usage", numa.system or ResourceUsage()),
        ):
            for resource, unit, value in _amounts(use):
                yield name, (resource, unit, str(numa.node_id)), value


def _application_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    applications = {
        host_application.name: host_application
        for host_application in snapshot.cluster.slo.value.slo.host_applications
    }
    for window in snapshot.report.value.applications:
        if window.name in applications:
            one = applications[window.name]
            for resource, _, value in _amounts(window.use):
                values = (window.name, resource, one.priority or "", one.qos or "")
                yield "host_application_resource_usage", values, value


def _prediction_samples(prediction: Prediction) -> Iterator[_Sample]:
    failed = int(bool(prediction.error))
    yield "node_resource_priority_reclaimable_status", (_PROD,), failed
    if failed:
        return
    for predictor, reclaimable, peak in (
        ("podReclaimablePredictor", prediction.pods.reclaimable, prediction.pods.peak),
        ("priorityReclaimablePredictor", prediction.classes.reclaimable, prediction.classes.peak),
        ("minPredictor", prediction.reclaimable(), prediction.peak()),
    ):
        for resource, unit, value in _amounts(reclaimable):
            yield "node_predicted_resource_reclaimable", (predictor, resource, unit), value
        for resource, unit, value in _amounts(peak):
            yield "node_predicted_resource_peak", (predictor, resource, unit), value
    for resource, unit, value in _amounts(prediction.reclaimable()):
        yield "node_priority_resource_reclaimable", (_PROD, resource, unit), value


def _amounts(use: ResourceUsage) -> Iterator[tuple[str, str, float]]:
    if use.cpu_cores is not None:
        yield "cpu", "core", use.cpu_cores
    if use.memory_bytes is not None:
        yield "memory", "byte", use.memory_bytes


def _allocatable_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    node = snapshot.cluster.node.value
    for resource, unit in _RESOLD.items() if node is not None else ():
        amount = parse_amount(node.allocatable.get(resource, "")) if node is not None else None
        if amount is not None:
            yield "node_resource_allocatable", (resource, unit), float(amount)


def _suppression_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    for strategy in snapshot.enforcement.value.strategies:
        for figure, value in strategy.figures if strategy.name == _SUPPRESSION else ():
            if figure in _SUPPRESSED:
                yield "be_suppress_cpu_cores", (_SUPPRESSED[figure],), value
            elif figure == "protected_pods_cores":
                yield "be_suppress_ls_used_cpu_cores", (), value


def _shared_cpu_samples(counts: Mapping[str, int]) -> Iterator[_Sample]:
    for pool, name in (
        (LATENCY_SENSITIVE, "cpuset_share_pool_cpu_cores"),
        (BEST_EFFORT, "cpuset_be_share_pool_cpu_cores"),
    ):
        if pool in counts:
            yield name, (), counts[pool]


def _scaled_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    bursts, quotas = burst_values(snapshot.desired_files), quota_values(snapshot.desired_files)
    pods = {pod.uid: pod for pod in snapshot.pods.value} if bursts or quotas else {}
    for pod in pods.values():
        for container in pod.containers:
            names = (pod.namespace, pod.name, _container_id(container), container.name)
            burst_us, quota = bursts.get(container.cgroup), quotas.get(container.cgroup)
            if burst_us is not None:
                yield "container_scaled_cfs_burst_us", names, burst_us
            if quota is not None:
                yield "container_scaled_cfs_quota_us", names, quota[0]


def _resource_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    """Yield the batch and mid resources of containers that have been started."""
    pods = {pod.uid: pod for pod in snapshot.pods.value}
    for pod in pods.values():
        by_name = {one.name: one for one in pod.resources or ()}
        for container in pod.containers:
            names = (pod.namespace, pod.name, pod.uid, container.name, _container_id(container))
            for family, resource, amount in _resold_amounts(by_name.get(container.name)):
                yield family, (*names, resource, _RESOLD[resource]), amount


def _resold_amounts(resources: ContainerResources | None) -> Iterator[tuple[str, str, int]]:
    """Yield family, resource and amount."""
    if resources is None:
        return
    requests = (
        resources.batch_cpu_milli,
        resources.batch_memory_bytes,
        resources.mid_cpu_milli,
        resources.mid_memory_bytes,
    )
    limits = (
        resources.batch_cpu_limit_milli,
        resources.batch_memory_limit_bytes,
        resources.mid_cpu_limit_milli,
        resources.mid_memory_limit_bytes,
    )
    for resource, request, limit in zip(_RESOLD, requests, limits, strict=True):
        if request is not None:
            yield "container_resource_requests", resource, request
        if limit is not None:
            yield "container_resource_limits", resource, limit


def _container_id(container: ContainerView) -> str:
    """Return the id as the pod's status has it, with the runtime's scheme if that is known."""
    return f"{container.runtime}://{container.id}" if container.runtime else container.id


def _eviction_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    status = snapshot.container_service
    pods: Counter[tuple[str, str]] = Counter()
    for (namespace, name, _), count in status.evictions.pods.items() if status else ():
        pods[namespace, name] += count
    for pod, count in pods.items():
        yield "pod_eviction_detail", (*pod, _EVICTED), count
    counts = [dict(outcomes) for _, outcomes in status.evictions.outcomes] if status else []
    total = sum(one.get(outcome, 0) for one in counts for outcome in ("evicted", "killed"))
    if total:
        yield "pod_eviction", (_EVICTED,), total


def _pod_lines(snapshot: NodeSnapshot, labels: LabelCache, node: str) -> dict[str, list[str]]:
    """Return the lines of pods and containers by family; these are thousands.

    A pod that is listed twice has its samples once.
    """
    usage = snapshot.usage.value
    cycles = usage.cycles.containers if usage.cycles is not None else {}
    pods: dict[str, Mapping[str, Pressure]] = {}  # by label prefix
    containers: dict[str, Mapping[str, Pressure]] = {}
    windows: dict[str, ContainerCycles] = {}
    for pod in snapshot.pods.value:
        names = (node, pod.namespace, pod.name, pod.uid)
        use = usage.pods.get(pod.uid)
        if use is not None and use.pressure:
            pods[labels.prefix(_POD, names)] = use.pressure
        for container in pod.containers:
            use, window = usage.containers.get(container.id), cycles.get(container.id)
            if window is None and (use is None or not use.pressure):
                continue
            values = (*names, container.name, _container_id(container))
            prefix = labels.prefix(_CONTAINER, values)
            if use is not None and use.pressure:
                containers[prefix] = use.pressure
            if window is not None:
                windows[prefix] = window
    return {
        "pod_psi": _pressure_lines(f"{PREFIX}pod_psi", pods),
        "container_psi": _pressure_lines(f"{PREFIX}container_psi", containers),
        "container_cpi": [
            sample_line(f"{PREFIX}container_cpi", prefix, value, f'cpi_field="{field}"')
            for prefix, window in windows.items()
            for field, value in (("cycles", window.cycles), ("instructions", window.instructions))
        ],
    }


def _pressure_lines(family: str, rows: Mapping[str, Mapping[str, Pressure]]) -> list[str]:
    """Return the percent of the last 10 s; `rows` has the pressure by label prefix."""
    return [
        f'{family}{prefix},psi_resource_type="{_PRESSURE_NAMES.get(resource, resource)}",'
        f'psi_precision="avg10",psi_degree="{degree}",'
        f'cpu_full_supported="{supported}"}} {value!r}\n'
        for prefix, pressure in rows.items()
        for supported in (_full_supported(pressure),)
        for resource, one in pressure.items()
        for degree, value in (("some", one.some_avg10), ("full", one.full_avg10))
        if value is not None
    ]


def _full_supported(pressure: Mapping[str, Pressure]) -> str:
    cpu = pressure.get("cpu")
    return "true" if cpu is not None and cpu.full_avg10 is not None else "false"


def _resctrl_samples(snapshot: NodeSnapshot) -> Iterator[_Sample]:
    resctrl = snapshot.usage.value.resctrl
    for counters in resctrl.groups if resctrl is not None else ():
        if counters.group not in ("LSR", "LS", "BE"):
            continue
        names = (str(counters.cache_id), counters.group)
        if counters.occupancy_bytes is not None:
            yield "resctrl_llc_occupancy", names, counters.occupancy_bytes
        for kind, value in (
            ("mbm_total_bytes", counters.total_bytes),
            ("mbm_local_bytes", counters.local_bytes),
        ):
            if value is not None:
                yield "resctrl_memory_bandwidth", (*names, kind), value
