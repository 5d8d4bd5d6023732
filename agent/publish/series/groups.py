"""Samples of pods and containers: thousands of lines, so walked in columns without look-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from agent.model.pod import PodView
from agent.model.usage import GroupUsage, Pressure, UsageSample
from agent.publish.families import CONTAINER, POD
from agent.publish.series.text import Labels, Series

Value = Callable[[GroupUsage], float | None]
Rows = list[tuple[str, GroupUsage]]  # opened labels and usage


def _cpu_seconds(use: GroupUsage) -> float | None:
    return use.cpu_total_ns / 1e9 if use.cpu_total_ns is not None else None


_COLUMNS: tuple[tuple[str, Value], ...] = (
    ("cpu_usage_cores", attrgetter("cpu_cores")),
    ("cpu_seconds_total", _cpu_seconds),
    ("memory_used_bytes", attrgetter("memory_bytes")),
    ("memory_used_with_cache_bytes", attrgetter("memory_with_cache_bytes")),
    ("cpu_periods_total", attrgetter("periods")),
    ("cpu_throttled_periods_total", attrgetter("throttled_periods")),
    ("cpu_throttled_ratio", attrgetter("throttled_ratio")),
)
_WAITING: tuple[tuple[str, Callable[[Pressure], float | None]], ...] = (
    ("some", attrgetter("some_total_us")),
    ("full", attrgetter("full_total_us")),
)
_RATIO: tuple[tuple[str, Callable[[Pressure], float | None]], ...] = (
    ("some", attrgetter("some_avg10")),
    ("full", attrgetter("full_avg10")),
)


def pod_series(pods: Iterable[PodView], usage: UsageSample, node: str, labels: Labels) -> Series:
    """Yield the families of pods, then those of containers; one without usage has no samples."""
    pod_rows: dict[str, GroupUsage] = {}
    container_rows: dict[str, GroupUsage] = {}
    for pod in pods:
        names = (node, pod.namespace, pod.name, pod.uid)
        if (use := usage.pods.get(pod.uid)) is not None:
            pod_rows[labels.open(POD, names)] = use
        for container in pod.containers:
            if (use := usage.containers.get(container.id)) is not None:
                values = (*names, container.name, container.id)
                container_rows[labels.open(CONTAINER, values)] = use
    for scope, rows in (("xpu_pod", pod_rows), ("xpu_container", container_rows)):
        yield from _group_series(scope, list(rows.items()))


def _group_series(scope: str, rows: Rows) -> Series:
    for column, value_of in _COLUMNS:
        name = f"{scope}_{column}"
        yield (
            name,
            [
                f"{name}{opened}}} {value!r}\n"
                for opened, use in rows
                if (value := value_of(use)) is not None
            ],
        )
    yield from pressure_series(scope, [(opened, use.pressure) for opened, use in rows])


def pressure_series(scope: str, rows: list[tuple[str, Mapping[str, Pressure] | None]]) -> Series:
    """Yield the families of stall information: averages as ratios, totals in seconds."""
    told = [(opened, pressure.items()) for opened, pressure in rows if pressure]
    for column, degrees, scale in (
        ("pressure_ratio", _RATIO, 100),
        ("pressure_waiting_seconds_total", _WAITING, 1_000_000),
    ):
        name = f"{scope}_{column}"
        yield (
            name,
            [
                f'{name}{opened},resource="{resource}",degree="{degree}"}} {value / scale!r}\n'
                for opened, resources in told
                for resource, pressure in resources
                for degree, value_of in degrees
                if (value := value_of(pressure)) is not None
            ],
        )
