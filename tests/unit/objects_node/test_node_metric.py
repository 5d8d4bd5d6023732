"""NodeMetric in a cluster: whose object it is, how often, and what a real koordlet wrote."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from msgspec.structs import replace

from agent.objects.node_metric import NodeMetricPublisher
from agent.snapshot.cluster import ClusterView, MetricCollectPolicy
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.usage import (
    NumaAggregate,
    PodAggregate,
    ResourceUsage,
    UsageAggregate,
    UsageReport,
)
from agent.wire_formats.quantities import parse_amount
from tests import clustered
from tests.captures import SHARED, needs_shared

Tree = Any
POLICY = MetricCollectPolicy()
REPORT = UsageReport(node=ResourceUsage(cpu_cores=1.0, memory_bytes=1.0))


def reported(
    policy: MetricCollectPolicy | None = POLICY, report: UsageReport = REPORT
) -> NodeSnapshot:
    return replace(clustered.snapshot(policy=policy), report=SnapshotPart(report, 1.0))


def test_without_an_object_nothing_is_rendered_so_that_nothing_is_created() -> None:
    assert NodeMetricPublisher().render(reported(None), 0.0) == ()
    (desired,) = NodeMetricPublisher().render(reported(), 0.0)
    assert desired.status_only


def test_an_object_that_goes_takes_the_reports_with_it() -> None:
    now = reported()
    without_object = replace(
        now, cluster=replace(now.cluster, metric_policy=SnapshotPart(None, 9.0))
    )
    assert NodeMetricPublisher().render(without_object, 0.0) == ()


def test_without_a_cluster_the_report_is_a_file_as_ever() -> None:
    now = reported(None)
    alone = replace(now, cluster=replace(now.cluster, is_clustered=False))
    assert len(NodeMetricPublisher().render(alone, 0.0)) == 1


@pytest.mark.parametrize(
    ("told_s", "period_s"),
    [
        (None, 90.0),
        (60.0, 60.0),
        (30.0, 30.0),
        (1.0, 30.0),
        (0.0, 90.0),
        (-5.0, 30.0),
        (1e30, 86400),
    ],
)
def test_the_period_is_that_of_the_object_and_never_under_half_a_minute(
    told_s: float | None, period_s: float
) -> None:
    publisher = NodeMetricPublisher(interval_s=90.0)
    assert publisher.period_s(reported(MetricCollectPolicy(report_interval_s=told_s))) == period_s


def test_without_an_object_reports_are_attempted_more_often() -> None:
    assert NodeMetricPublisher(interval_s=90.0).period_s(reported(None)) == 5.0


def test_without_a_cluster_the_period_is_that_of_the_settings() -> None:
    alone = replace(reported(None), cluster=ClusterView())
    assert NodeMetricPublisher(interval_s=90.0).period_s(alone) == 90.0


@functools.cache
def koordlets() -> Tree:
    objects = json.loads((SHARED / "oracle" / "koordlet-objects.json").read_text())
    return objects["nodemetric"]["status"]


def resources(tree: Tree) -> ResourceUsage:
    """The values behind what was written."""
    amounts = tree.get("resources", {})
    cpu, memory = parse_amount(amounts.get("cpu", "")), parse_amount(amounts.get("memory", ""))
    return ResourceUsage(
        cpu_cores=None if cpu is None else float(cpu),
        memory_bytes=None if memory is None else float(memory),
    )


def windows(listed: Tree) -> dict[int, tuple[tuple[str, ResourceUsage], ...]]:
    return {
        int(entry["duration"].partition("m")[0]) * 60: tuple(
            (name, resources(value)) for name, value in entry["usage"].items() if value
        )
        for entry in listed
    }


def pods() -> tuple[PodView, ...]:
    """The pods of that machine, classified by nobody."""
    items = json.loads((SHARED / "oracle" / "koordlet-cgroup-files.json").read_text())["pods"]
    return tuple(
        PodView(
            uid=item["metadata"]["uid"],
            qos=KubeQos(item["status"]["qosClass"]),
            name=item["metadata"]["name"],
            namespace=item["metadata"]["namespace"],
            labels=tuple(item["metadata"].get("labels", {}).items()),
            priority=item["spec"].get("priority"),
        )
        for item in (items["items"] if isinstance(items, dict) else items)
    )


@needs_shared
def test_the_same_values_of_the_same_pods_are_written_as_a_real_koordlet_wrote_them() -> None:
    theirs = koordlets()
    node, system = (
        windows(theirs["nodeMetric"][f"aggregated{of}Usages"]) for of in ("Node", "System")
    )
    uses = {pod["name"]: resources(pod["podUsage"]) for pod in theirs["podsMetric"]}
    report = UsageReport(
        node=resources(theirs["nodeMetric"]["nodeUsage"]),
        system=resources(theirs["nodeMetric"]["systemUsage"]),
        aggregates=tuple(
            UsageAggregate(duration_s=length_s, node=node[length_s], system=system[length_s])
            for length_s in node
        ),
        numa=tuple(
            NumaAggregate(
                node_id=zone["numaNodeID"],
                node=resources(zone["nodeUsage"]),
                system=resources(zone["systemUsage"]),
            )
            for zone in theirs["nodeMetric"]["numaUsages"]
        ),
        pods=tuple(PodAggregate(uid=pod.uid, use=uses[pod.name]) for pod in pods()),
    )
    now = replace(reported(report=report), pods=SnapshotPart(pods(), 1.0))
    (desired,) = NodeMetricPublisher().render(now, 0.0)
    own_tree: Tree = desired.body["status"]
    assert own_tree["nodeMetric"] == theirs["nodeMetric"]
    assert own_tree["podsMetric"] == theirs["podsMetric"]
