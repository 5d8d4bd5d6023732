"""Families and series of the collectors: their last runs, and the values of optional ones."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from agent.metrics.families import CONTAINER, HOST_APPLICATION, NODE, POD, ExportedFamily
from agent.metrics.storage_series import (
    STORAGE_FAMILIES,
    group_storage_series,
    node_storage_series,
)
from agent.metrics.text_format import (
    LabelCache,
    SeriesLines,
    label_pairs,
    last_run_series,
    sample_line,
    sample_lines,
)
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.usage import (
    CgroupUsage,
    CollectorStatus,
    ContainerCycles,
    ResctrlCounters,
    hot_memory,
)

COLLECTOR = (*NODE, "collector")

_ColdRow = tuple[str, int | None, int | None]  # labels, cold memory, memory with page cache

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

_BEST_EFFORT: tuple[_Row, ...] = (
    (
        *("xpu_node_best_effort_cpu_usage_cores", "gauge", NODE, "cores"),
        "CPU in use by the best-effort tier, in cores.",
    ),
    (
        *("xpu_node_best_effort_cpu_request_cores", "gauge", NODE, "cores"),
        "Batch CPU that pods labelled BE request, in cores.",
    ),
    (
        *("xpu_node_best_effort_cpu_limit_cores", "gauge", NODE, "cores"),
        "CPU that the best-effort tier can get: its smallest CPU set or its quota, in cores.",
    ),
    (
        *("xpu_node_best_effort_cpu_throttled_ratio", "gauge", NODE, "ratio"),
        "Throttled periods to periods of the best-effort tier in the last cycle.",
    ),
    (
        *("xpu_node_best_effort_memory_used_bytes", "gauge", NODE, "bytes"),
        "Memory in use by the best-effort tier, without page cache.",
    ),
    (
        *("xpu_node_best_effort_memory_used_with_cache_bytes", "gauge", NODE, "bytes"),
        "Memory in use by the best-effort tier, with page cache.",
    ),
)

RESCTRL_GROUP = (*NODE, "group", "cache_id")

POD_CACHE = (*POD, "cache_id")

_RESCTRL: tuple[_Row, ...] = tuple(
    row
    for prefix, labels, subject in (
        ("xpu_node_resctrl", RESCTRL_GROUP, "a class's resctrl group"),
        ("xpu_pod_resctrl", POD_CACHE, "a pod's own resctrl group"),
    )
    for row in (
        (
            *(f"{prefix}_cache_occupancy_bytes", "gauge", labels, "bytes"),
            f"Part of a last-level cache that {subject} occupies.",
        ),
        (
            *(f"{prefix}_memory_traffic_bytes_total", "counter", (*labels, "scope"), "bytes"),
            f"Memory traffic of {subject} through a cache: all of it, and to the local node.",
        ),
        (
            *(f"{prefix}_memory_bandwidth_bytes_per_second", "gauge", (*labels, "scope"), ""),
            f"Memory bandwidth of {subject} through a cache: all of it, and to the local node.",
        ),
    )
)

_COLD_MEMORY: tuple[_Row, ...] = tuple(
    row
    for scope, labels, subject in (
        ("node", NODE, "the node"),
        ("pod", POD, "a pod"),
        ("container", CONTAINER, "a container"),
        ("host_application", HOST_APPLICATION, "a host application"),
    )
    for row in (
        (
            *(f"xpu_{scope}_memory_cold_bytes", "gauge", labels, "bytes"),
            f"Page cache of {subject} that nothing has used for minutes.",
        ),
        (
            *(f"xpu_{scope}_memory_used_with_hot_cache_bytes", "gauge", labels, "bytes"),
            f"Memory in use by {subject}, with page cache that is not cold.",
        ),
    )
)

_IDLE_MEMORY: _Row = (
    *("xpu_node_memory_idle_ratio", "gauge", NODE, "ratio"),
    "Share of all memory, free memory included, that nothing has accessed for 300 s.",
)

COLLECTOR_FAMILIES: tuple[ExportedFamily, ...] = (
    *(
        ExportedFamily(name=name, type=kind, labels=labels, unit=unit, help=text)
        for name, kind, labels, unit, text in (
            *_STATUS,
            *_BEST_EFFORT,
            *_CYCLES,
            *_RESCTRL,
            *_COLD_MEMORY,
            _IDLE_MEMORY,
        )
    ),
    *STORAGE_FAMILIES,
)


def status_series(snapshot: NodeSnapshot, label_prefix: str) -> SeriesLines:
    """Yield the families of the last runs; `label_prefix` has the labels of every sample."""
    statuses = [
        (label_pairs(("collector",), (status.name,)), status)
        for status in snapshot.usage.value.collectors
        if status.duration_s is not None
    ]
    yield from last_run_series("xpu_agent_collector", statuses, label_prefix)
    name = "xpu_agent_collector_problem"
    yield (
        name,
        [
            sample_line(name, label_prefix, 1, f"{extra},{label_pairs(('reason',), (reason,))}")
            for extra, status in statuses
            for reason in _reasons(status)
        ],
    )


def collected_node_series(snapshot: NodeSnapshot, label_prefix: str) -> SeriesLines:
    """Yield the node families of optional collectors."""
    tier = snapshot.usage.value.best_effort
    if tier is not None:
        use = tier.use or CgroupUsage()
        for column, value in (
            ("cpu_usage_cores", use.cpu_cores),
            ("cpu_request_cores", _cores(tier.request_milli)),
            ("cpu_limit_cores", _cores(tier.limit_milli)),
            ("cpu_throttled_ratio", use.throttled_ratio),
            ("memory_used_bytes", use.memory_bytes),
            ("memory_used_with_cache_bytes", use.memory_with_cache_bytes),
        ):
            if value is not None:
                name = f"xpu_node_best_effort_{column}"
                yield name, [sample_line(name, label_prefix, value)]
    resctrl = snapshot.usage.value.resctrl
    if resctrl is not None:
        classes = [
            (f'{label_prefix},group="{counters.group}"', counters)
            for counters in resctrl.groups
            if counters.group
        ]
        yield from _resctrl_series("xpu_node_resctrl", classes)
    cold = snapshot.usage.value.cold_memory
    if cold is not None:
        with_cache = snapshot.usage.value.node.memory_with_cache_bytes
        yield from _cold_memory_series("node", [(label_prefix, cold.node_bytes, with_cache)])
        name = "xpu_node_memory_idle_ratio"
        yield name, sample_lines(name, label_prefix, (("", cold.idle_ratio),))
        applications = snapshot.usage.value.applications
        own = {
            application: f"{label_prefix},{label_pairs(('application',), (application,))}"
            for application in applications
        }
        rows = _cold_rows(own, cold.applications, applications)
        yield from _cold_memory_series("host_application", rows)
    storage = snapshot.usage.value.storage
    if storage is not None:
        yield from node_storage_series(storage, label_prefix)


def _cold_memory_series(scope: str, rows: list[tuple[str, int | None, int | None]]) -> SeriesLines:
    name = f"xpu_{scope}_memory_cold_bytes"
    yield (
        name,
        [
            sample_line(name, label_prefix, cold)
            for label_prefix, cold, _ in rows
            if cold is not None
        ],
    )
    name = f"xpu_{scope}_memory_used_with_hot_cache_bytes"
    yield (
        name,
        [
            sample_line(name, label_prefix, hot)
            for label_prefix, cold, with_cache in rows
            if (hot := hot_memory(with_cache, cold)) is not None
        ],
    )


def _resctrl_series(scope: str, rows: list[tuple[str, ResctrlCounters]]) -> SeriesLines:
    rows = [
        (f'{label_prefix},cache_id="{counters.cache_id}"', counters)
        for label_prefix, counters in rows
    ]
    name = f"{scope}_cache_occupancy_bytes"
    yield (
        name,
        [
            sample_line(name, label_prefix, counters.occupancy_bytes)
            for label_prefix, counters in rows
            if counters.occupancy_bytes is not None
        ],
    )
    for column, total_of, local_of in (
        ("memory_traffic_bytes_total", attrgetter("total_bytes"), attrgetter("local_bytes")),
        (
            "memory_bandwidth_bytes_per_second",
            attrgetter("total_bytes_per_s"),
            attrgetter("local_bytes_per_s"),
        ),
    ):
        name = f"{scope}_{column}"
        yield (
            name,
            [
                sample_line(name, label_prefix, value, f'scope="{part}"')
                for label_prefix, counters in rows
                for part, value_of in (("total", total_of), ("local", local_of))
                if (value := value_of(counters)) is not None
            ],
        )


def collected_pod_series(snapshot: NodeSnapshot, node: str, labels: LabelCache) -> SeriesLines:
    """Yield the families of pods and containers of optional collectors."""
    usage = snapshot.usage.value
    if all(one is None for one in (usage.cycles, usage.resctrl, usage.cold_memory, usage.storage)):
        return
    pods: dict[str, str] = {}  # label prefix by uid
    containers: dict[str, str] = {}  # label prefix by id
    for pod in snapshot.pods.value:
        names = (node, pod.namespace, pod.name, pod.uid)
        pods[pod.uid] = labels.prefix(POD, names)
        for container in pod.containers:
            values = (*names, container.name, container.id)
            containers[container.id] = labels.prefix(CONTAINER, values)
    if usage.resctrl is not None:
        pod_rows = [
            (pods[counters.pod_uid], counters)
            for counters in usage.resctrl.groups
            if counters.pod_uid in pods
        ]
        yield from _resctrl_series("xpu_pod_resctrl", pod_rows)
    if usage.cycles is not None:
        cycles = usage.cycles.containers
        yield from _cycle_series([(containers[x], cycles[x]) for x in containers if x in cycles])
    if usage.storage is not None:
        yield from group_storage_series(usage.storage, pods, containers)
    cold = usage.cold_memory
    if cold is not None:
        yield from _cold_memory_series("pod", _cold_rows(pods, cold.pods, usage.pods))
        yield from _cold_memory_series(
            "container", _cold_rows(containers, cold.containers, usage.containers)
        )


def _cold_rows(
    label_prefix: Mapping[str, str], cold: Mapping[str, int], groups: Mapping[str, CgroupUsage]
) -> list[_ColdRow]:
    return [
        (
            label_prefix[key],
            cold[key],
            groups[key].memory_with_cache_bytes if key in groups else None,
        )
        for key in label_prefix
        if key in cold
    ]


def _cycle_series(rows: list[tuple[str, ContainerCycles]]) -> SeriesLines:
    name = "xpu_container_cycles_per_instruction"
    yield (
        name,
        [
            sample_line(name, label_prefix, use.per_instruction)
            for label_prefix, use in rows
            if use.per_instruction is not None
        ],
    )
    name = "xpu_container_window_cycles"
    yield name, [sample_line(name, label_prefix, use.cycles) for label_prefix, use in rows]
    name = "xpu_container_window_instructions"
    yield name, [sample_line(name, label_prefix, use.instructions) for label_prefix, use in rows]
    name = "xpu_container_cycle_window_seconds"
    yield name, [sample_line(name, label_prefix, use.window_s) for label_prefix, use in rows]


def _cores(milli: int | None) -> float | None:
    return None if milli is None else milli / 1000


def _reasons(status: CollectorStatus) -> list[str]:
    return sorted({problem.reason for problem in status.problems})
