"""Series of the usage of node, pods and containers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TypeVar

from agent.metrics.families import CONTAINER, HOST_APPLICATION, POD
from agent.metrics.text_format import LabelCache, SeriesLines, sample_line, sample_lines
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import PodView
from agent.snapshot.usage import (
    PRESSURE_RESOURCES,
    CgroupUsage,
    NodeUsage,
    Prediction,
    Pressure,
    UsageSample,
)

UsageColumn = Callable[[CgroupUsage], float | None]

UsageRows = list[tuple[str, CgroupUsage]]  # label prefix and usage

PART_LINES = 288
MAX_PRESSURE_LINES = 2 * len(PRESSURE_RESOURCES)  # of one pod or container in a family

R = TypeVar("R")


def _cpu_seconds(use: CgroupUsage) -> float | None:
    return use.cpu_total_ns / 1e9 if use.cpu_total_ns is not None else None


_COLUMNS: tuple[tuple[str, UsageColumn], ...] = (
    ("cpu_usage_cores", attrgetter("cpu_cores")),
    ("cpu_seconds_total", _cpu_seconds),
    ("memory_used_bytes", attrgetter("memory_bytes")),
    ("memory_used_with_cache_bytes", attrgetter("memory_with_cache_bytes")),
    ("cpu_periods_total", attrgetter("periods")),
    ("cpu_throttled_periods_total", attrgetter("throttled_periods")),
    ("cpu_throttled_ratio", attrgetter("throttled_ratio")),
)

_PressureValues = list[tuple[str, Callable[[Pressure], float | None]]]


def _pressure_values(some: str, full: str) -> Mapping[str, _PressureValues]:
    """Return the last labels and the fields of one family's samples, by resource."""
    return {
        resource: [
            (f',resource="{resource}",degree="{degree}"}}', attrgetter(field))
            for degree, field in (("some", some), ("full", full))
        ]
        for resource in PRESSURE_RESOURCES
    }


_PRESSURE_COLUMNS = (
    ("pressure_ratio", _pressure_values("some_avg10", "full_avg10"), 100),
    (
        "pressure_waiting_seconds_total",
        _pressure_values("some_total_us", "full_total_us"),
        1_000_000,
    ),
)


def pod_series(
    pods: Iterable[PodView], usage: UsageSample, node: str, labels: LabelCache
) -> SeriesLines:
    """Yield the families of pods, then those of containers; without usage there are no samples."""
    pod_rows: dict[str, CgroupUsage] = {}
    container_rows: dict[str, CgroupUsage] = {}
    for pod in pods:
        names = (node, pod.namespace, pod.name, pod.uid)
        if (use := usage.pods.get(pod.uid)) is not None:
            pod_rows[labels.prefix(POD, names)] = use
        for container in pod.containers:
            if (use := usage.containers.get(container.id)) is not None:
                values = (*names, container.name, container.id)
                container_rows[labels.prefix(CONTAINER, values)] = use
    for scope, rows in (("xpu_pod", pod_rows), ("xpu_container", container_rows)):
        yield from _group_series(scope, list(rows.items()))
        yield from pressure_series(
            scope, [(label_prefix, use.pressure) for label_prefix, use in rows.items()]
        )


def application_series(usage: UsageSample, node: str, labels: LabelCache) -> SeriesLines:
    """Yield the families of the running host applications."""
    rows = [
        (labels.prefix(HOST_APPLICATION, (node, name)), use)
        for name, use in usage.applications.items()
    ]
    yield from _group_series("xpu_host_application", rows)


def _group_series(scope: str, rows: UsageRows) -> SeriesLines:
    parts = _split_rows(rows, PART_LINES)
    for column, value_of in _COLUMNS:
        name = f"{scope}_{column}"
        for part in parts:
            yield (
                name,
                [
                    f"{name}{label_prefix}}} {value!r}\n"
                    for label_prefix, use in part
                    if (value := value_of(use)) is not None
                ],
            )


def _split_rows(rows: list[R], size: int) -> list[list[R]]:
    """Return the rows in parts, so that there are few lines at a time."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def pressure_series(
    scope: str, rows: list[tuple[str, Mapping[str, Pressure] | None]]
) -> SeriesLines:
    """Yield the families of pressure: averages as ratios, totals in seconds."""
    rows_with_pressure = [
        (label_prefix, pressure.items()) for label_prefix, pressure in rows if pressure
    ]
    parts = _split_rows(rows_with_pressure, PART_LINES // MAX_PRESSURE_LINES)
    for column, values_of, scale in _PRESSURE_COLUMNS:
        name = f"{scope}_{column}"
        for part in parts:
            yield (
                name,
                [
                    f"{name}{label_prefix}{labels} {value / scale!r}\n"
                    for label_prefix, pressure in part
                    for resource, stalls in pressure
                    for labels, value_of in values_of[resource]
                    if (value := value_of(stalls)) is not None
                ],
            )


def node_series(snapshot: NodeSnapshot, label_prefix: str, *, usage_is_fresh: bool) -> SeriesLines:
    """Yield the families of the node; `label_prefix` has the labels of every sample."""
    if snapshot.node.boot_time_s > 0:
        name = "xpu_node_boot_time_seconds"
        yield name, [sample_line(name, label_prefix, snapshot.node.boot_time_s)]
    if snapshot.cpus.value.usable:
        yield (
            "xpu_node_cpus",
            [sample_line("xpu_node_cpus", label_prefix, len(snapshot.cpus.value.usable))],
        )
    if not usage_is_fresh:
        return
    usage = snapshot.usage.value.node
    for column, value in _node_columns(usage):
        if value is not None:
            name = f"xpu_node_{column}"
            yield name, [sample_line(name, label_prefix, value)]
    yield from _numa_series(usage, label_prefix)
    prediction = snapshot.report.value.prediction
    if prediction is not None and not snapshot.report.error:
        yield from prediction_series(prediction, label_prefix)
    yield from pressure_series("xpu_node", [(label_prefix, usage.pressure)])


def prediction_series(prediction: Prediction, label_prefix: str) -> SeriesLines:
    """Yield each predictor's values, and the combination that NodeMetric publishes."""
    name = "xpu_node_prediction_failed"
    yield name, [sample_line(name, label_prefix, int(bool(prediction.error)))]
    if prediction.error:
        return
    name = "xpu_node_prediction_pods"
    counts = (("predicted", prediction.predicted_pods), ("cold", prediction.cold_pods))
    yield (
        name,
        [sample_line(name, label_prefix, count, f'state="{state}"') for state, count in counts],
    )
    predictors = (
        ("classes", prediction.classes.reclaimable, prediction.classes.peak),
        ("nodemetric", prediction.reclaimable(), prediction.peak()),
        ("pods", prediction.pods.reclaimable, prediction.pods.peak),
    )
    for column, values in (
        (
            "reclaimable_cpu_cores",
            [(predictor, free.cpu_cores) for predictor, free, _ in predictors],
        ),
        (
            "reclaimable_memory_bytes",
            [(predictor, free.memory_bytes) for predictor, free, _ in predictors],
        ),
        ("peak_cpu_cores", [(predictor, peak.cpu_cores) for predictor, _, peak in predictors]),
        (
            "peak_memory_bytes",
            [(predictor, peak.memory_bytes) for predictor, _, peak in predictors],
        ),
    ):
        name = f"xpu_node_prod_{column}"
        yield (
            name,
            sample_lines(
                name,
                label_prefix,
                ((f'predictor="{predictor}"', value) for predictor, value in values),
            ),
        )


def _node_columns(usage: NodeUsage) -> Iterator[tuple[str, float | None]]:
    cpu_seconds = usage.cpu_total_ns / 1e9 if usage.cpu_total_ns is not None else None
    yield "cpu_usage_cores", usage.cpu_cores
    yield "cpu_seconds_total", cpu_seconds
    yield "memory_bytes", usage.memory_total_bytes
    yield "memory_used_bytes", usage.memory_bytes
    yield "memory_used_with_cache_bytes", usage.memory_with_cache_bytes
    yield "system_cpu_usage_cores", usage.system_cpu_cores
    yield "system_memory_used_bytes", usage.system_memory_bytes


def _numa_series(usage: NodeUsage, label_prefix: str) -> SeriesLines:
    for column, values in (
        ("cpu_usage_cores", [(n.node_id, n.cpu_cores) for n in usage.numa]),
        ("memory_used_bytes", [(n.node_id, n.memory_bytes) for n in usage.numa]),
        ("pods_memory_used_bytes", [(n.node_id, n.pods_memory_bytes) for n in usage.numa]),
    ):
        name = f"xpu_node_numa_{column}"
        yield (
            name,
            sample_lines(
                name,
                label_prefix,
                ((f'numa_node="{node_id}"', value) for node_id, value in values),
            ),
        )
