"""Families of strategies, changes and limits that the agent enforces."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, QUOTA
from agent.cgroup.write_plan import DesiredValue
from agent.metrics.enforcement_series import BURST as BURST_STRATEGY
from agent.metrics.enforcement_series import (
    ENFORCEMENT_FAMILIES,
    FIGURES,
    MEMORY_QOS,
    RESCTRL,
    SUPPRESSION,
)
from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.container import ContainerServiceStatus
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import Histogram, SnapshotPart
from agent.snapshot.pod import EvictionStatus
from agent.snapshot.self_check import (
    DesiredFiles,
    EnforcementCounters,
    EnforcementView,
    FileCondition,
    StrategyState,
    StrategyStatus,
)
from agent.wire_formats.annotations import qos_class
from tests.factory import NOW_S, pod, snapshot

LABELS = (
    *(
        "strategy",
        "mode",
        "state",
        "owner",
        "result",
        "errno",
        "reason",
        "le",
        "figure",
        "qos_class",
    ),
    "outcome",
)
BARE = pod(0)
CGROUP = f"{BARE.cgroup}/{BARE.containers[0].id}"
POD = replace(BARE, containers=(replace(BARE.containers[0], cgroup=CGROUP),))
BURSTS = (
    DesiredValue(cgroup=CGROUP, key=BURST, value=40_000, owner="cpu_burst"),
    DesiredValue(cgroup=CGROUP, key=QUOTA, value=Bandwidth(150_000), owner="cpu_burst"),
    DesiredValue(cgroup="/kubepods/other", key=BURST, value=1, owner="cpu_burst"),
)


EVICTIONS = EvictionStatus(
    outcomes=(
        ("BEMemoryEvict", (("blocked", 4), ("evicted", 2))),
        ("CPUEvict", (("killed", 1),)),
    ),
    pods={("team-a", "p", "BEMemoryEvict"): 2, ("team-a", "p", "CPUEvict"): 1},
    blocked=("team-a/q",),
)


def figures(strategy: str) -> tuple[tuple[str, float], ...]:
    """Return every figure of a strategy that has a family."""
    values = {"budget_cores": 7.5, "cpuset_cpus": 8.0}
    return tuple((name, values.get(name, 1.0)) for owner, name in FIGURES if owner == strategy)


def busy() -> NodeSnapshot:
    view = EnforcementView(
        strategies=(
            StrategyStatus(
                name="cpu_suppression",
                mode="on",
                state=StrategyState.ACTIVE,
                values=9,
                figures=(("suppressed_cpus", 12.0), *figures(SUPPRESSION)),
            ),
            StrategyStatus(
                name=MEMORY_QOS,
                mode="plan",
                state=StrategyState.UNSUPPORTED,
                figures=figures(MEMORY_QOS),
            ),
            *(
                StrategyStatus(
                    name=name, mode="on", state=StrategyState.IDLE, figures=figures(name)
                )
                for name in (BURST_STRATEGY, RESCTRL)
            ),
        ),
        is_frozen=True,
        brake="101 writes were refused",
        conditions=(
            FileCondition(reason="WritesStopped", message="a"),
            FileCondition(reason="WritesStopped", message="b"),
        ),
    )
    counters = EnforcementCounters(
        changes=(("cpu_burst", "written", 7), ("cpu_burst", "planned", 2)),
        refusals=(("cpu_burst", "EINVAL", 3),),
        cycles=Histogram(bounds=(0.01,), buckets=(4, 5), sum_s=0.25),
        lost_audits=6,
    )
    return replace(
        snapshot(pods=(POD,)),
        enforcement=SnapshotPart(view, NOW_S),
        desired_files=DesiredFiles(strategies=BURSTS),
        container_service=ContainerServiceStatus(enforcement=counters, evictions=EVICTIONS),
    )


def samples(snap: NodeSnapshot) -> dict[tuple[str, frozenset[str]], float]:
    """Return the values by name and labels, without those of the node and the pod."""
    page = MetricsRenderer({}).render(snap, NOW_S).decode()
    return {
        (
            sample.name,
            frozenset(value for label, value in sample.labels.items() if label in LABELS),
        ): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("xpu_agent_strategy_mode", {"cpu_suppression", "on"}, 1),
        ("xpu_agent_strategy_mode", {"cpu_suppression", "plan"}, 0),
        ("xpu_agent_strategy_state", {"cpu_suppression", "active"}, 1),
        ("xpu_agent_strategy_state", {"memory_qos", "unsupported"}, 1),
        ("xpu_agent_strategy_state", {"memory_qos", "active"}, 0),
        ("xpu_agent_strategy_desired_values", {"cpu_suppression"}, 9),
        ("xpu_agent_strategy_figure", {"cpu_suppression", "suppressed_cpus"}, 12),
        ("xpu_node_best_effort_cpu_budget_cores", set(), 7.5),
        ("xpu_node_best_effort_cpus", set(), 8),
        ("xpu_agent_enforced_files", {"cpu_burst", qos_class(POD)}, 2),
        ("xpu_agent_enforced_files", {"cpu_burst", "node"}, 1),
        ("xpu_agent_enforcement_frozen", set(), 1),
        ("xpu_agent_enforcement_stopped", set(), 1),
        ("xpu_agent_enforcement_conditions", {"WritesStopped"}, 2),
        ("xpu_agent_enforcement_changes_total", {"cpu_burst", "written"}, 7),
        ("xpu_agent_enforcement_changes_total", {"cpu_burst", "planned"}, 2),
        ("xpu_agent_enforcement_refusals_total", {"cpu_burst", "EINVAL"}, 3),
        ("xpu_agent_enforcement_cycle_seconds_bucket", {"0.01"}, 4),
        ("xpu_agent_enforcement_cycle_seconds_count", set(), 5),
        ("xpu_agent_enforcement_cycle_seconds_sum", set(), 0.25),
        ("xpu_agent_enforcement_lost_audit_records_total", set(), 6),
        ("xpu_agent_evictions_total", {"BEMemoryEvict", "evicted"}, 2),
        ("xpu_agent_evictions_total", {"BEMemoryEvict", "blocked"}, 4),
        ("xpu_agent_evictions_total", {"CPUEvict", "killed"}, 1),
        ("xpu_agent_eviction_blocked_pods", set(), 1),
        ("xpu_pod_evictions_total", {"BEMemoryEvict"}, 2),
        ("xpu_pod_evictions_total", {"CPUEvict"}, 1),
        ("xpu_container_cpu_burst_seconds", set(), 0.04),
        ("xpu_container_cpu_quota_cores", set(), 1.5),
    ],
)
def test_each_family_has_its_value(name: str, labels: set[str], value: float) -> None:
    assert samples(busy())[name, frozenset(labels)] == value


def test_a_container_without_a_limit_has_no_quota() -> None:
    unlimited = replace(BURSTS[1], value=Bandwidth(-1))
    for version in (1, 2):
        files = DesiredFiles(version=version, strategies=(unlimited,))
        names = {name for name, _ in samples(replace(busy(), desired_files=files))}
        assert "xpu_container_cpu_quota_cores" not in names


def test_without_files_of_pods_there_are_no_families_of_enforcement() -> None:
    names = {name for name, _ in samples(snapshot(pods=(POD,)))}
    assert not any("strateg" in name or "enforcement" in name for name in names)


def test_every_family_is_declared_and_both_formats_can_be_read() -> None:
    renderer = MetricsRenderer({})
    text = renderer.render(busy(), NOW_S, openmetrics=True).decode()
    read = openmetrics_parser.text_string_to_metric_families
    parsed = {one.name for one in read(text)}  # type: ignore[no-untyped-call]  # it has no types
    assert {family.name.removesuffix("_total") for family in ENFORCEMENT_FAMILIES} <= parsed
