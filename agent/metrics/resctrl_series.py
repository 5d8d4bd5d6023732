"""Series of resctrl groups: masks and bandwidths of the agent's, the number of other groups."""

from __future__ import annotations

from collections.abc import Iterator

from agent.metrics.families import NODE, ExportedFamily
from agent.metrics.text_format import SeriesLines, label_pairs, sample_line
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import BANDWIDTH_RESOURCE, ResctrlView

FOREIGN_GROUPS = "xpu_node_resctrl_foreign_groups"
TASKS_MOVED = "xpu_agent_resctrl_tasks_moved_total"
MONITORED_PODS = "xpu_agent_resctrl_monitored_pods"
CACHE_WAYS = "xpu_node_resctrl_cache_ways"
BANDWIDTH = "xpu_node_resctrl_bandwidth_limit"
_WAYS_LABELS, _BANDWIDTH_LABELS = ("group", "resource", "cache_id"), ("group", "domain")
_ROWS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (FOREIGN_GROUPS, "gauge", NODE, "Control groups of resctrl that belong to other programs."),
    (TASKS_MOVED, "counter", NODE, "Tasks that the agent moved into another resctrl group."),
    (MONITORED_PODS, "gauge", NODE, "Pods that have a monitoring group of the agent."),
    (
        *(CACHE_WAYS, "gauge", (*NODE, *_WAYS_LABELS)),
        "Ways of a last-level cache that a resctrl group of the agent may fill.",
    ),
    (
        *(BANDWIDTH, "gauge", (*NODE, *_BANDWIDTH_LABELS)),
        "Memory bandwidth of a resctrl group of the agent as the kernel counts it: percent, MB/s "
        "with mba_MBps, or GB/s / 8 on AMD.",
    ),
)
RESCTRL_FAMILIES: tuple[ExportedFamily, ...] = tuple(
    ExportedFamily(name=name, type=kind, help=text, labels=labels, stability="alpha")
    for name, kind, labels, text in _ROWS
)


def resctrl_series(snapshot: NodeSnapshot, label_prefix: str) -> SeriesLines:
    """Yield the families; none while the number of control groups is not known."""
    view = snapshot.resctrl
    if view.closids is None:
        return
    yield FOREIGN_GROUPS, [sample_line(FOREIGN_GROUPS, label_prefix, len(view.foreign_groups))]
    yield TASKS_MOVED, [sample_line(TASKS_MOVED, label_prefix, view.tasks_moved)]
    yield MONITORED_PODS, [sample_line(MONITORED_PODS, label_prefix, view.monitored_pods)]
    yield CACHE_WAYS, list(_cache_lines(view, label_prefix))
    yield BANDWIDTH, list(_bandwidth_lines(view, label_prefix))


def _cache_lines(view: ResctrlView, label_prefix: str) -> Iterator[str]:
    for group in view.groups:
        for resource, cache_id, mask in group.values:
            if resource != BANDWIDTH_RESOURCE:
                labels = label_pairs(_WAYS_LABELS, (group.name, resource, str(cache_id)))
                yield sample_line(CACHE_WAYS, label_prefix, mask.bit_count(), labels)


def _bandwidth_lines(view: ResctrlView, label_prefix: str) -> Iterator[str]:
    for group in view.groups:
        for resource, domain, value in group.values:
            if resource == BANDWIDTH_RESOURCE:
                labels = label_pairs(_BANDWIDTH_LABELS, (group.name, str(domain)))
                yield sample_line(BANDWIDTH, label_prefix, value, labels)
