"""koordlet's metrics have its names, labels and units; what is missing has a reason."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, QUOTA
from agent.cgroup.write_plan import DesiredValue
from agent.metrics.exposition import MAX_VALUE_AGE_S, MetricsRenderer
from agent.metrics.koordlet import KOORDLET_ABSENT, koordlet_families
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.container import ContainerServiceStatus
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerResources, EvictionStatus
from agent.snapshot.self_check import (
    DesiredFiles,
    EnforcementView,
    StrategyState,
    StrategyStatus,
)
from agent.snapshot.usage import (
    BestEffortUsage,
    CgroupUsage,
    ContainerCycles,
    CycleUsage,
    NumaAggregate,
    PredictedUsage,
    Prediction,
    ResctrlCounters,
    ResctrlUsage,
    ResourceUsage,
    UsageReport,
)
from tests.captures import SHARED, needs_shared
from tests.factory import NOW_S, pod, snapshot

BATCH = ContainerResources(
    name="worker-0", batch_cpu_milli=500, batch_cpu_limit_milli=1000, mid_memory_bytes=1 << 30
)
INIT = ContainerResources(name="ended", is_init=True, batch_cpu_milli=9, mid_memory_bytes=9)
POD = replace(pod(0), resources=(INIT, BATCH))
ORACLES = ("koordlet-internal-metrics.txt", "koordlet-external-metrics.txt")
USE = ResourceUsage(cpu_cores=1.5, memory_bytes=2.0**30)
PREDICTION = Prediction(
    pods=PredictedUsage(reclaimable=USE, peak=USE),
    classes=PredictedUsage(
        reclaimable=ResourceUsage(cpu_cores=1.0, memory_bytes=2.0**31), peak=USE
    ),
)
Series = dict[str, list[tuple[dict[str, str], float]]]

EVICTIONS = EvictionStatus(
    outcomes=(
        ("BEMemoryEvict", (("blocked", 4), ("evicted", 2))),
        ("CPUEvict", (("killed", 1), ("planned", 9))),
    ),
    pods={("team-a", "p", "BEMemoryEvict"): 2, ("team-a", "p", "CPUEvict"): 1},
)


def full() -> NodeSnapshot:
    """Return a snapshot that has every figure."""
    snap = snapshot(pods=(POD,))
    usage = replace(
        snap.usage.value,
        best_effort=BestEffortUsage(use=CgroupUsage(cpu_cores=0.5)),
        cycles=CycleUsage(
            containers={
                POD.containers[0].id: ContainerCycles(cycles=30, instructions=10, window_s=10.0)
            }
        ),
        resctrl=ResctrlUsage(
            groups=(
                ResctrlCounters(
                    group="LS", cache_id=0, occupancy_bytes=7, total_bytes=9, local_bytes=8
                ),
                ResctrlCounters(group="default", cache_id=0, occupancy_bytes=1),
            )
        ),
    )
    node = NodeView(name="n", uid="u", allocatable={"kubernetes.io/batch-cpu": "1k"})
    report = UsageReport(
        node=USE,
        system=USE,
        numa=(NumaAggregate(node_id=0, node=USE, system=USE),),
        prediction=PREDICTION,
    )
    suppression = StrategyStatus(
        name="cpu_suppression",
        mode="on",
        state=StrategyState.ACTIVE,
        figures=(
            *(("budget_cores", 4.0), ("protected_pods_cores", 2.5)),
            *(("cpuset_cpus", 12.0), ("quota_cores", 3.5)),
        ),
    )
    cgroup = POD.containers[0].cgroup
    files = (
        DesiredValue(cgroup=cgroup, key=BURST, value=40_000, owner="cpu_burst"),
        DesiredValue(cgroup=cgroup, key=QUOTA, value=Bandwidth(150_000), owner="cpu_burst"),
    )
    return replace(
        snap,
        enforcement=SnapshotPart(EnforcementView(strategies=(suppression,)), NOW_S),
        desired_files=DesiredFiles(strategies=files),
        usage=SnapshotPart(usage, NOW_S),
        cluster=ClusterView(node=SnapshotPart(node)),
        report=SnapshotPart(report, NOW_S),
        container_service=ContainerServiceStatus(evictions=EVICTIONS),
    )


def exported(
    snap: NodeSnapshot, aliases: tuple[str, ...] = ("koordlet",), now_s: float = NOW_S
) -> Series:
    page = MetricsRenderer({}, aliases=aliases).render(snap, now_s).decode()
    series: Series = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith("koordlet_"):
                series.setdefault(sample.name, []).append((sample.labels, sample.value))
    return series


def test_no_family_of_koordlet_is_exported_by_default() -> None:
    assert exported(full(), ("hami",)) == {}


def test_what_was_measured_is_not_exported_when_it_is_old() -> None:
    measured = {"predicted", "metric", "priority", "psi", "application"}
    series = exported(full(), now_s=NOW_S + MAX_VALUE_AGE_S + 1)
    assert not [name for name in series if measured & set(name.split("_"))]
    assert "koordlet_node_resource_allocatable" in series


@needs_shared
def test_each_family_of_a_real_koordlet_is_there_with_its_labels_or_absent_with_a_reason() -> None:
    own_values = {family.name: set(family.labels) for family in koordlet_families(("koordlet",))}
    for name in ORACLES:
        text = (SHARED / "oracle" / name).read_text()
        for metric, labels in re.findall(r"^(koordlet_\w+?)\{(.*)\} ", text, re.MULTILINE):
            base = re.sub(r"_(bucket|sum|count)$", "", metric)
            if base.removeprefix("koordlet_") in KOORDLET_ABSENT:
                continue
            assert own_values[base] == set(re.findall(r'(\w+)="', labels)), base


def test_predictions_have_koordlets_predictors_and_units() -> None:
    series = exported(full())
    reclaimable = {
        (labels["predictor"], labels["resource"], labels["unit"]): value
        for labels, value in series["koordlet_node_predicted_resource_reclaimable"]
    }
    assert reclaimable["minPredictor", "cpu", "core"] == 1.0
    assert reclaimable["podReclaimablePredictor", "cpu", "core"] == 1.5
    assert reclaimable["priorityReclaimablePredictor", "memory", "byte"] == 2.0**31
    assert len(reclaimable) == 6
    priority = series["koordlet_node_priority_resource_reclaimable"]
    assert [labels["priority"] for labels, _ in priority] == ["koord-prod", "koord-prod"]


def test_a_prediction_that_failed_has_the_status_1_and_no_amounts() -> None:
    report = UsageReport(node=USE, prediction=Prediction(error="why"))
    series = exported(replace(full(), report=SnapshotPart(report, NOW_S)))
    ((_, status),) = series["koordlet_node_resource_priority_reclaimable_status"]
    assert status == 1
    assert "koordlet_node_predicted_resource_reclaimable" not in series


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("node_resource_allocatable", {"resource": "kubernetes.io/batch-cpu"}, 1000.0),
        ("be_suppress_be_used_cpu_cores", {}, 0.5),
        ("container_cpi", {"cpi_field": "cycles", "pod_name": "train-0"}, 30.0),
        ("container_cpi", {"cpi_field": "instructions", "container_name": "worker-0"}, 10.0),
        ("resctrl_llc_occupancy", {"qos": "LS", "cache_id": "0"}, 7.0),
        ("resctrl_memory_bandwidth", {"mb_type": "mbm_total_bytes"}, 9.0),
        ("node_metric_numa_node_usage", {"numa_node_id": "0", "unit": "core"}, 1.5),
        ("pod_psi", {"psi_resource_type": "cpu", "psi_degree": "some"}, 1.5),
        ("be_suppress_cpu_cores", {"type": "cpuset"}, 12.0),
        ("be_suppress_ls_used_cpu_cores", {}, 2.5),
        ("be_suppress_cpu_cores", {"type": "cfsQuota"}, 3.5),
        ("container_scaled_cfs_burst_us", {"pod_name": "train-0"}, 40000.0),
        ("container_scaled_cfs_quota_us", {"container_name": "worker-0"}, 150000.0),
        ("pod_eviction", {"reason": "evicted"}, 3.0),
        ("pod_eviction_detail", {"reason": "evicted", "pod_name": "p"}, 3.0),
    ],
)
def test_a_figure_of_the_agent_has_koordlets_name(
    name: str, labels: dict[str, str], value: float
) -> None:
    samples = exported(full())[f"koordlet_{name}"]
    assert value in [number for got, number in samples if labels.items() <= got.items()]


def test_batch_and_mid_resources_of_a_container_have_the_units_of_each_resource() -> None:
    series = exported(full())
    requests, limits = (
        {
            (labels["container_name"], labels["resource"], labels["unit"], value)
            for labels, value in series[f"koordlet_container_resource_{kind}"]
        }
        for kind in ("requests", "limits")
    )
    assert requests == {
        ("worker-0", "kubernetes.io/batch-cpu", "integer", 500.0),
        ("worker-0", "kubernetes.io/mid-memory", "byte", 2.0**30),
    }
    assert limits == {("worker-0", "kubernetes.io/batch-cpu", "integer", 1000.0)}


def test_a_pod_whose_spec_is_unknown_has_no_resources() -> None:
    unknown = replace(POD, resources=None)
    series = exported(replace(full(), pods=SnapshotPart((unknown,), NOW_S)))
    assert "koordlet_container_resource_requests" not in series


def test_an_id_of_a_container_has_the_scheme_of_the_pods_status() -> None:
    (container,) = POD.containers
    entries = replace(POD, containers=(replace(container, runtime="containerd"),))
    snap = full()
    ids = {
        labels["container_id"]
        for one in (snap, replace(snap, pods=SnapshotPart((entries,), NOW_S)))
        for labels, _ in exported(one)["koordlet_container_psi"]
    }
    assert ids == {container.id, f"containerd://{container.id}"}


def test_groups_of_resctrl_that_are_no_class_are_left_out() -> None:
    samples = exported(full())["koordlet_resctrl_llc_occupancy"]
    assert [labels["qos"] for labels, _ in samples] == ["LS"]


def test_old_usage_has_no_samples() -> None:
    snap = full()
    series = exported(replace(snap, usage=replace(snap.usage, taken_s=NOW_S - 3600)))
    assert "koordlet_node_used_cpu_cores" not in series


def test_a_pod_that_is_listed_twice_has_its_samples_once() -> None:
    once = full()
    twice = replace(once, pods=replace(once.pods, value=once.pods.value * 2))
    pages = [MetricsRenderer({}, aliases=("koordlet",)).render(one, NOW_S) for one in (once, twice)]
    assert pages[0] == pages[1]
    assert b"koordlet_container_psi{" in pages[0]
    assert b"koordlet_container_cpi{" in pages[0]
