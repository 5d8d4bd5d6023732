"""Series of what the agent enforces: strategies, changes of files, refusals, limits in force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from agent.metrics.container_series import histogram_lines
from agent.metrics.families import CONTAINER, NODE, POD_NAME, ExportedFamily
from agent.metrics.text_format import LabelCache, SeriesLines, label_pairs, sample_line
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import EvictionStatus
from agent.snapshot.self_check import (
    DesiredFile,
    DesiredFiles,
    EnforcementView,
    StrategyState,
    StrategyStatus,
)
from agent.wire_formats.annotations import qos_class

PREFIX = "xpu_agent_"
POD_EVICTIONS = "xpu_pod_evictions_total"
STRATEGY, OWNER = (*NODE, "strategy"), (*NODE, "owner")
SUPPRESSION, BURST, MEMORY_QOS, RESCTRL = "cpu_suppression", "cpu_burst", "memory_qos", "resctrl"
NO_CLASS = "node"  # of files that belong to no pod
MODES = ("off", "plan", "on")
BURST_FILE, QUOTA_FILE = "cpu.cfs_burst_us", "cpu.cfs_quota_us"
NO_QUOTA = ("max", "-1")
_Row = tuple[str, str, tuple[str, ...], str, str]  # name, type, labels, unit, help
_ROWS: tuple[_Row, ...] = (
    (
        *("strategy_mode", "gauge", (*STRATEGY, "mode"), ""),
        "Mode of a strategy by the settings: 1 for the one it has.",
    ),
    (
        *("strategy_state", "gauge", (*STRATEGY, "state"), ""),
        "What a strategy does: 1 for the state it is in.",
    ),
    ("strategy_desired_values", "gauge", STRATEGY, "", "Files that a strategy sets."),
    (
        *("strategy_figure", "gauge", (*STRATEGY, "figure"), ""),
        "A number of a strategy that has no family of its own; its name has the unit.",
    ),
    (
        *("enforced_files", "gauge", (*OWNER, "qos_class"), ""),
        "Files that a hook or strategy sets, by the QoS class of the pod; node: of no pod.",
    ),
    (
        *("enforcement_frozen", "gauge", NODE, ""),
        "Whether values stay as they are because the NodeSLO is not confirmed.",
    ),
    (
        *("enforcement_stopped", "gauge", NODE, ""),
        "Whether nothing is changed because there were too many refusals or evictions.",
    ),
    (
        *("enforcement_conditions", "gauge", (*NODE, "reason"), ""),
        "Problems that last until they are solved.",
    ),
    (
        *("enforcement_changes_total", "counter", (*OWNER, "result"), ""),
        "Changes of files by a hook or strategy. planned: in plan mode; restored: the original "
        "value; foreign: not restored because another program has written since.",
    ),
    (
        *("enforcement_refusals_total", "counter", (*OWNER, "errno"), ""),
        "Writes that the kernel refused.",
    ),
    (
        *("enforcement_cycle_seconds", "histogram", NODE, "seconds"),
        "Duration of a cycle that plans, compares and writes all files.",
    ),
    (
        *("evictions_total", "counter", (*NODE, "reason", "outcome"), ""),
        "Requests to evict a pod by the rule that made them. unknown: no answer.",
    ),
    (
        *("eviction_blocked_pods", "gauge", NODE, ""),
        "Pods that would be evicted if no disruption budget protected them.",
    ),
    (
        *("enforcement_lost_audit_records_total", "counter", NODE, ""),
        "Changes that are not in the audit file because it could not be written for too long.",
    ),
)
# strategy and figure: family, unit, help
FIGURES: Mapping[tuple[str, str], tuple[str, str, str]] = MappingProxyType(
    {
        (SUPPRESSION, "budget_cores"): (
            *("xpu_node_best_effort_cpu_budget_cores", "cores"),
            "CPU that the NodeSLO leaves to best-effort pods now.",
        ),
        (SUPPRESSION, "protected_pods_cores"): (
            *("xpu_node_protected_pods_cpu_usage_cores", "cores"),
            "CPU usage of the pods that are not best-effort, as CPU suppression counts it.",
        ),
        (SUPPRESSION, "cpuset_cpus"): (
            *("xpu_node_best_effort_cpus", ""),
            "CPUs that best-effort pods may run on.",
        ),
        (SUPPRESSION, "quota_cores"): (
            *("xpu_node_best_effort_cpu_quota_cores", "cores"),
            "CPU quota of all best-effort pods together.",
        ),
        (SUPPRESSION, "pressure_cut_cores"): (
            *("xpu_node_best_effort_cpu_pressure_cut_cores", "cores"),
            "Lower CPU quota of all best-effort pods while others wait for CPUs.",
        ),
        (SUPPRESSION, "pressure_stalls"): (
            *("xpu_node_cpu_pressure_stalls", ""),
            "Times since the start that other pods waited for CPUs longer than allowed.",
        ),
        (BURST, "pods"): ("xpu_node_cpu_burst_pods", "", "Pods that CPU burst applies to."),
        (BURST, "raised_containers"): (
            *("xpu_node_cpu_burst_raised_containers", ""),
            "Containers whose CPU quota is above their limit now.",
        ),
        (BURST, "exhausted_containers"): (
            *("xpu_node_cpu_burst_exhausted_containers", ""),
            "Containers that have used up the CPU time that they may burst.",
        ),
        (BURST, "share_pool_usage_ratio"): (
            *("xpu_node_share_pool_usage_ratio", "ratio"),
            "Usage of the CPUs that belong to no single pod.",
        ),
        (MEMORY_QOS, "pods"): (
            *("xpu_node_memory_qos_pods", ""),
            "Pods whose memory is protected or throttled.",
        ),
        (RESCTRL, "groups"): (
            *("xpu_node_resctrl_groups", ""),
            "Groups of resctrl that the agent made.",
        ),
        (RESCTRL, "groups_allowed"): (
            *("xpu_node_resctrl_groups_allowed", ""),
            "Groups of resctrl that the hardware allows the agent.",
        ),
    }
)
ENFORCEMENT_FAMILIES: tuple[ExportedFamily, ...] = (
    *(
        ExportedFamily(
            name=f"{PREFIX}{name}",
            type=kind,
            help=text,
            labels=labels,
            unit=unit,
            stability="alpha",
        )
        for name, kind, labels, unit, text in _ROWS
    ),
    ExportedFamily(
        name=POD_EVICTIONS,
        type="counter",
        help="Evictions of a pod by the rule that made them; the last 256 pods and rules.",
        labels=(*NODE, *POD_NAME, "reason"),
        stability="alpha",
    ),
    *(
        ExportedFamily(
            name=name, type="gauge", help=text, labels=NODE, unit=unit, stability="alpha"
        )
        for name, unit, text in FIGURES.values()
    ),
    ExportedFamily(
        name="xpu_container_cpu_burst_seconds",
        type="gauge",
        help="Unused CPU time that a container may use later, as a strategy set it.",
        labels=CONTAINER,
        unit="seconds",
        stability="alpha",
    ),
    ExportedFamily(
        name="xpu_container_cpu_quota_cores",
        type="gauge",
        help="CPU limit of a container, as a strategy set it; absent without a limit.",
        labels=CONTAINER,
        unit="cores",
        stability="alpha",
    ),
)


def enforcement_series(snapshot: NodeSnapshot, label_prefix: str) -> SeriesLines:
    """Yield the families of the node; none while the agent writes no files of pods."""
    if snapshot.enforcement.taken_s is None:
        return
    view = snapshot.enforcement.value
    yield from _strategies(view.strategies, label_prefix)
    yield from _enforced_files(snapshot, label_prefix)
    yield from _state(view, label_prefix)
    status = snapshot.container_service
    if status is not None:
        yield from _evictions(status.evictions, label_prefix)
    counters = status.enforcement if status is not None else None
    if counters is None:
        return
    for short, label, rows in (
        ("enforcement_changes_total", "result", counters.changes),
        ("enforcement_refusals_total", "errno", counters.refusals),
    ):
        name = f"{PREFIX}{short}"
        yield (
            name,
            [
                sample_line(name, label_prefix, count, label_pairs(("owner", label), (owner, key)))
                for owner, key, count in rows
            ],
        )
    name = f"{PREFIX}enforcement_cycle_seconds"
    has_cycles = bool(counters.cycles.buckets)
    yield name, list(histogram_lines(name, label_prefix, "", counters.cycles)) if has_cycles else []
    name = f"{PREFIX}enforcement_lost_audit_records_total"
    yield name, [sample_line(name, label_prefix, counters.lost_audits)]


def _evictions(evictions: EvictionStatus, label_prefix: str) -> SeriesLines:
    name = f"{PREFIX}evictions_total"
    yield (
        name,
        [
            sample_line(
                name, label_prefix, count, label_pairs(("reason", "outcome"), (feature, outcome))
            )
            for feature, outcomes in evictions.outcomes
            for outcome, count in outcomes
        ],
    )
    name = f"{PREFIX}eviction_blocked_pods"
    yield name, [sample_line(name, label_prefix, len(evictions.blocked))]
    names = (*POD_NAME, "reason")
    yield (
        POD_EVICTIONS,
        [
            sample_line(POD_EVICTIONS, label_prefix, count, label_pairs(names, pod_and_feature))
            for pod_and_feature, count in evictions.pods.items()
        ],
    )


def _strategies(strategies: tuple[StrategyStatus, ...], label_prefix: str) -> SeriesLines:
    modes = [
        (strategy.name, choice, strategy.mode == choice)
        for strategy in strategies
        for choice in MODES
    ]
    yield _choices("strategy_mode", "mode", modes, label_prefix)
    states = [
        (strategy.name, state.value, strategy.state is state)
        for strategy in strategies
        for state in StrategyState
    ]
    yield _choices("strategy_state", "state", states, label_prefix)
    name = f"{PREFIX}strategy_desired_values"
    yield (
        name,
        [
            sample_line(
                name, label_prefix, strategy.values, label_pairs(("strategy",), (strategy.name,))
            )
            for strategy in strategies
        ],
    )
    yield from _figures(strategies, label_prefix)


def _figures(strategies: tuple[StrategyStatus, ...], label_prefix: str) -> SeriesLines:
    """Yield the family of each known figure, and one family with all others."""
    others: list[str] = []
    for strategy in strategies:
        for figure, value in strategy.figures:
            family = FIGURES.get((strategy.name, figure))
            if family is not None:
                yield family[0], [sample_line(family[0], label_prefix, value)]
                continue
            labels = label_pairs(("strategy", "figure"), (strategy.name, figure))
            others.append(sample_line(f"{PREFIX}strategy_figure", label_prefix, value, labels))
    yield f"{PREFIX}strategy_figure", others


def _enforced_files(snapshot: NodeSnapshot, label_prefix: str) -> SeriesLines:
    files = snapshot.desired_files
    classes = {
        cgroup: qos_class(pod)
        for pod in snapshot.pods.value
        for cgroup in (pod.cgroup, *(container.cgroup for container in pod.containers))
        if cgroup
    }
    counts: Counter[tuple[str, str]] = Counter()
    for one in (*files.strategies, *files.hooks, *files.directories):
        counts[one.owner, classes.get(one.cgroup, NO_CLASS)] += 1
    name = f"{PREFIX}enforced_files"
    yield (
        name,
        [
            sample_line(name, label_prefix, count, label_pairs(("owner", "qos_class"), key))
            for key, count in sorted(counts.items())
        ],
    )


def _choices(
    short: str, label: str, rows: list[tuple[str, str, bool]], label_prefix: str
) -> tuple[str, list[str]]:
    """Return a family with 1 for the choice of each strategy and 0 for the others."""
    name = f"{PREFIX}{short}"
    return name, [
        sample_line(
            name,
            label_prefix,
            int(is_chosen),
            label_pairs(("strategy", label), (strategy, choice)),
        )
        for strategy, choice, is_chosen in rows
    ]


def _state(view: EnforcementView, label_prefix: str) -> SeriesLines:
    for short, value in (("frozen", view.is_frozen), ("stopped", bool(view.brake))):
        name = f"{PREFIX}enforcement_{short}"
        yield name, [sample_line(name, label_prefix, int(value))]
    name = f"{PREFIX}enforcement_conditions"
    reasons = [condition.reason for condition in view.conditions]
    yield (
        name,
        [
            sample_line(
                name, label_prefix, reasons.count(reason), label_pairs(("reason",), (reason,))
            )
            for reason in sorted(set(reasons))
        ],
    )


def limit_series(snapshot: NodeSnapshot, node: str, labels: LabelCache) -> SeriesLines:
    """Yield burst and quota of the containers that a strategy sets, each once."""
    bursts, quotas = burst_values(snapshot.desired_files), quota_values(snapshot.desired_files)
    burst_rows: dict[str, float] = {}  # by label prefix: a pod may be listed twice
    quota_rows: dict[str, float] = {}
    for pod in snapshot.pods.value if bursts or quotas else ():
        for container in pod.containers:
            burst_us, quota = bursts.get(container.cgroup), quotas.get(container.cgroup)
            if burst_us is None and quota is None:
                continue
            values = (node, pod.namespace, pod.name, pod.uid, container.name, container.id)
            prefix = labels.prefix(CONTAINER, values)
            if burst_us is not None:
                burst_rows[prefix] = burst_us / 1e6
            if quota is not None:
                quota_rows[prefix] = quota[0] / quota[1]
    for name, rows in (
        ("xpu_container_cpu_burst_seconds", burst_rows),
        ("xpu_container_cpu_quota_cores", quota_rows),
    ):
        yield name, [sample_line(name, prefix, value) for prefix, value in rows.items()]


def burst_values(files: DesiredFiles) -> dict[str, int]:
    """Return the bursts that strategies set, in microseconds, by cgroup."""
    return {
        one.cgroup: int(text)
        for one, text in _texts(files.strategies, BURST_FILE, files.version)
        if text.isdecimal()
    }


def quota_values(files: DesiredFiles) -> dict[str, tuple[int, int]]:
    """Return quota and period that strategies set, in microseconds, by cgroup with a limit."""
    quotas = {}
    for one, text in _texts(files.strategies, QUOTA_FILE, files.version):
        quota, _, period = text.partition(" ")
        if quota not in NO_QUOTA:
            quotas[one.cgroup] = int(quota), int(period)
    return quotas


def _texts(
    files: Iterable[DesiredFile], key_name: str, version: int
) -> Iterator[tuple[DesiredFile, str]]:
    return ((file, file.text(version)) for file in files if file.key_name == key_name)
