"""The cluster side's own families."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.cluster_series import CLUSTER_FAMILIES
from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.cluster import (
    ApiSessionStatus,
    ClusterServiceStatus,
    ClusterView,
    EventCounts,
    EventSinkState,
    KubeletStatus,
    WatchStatus,
)
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import FieldConflict, WriterPhase, WriterState
from agent.snapshot.slo import NodeSloView

SNAPSHOT = NodeSnapshot(node=NodeIdentity(name="node-a"))
STATUS = ClusterServiceStatus(
    session=ApiSessionStatus(
        reachable=False, requests={("GET", "200"): 3, ("PATCH", "none"): 1}, clock_skew_s=-7.5
    ),
    watches=(WatchStatus(resource="nodes", synced=True, events=4, last_contact_s=90.0),),
    writers=(
        WriterState(
            kind="Device",
            name="node-a",
            publisher="device",
            phase=WriterPhase.IN_CONFLICT,
            written=2,
            ack_latency_s=0.03,
            conflicts=(FieldConflict(manager="koordlet", fields=(".spec.devices",)),),
        ),
    ),
    events=EventSinkState(counts=EventCounts(created=5, waiting=1)),
    kubelet=KubeletStatus(pods="hanging", polls=(("ok", 7), ("hanging", 1))),
)


def samples(cluster: ClusterServiceStatus | None) -> dict[tuple[str, tuple[str, ...]], float]:
    snapshot = replace(SNAPSHOT, cluster_service=cluster)
    page = MetricsRenderer({}).render(snapshot, 100.0).decode()
    return {
        (sample.name, tuple(v for k, v in sorted(sample.labels.items()) if k != "node")): (
            sample.value
        )
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_every_part_of_the_cluster_side_has_its_samples() -> None:
    result = samples(STATUS)
    assert result["xpu_agent_api_reachable", ()] == 0
    assert result["xpu_agent_api_requests_total", ("none", "PATCH")] == 1
    assert result["xpu_agent_api_clock_skew_seconds", ()] == -7.5
    assert result["xpu_agent_watch_contact_age_seconds", ("nodes",)] == 10.0
    assert result["xpu_agent_object_state", ("Device", "device", "held")] == 1
    assert result["xpu_agent_object_state", ("Device", "device", "idle")] == 0
    assert result["xpu_agent_object_rivals", ("Device", "device")] == 1
    assert result["xpu_agent_cluster_events_total", ("created",)] == 5
    assert result["xpu_agent_kubelet_state", ("hanging",)] == 1
    assert result["xpu_agent_kubelet_state", ("ok",)] == 0


def test_two_publishers_of_one_object_are_two_series() -> None:
    writers = tuple(
        WriterState(kind="Node", name="node-a", publisher=name)
        for name in ("node_labels", "node_condition")
    )
    snapshot = replace(SNAPSHOT, cluster_service=replace(STATUS, writers=writers))
    page = MetricsRenderer({}).render(snapshot, 100.0)
    lines = [line.rpartition(" ")[0] for line in page.decode().splitlines() if line[0] != "#"]
    assert len(set(lines)) == len(lines)


def test_each_declared_family_is_exported_by_a_full_status() -> None:
    names = {name for name, _ in samples(STATUS)}
    assert {family.name for family in CLUSTER_FAMILIES} <= names


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_complain_about() -> None:
    snapshot = replace(
        SNAPSHOT,
        cluster=ClusterView(is_clustered=True, slo=SnapshotPart(NodeSloView(), 1.0)),
        cluster_service=STATUS,
    )
    page = MetricsRenderer({}).render(snapshot, 100.0)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_what_nobody_knows_yet_is_no_sample() -> None:
    unasked = ClusterServiceStatus(
        session=ApiSessionStatus(),
        watches=(WatchStatus(resource="nodes"),),
        writers=(),
        events=None,
        kubelet=None,
    )
    names = {name for name, _ in samples(unasked)}
    assert "xpu_agent_api_reachable" not in names
    assert "xpu_agent_watch_contact_age_seconds" not in names


def test_standalone_mode_exports_nothing_of_a_cluster() -> None:
    cluster = {family.name for family in CLUSTER_FAMILIES}
    assert not cluster & {name for name, _ in samples(None)}
