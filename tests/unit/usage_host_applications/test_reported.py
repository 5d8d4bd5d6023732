from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from agent.objects.node_metric import NodeMetricPublisher
from agent.slo.status import build_slo_view
from agent.snapshot.cluster import ClusterView
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSloView
from agent.snapshot.usage import (
    ApplicationAggregate,
    CgroupUsage,
    ResourceUsage,
    UsageReport,
    UsageSample,
)
from agent.usage.history import UsageHistory, UsageReportPolicy
from tests.captures import needs_shared
from tests.schemas import check

GIB = 1 << 30
USE = ResourceUsage(cpu_cores=1.5, memory_bytes=2.0 * GIB)


def sample(**cores: float | None) -> UsageSample:
    return UsageSample(
        applications={
            name: CgroupUsage(cpu_cores=value, memory_bytes=5, memory_with_cache_bytes=9)
            for name, value in cores.items()
        }
    )


def test_applications_are_reported_by_their_means() -> None:
    history = UsageHistory()
    for now_s, cores in enumerate((1.0, 2.0, 6.0)):
        history.add(float(now_s), sample(b=cores, a=0.5))
    applications = history.report(2.0).applications
    assert [
        (application.name, application.use.cpu_cores, application.use.memory_bytes)
        for application in applications
    ] == [
        ("a", 0.5, 5.0),
        ("b", 3.0, 5.0),
    ]


def test_the_policy_with_cache_takes_applications_with_theirs() -> None:
    history = UsageHistory()
    history.add(0.0, sample(a=1.0))
    (one,) = history.report(0.0, UsageReportPolicy(memory="usageWithPageCache")).applications
    assert one.use.memory_bytes == 9.0


def test_an_application_without_a_rate_yet_is_not_reported_as_idle() -> None:
    history = UsageHistory()
    history.add(0.0, sample(a=None))
    assert history.report(0.0).applications == ()


def test_an_application_that_stopped_leaves_the_report() -> None:
    history = UsageHistory()
    history.add(0.0, sample(a=1.0, b=1.0))
    history.add(1.0, sample(b=1.0))
    assert [application.name for application in history.report(1.0).applications] == ["b"]


def test_an_application_is_no_pod() -> None:
    history = UsageHistory()
    history.add(0.0, sample(a=1.0))
    assert history.report(0.0).pods == ()


def snapshot(requests: list[dict[str, Any]], *used: str) -> NodeSnapshot:
    report = UsageReport(
        applications=tuple(ApplicationAggregate(name=name, use=USE) for name in used)
    )
    view = build_slo_view({"metadata": {}, "spec": {"hostApplications": requests}}, NodeSloView())
    return NodeSnapshot(
        node=NodeIdentity(name="node-0"),
        report=SnapshotPart(report, 1.0),
        cluster=ClusterView(slo=SnapshotPart(view, 1.0)),
    )


def body(node_snapshot: NodeSnapshot) -> Any:
    (desired,) = NodeMetricPublisher().render(node_snapshot, 1_767_323_045.0)
    return json.loads(json.dumps(desired.body))


ASKED = [
    {"name": "web", "qos": "LS", "priority": "koord-prod"},
    {"name": "batch", "qos": "BE"},
    {"name": "stopped"},
]


def test_node_metric_has_applications_by_name_with_their_classes() -> None:
    reports = body(snapshot(ASKED, "web", "batch"))["status"]["hostApplicationMetric"]
    usage = {"resources": {"cpu": "1500m", "memory": "2Gi"}}
    assert reports == [
        {"name": "batch", "usage": usage, "qos": "BE"},
        {"name": "web", "usage": usage, "qos": "LS", "priority": "koord-prod"},
    ]


@needs_shared
def test_node_metric_with_applications_fits_the_schema() -> None:
    check("slo.koordinator.sh_nodemetrics.yaml", body(snapshot(ASKED, "web", "batch")))


@pytest.mark.parametrize(("asked", "used"), [([], ("web",)), (ASKED, ())])
def test_without_a_running_requested_application_there_is_no_part_for_them(
    asked: list[dict[str, Any]], used: tuple[str, ...]
) -> None:
    assert "hostApplicationMetric" not in body(snapshot(asked, *used))["status"]


def test_without_a_node_slo_the_systems_usage_is_reported() -> None:
    report = UsageReport(node=USE, system=USE)
    reports = replace(snapshot([]), report=SnapshotPart(report, 1.0), cluster=ClusterView())
    assert body(reports)["status"]["nodeMetric"]["systemUsage"]["resources"]["memory"] == "2Gi"
