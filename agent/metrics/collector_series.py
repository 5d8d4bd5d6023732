"""Families and series of the collectors: how their last run went, and the optional ones' values."""

from __future__ import annotations

from agent.metrics.families import CONTAINER, NODE, ExportedFamily
from agent.metrics.text_format import LabelCache, SeriesLines, label_pairs, sample_line
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.usage import CollectorStatus, ContainerCycles

COLLECTOR = (*NODE, "collector")

_Row = tuple[str, str, tuple[str, ...], str, str]  # name, type, labels, unit, help

_STATUS: tuple[_Row, ...] = (
    (
        *("xpu_agent_collector_success", "gauge", COLLECTOR, ""),
        "Whether a collector's last run measured all that it is for.",
    ),
    (
        *("xpu_agent_collector_duration_seconds", "gauge", COLLECTOR, "seconds"),
        "Time that a collector's last run took on the collector thread.",
    ),
    (
        *("xpu_agent_collector_last_success_timestamp_seconds", "gauge", COLLECTOR, "seconds"),
        "Unix time of a collector's last success.",
    ),
    (
        *("xpu_agent_collector_problem", "gauge", (*COLLECTOR, "reason"), ""),
        "1 for each reason why values of a collector are absent.",
    ),
)

_CYCLES: tuple[_Row, ...] = (
    (
        *("xpu_container_cycles_per_instruction", "gauge", CONTAINER, ""),
        "CPU cycles to instructions of a container in its last window.",
    ),
    (
        *("xpu_container_window_cycles", "gauge", CONTAINER, ""),
        "CPU cycles of a container in its last window, on all CPUs.",
    ),
    (
        *("xpu_container_window_instructions", "gauge", CONTAINER, ""),
        "Instructions of a container in its last window, on all CPUs.",
    ),
    (
        *("xpu_container_cycle_window_seconds", "gauge", CONTAINER, "seconds"),
        "Length of a container's last window of cycles and instructions.",
    ),
)

COLLECTOR_FAMILIES: tuple[ExportedFamily, ...] = tuple(
    ExportedFamily(name=name, type=kind, labels=labels, unit=unit, help=text)
    for name, kind, labels, unit, text in (*_STATUS, *_CYCLES)
)


def status_series(snapshot: NodeSnapshot, opened: str) -> SeriesLines:
    """Yield the families of the last runs; `opened` are the labels that every sample has."""
    statuses = [
        (label_pairs(("collector",), (one.name,)), one)
        for one in snapshot.usage.value.collectors
        if one.duration_s is not None
    ]
    name = "xpu_agent_collector_success"
    yield name, [sample_line(name, opened, int(one.success), extra) for extra, one in statuses]
    name = "xpu_agent_collector_duration_seconds"
    yield name, [sample_line(name, opened, one.duration_s or 0.0, x) for x, one in statuses]
    name = "xpu_agent_collector_last_success_timestamp_seconds"
    yield (
        name,
        [
            sample_line(name, opened, one.last_success_s, extra)
            for extra, one in statuses
            if one.last_success_s is not None
        ],
    )
    name = "xpu_agent_collector_problem"
    yield (
        name,
        [
            sample_line(name, opened, 1, f"{extra},{label_pairs(('reason',), (reason,))}")
            for extra, one in statuses
            for reason in _reasons(one)
        ],
    )


def collected_pod_series(snapshot: NodeSnapshot, node: str, labels: LabelCache) -> SeriesLines:
    """Yield the families of pods and containers that optional collectors fill."""
    cycles = snapshot.usage.value.cycles
    if cycles is not None:
        rows = [
            (labels.prefix(CONTAINER, (*names, container.name, container.id)), use)
            for pod in snapshot.pods.value
            if (names := (node, pod.namespace, pod.name, pod.uid))
            for container in pod.containers
            if (use := cycles.containers.get(container.id)) is not None
        ]
        yield from _cycle_series(rows)


def _cycle_series(rows: list[tuple[str, ContainerCycles]]) -> SeriesLines:
    name = "xpu_container_cycles_per_instruction"
    yield (
        name,
        [
            sample_line(name, opened, use.per_instruction)
            for opened, use in rows
            if use.per_instruction is not None
        ],
    )
    name = "xpu_container_window_cycles"
    yield name, [sample_line(name, opened, use.cycles) for opened, use in rows]
    name = "xpu_container_window_instructions"
    yield name, [sample_line(name, opened, use.instructions) for opened, use in rows]
    name = "xpu_container_cycle_window_seconds"
    yield name, [sample_line(name, opened, use.window_s) for opened, use in rows]


def _reasons(status: CollectorStatus) -> list[str]:
    return sorted({problem.reason for problem in status.problems})
