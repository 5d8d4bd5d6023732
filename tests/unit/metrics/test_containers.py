"""Families of the way into containers."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.container_series import CONTAINER_FAMILIES
from agent.metrics.exposition import MetricsRenderer
from agent.nri.statistics import LATENCY_BOUNDS_S, NriCounters
from agent.snapshot.allocation import (
    AllocationView,
    ContainerVerification,
    PodAllocation,
    VerificationStatus,
    VerificationView,
)
from agent.snapshot.container import ContainerServiceStatus, HookMetrics, RuntimeView
from agent.snapshot.device_plugin import ALLOCATION_BUCKETS_S as PLUGIN_BOUNDS_S
from agent.snapshot.device_plugin import (
    DevicePluginView,
    KubeletAllocation,
    PluginResource,
    ResourceStatistics,
)
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import Histogram, SnapshotPart

ODD = 'p"\\\n'


def figures() -> NriCounters:
    """Return what a plug-in counted."""
    nri_counters = NriCounters()
    for took_s in (0.0002, 0.0007, 5.0):
        nri_counters.count_answer("CreateContainer", "ok", took_s)
    nri_counters.count_answer("CreateContainer", "late", 0.5)
    nri_counters.ends["ClosedByRuntime"] += 2
    nri_counters.adjustments, nri_counters.oversized = 3, 1
    return nri_counters


STATUS = ContainerServiceStatus(
    nri=figures().statistics,
    hooks=(HookMetrics(hook="devices", calls=4, spent_s=0.25, failures=1, planned=2),),
    refusals=(("DeviceTaken", 2),),
    plugin=(
        ResourceStatistics(
            name="nvidia.com/gpu",
            allocations=(("ok", 2), ("AmbiguousPod", 1)),
            latency=Histogram(
                bounds=PLUGIN_BOUNDS_S, buckets=(*([1] * len(PLUGIN_BOUNDS_S)), 3), sum_s=0.5
            ),
            registrations=(("ok", 1),),
        ),
    ),
    files_written=7,
    files_left=1,
    reclaimed=1,
)
PROOFS = {
    str(number): ContainerVerification(
        container_id=str(number), container="main", namespace="d", pod=f"{ODD}{number}", verdict=v
    )
    for number, v in enumerate(VerificationStatus)
}
SNAPSHOT = NodeSnapshot(
    node=NodeIdentity(name="node-a"),
    runtime=SnapshotPart(RuntimeView(state="synchronized"), 0.0),
    allocations=SnapshotPart(
        AllocationView(
            pods={"a": PodAllocation(uid="a"), "b": PodAllocation(uid="b", refusal="BadGrant")}
        ),
        0.0,
    ),
    verification=SnapshotPart(VerificationView(containers=PROOFS), 0.0),
    served=SnapshotPart(
        DevicePluginView(
            resources=(
                PluginResource(
                    name="nvidia.com/gpu",
                    vendor="nvidia",
                    state="watched",
                    devices=8,
                    healthy=7,
                    withdrawn_ids=("GPU-7",),
                ),
            ),
            # an init container and the one that reuses its device
            held=tuple(
                KubeletAllocation(
                    pod_uid="a",
                    resource="nvidia.com/gpu",
                    ids=("GPU-1",),
                    container=name,
                    exchanges=(("GPU-1", "GPU-2"),),
                )
                for name in ("init", "main")
            ),
        ),
        0.0,
    ),
)


def page(status: ContainerServiceStatus | None = STATUS, *, openmetrics: bool = False) -> str:
    """Render one page."""
    renderer = MetricsRenderer({})
    snapshot = replace(SNAPSHOT, container_service=status)
    return renderer.render(snapshot, 0.0, openmetrics=openmetrics).decode()


def samples(text: str) -> dict[str, float]:
    """Return samples by name and labels but the node's."""
    return {
        f"{sample.name}{sorted(item for item in sample.labels.items() if item[0] != 'node')}": (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(name: str, **labels: str) -> float | None:
    """Return one sample of the page."""
    return samples(page()).get(f"xpu_agent_{name}{sorted(labels.items())}")


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("runtime_state", {"state": "synchronized"}, 1),
        ("runtime_state", {"state": "waiting"}, 0),
        ("runtime_requests_total", {"method": "CreateContainer", "result": "ok"}, 3),
        ("runtime_requests_total", {"method": "CreateContainer", "result": "late"}, 1),
        ("runtime_ends_total", {"reason": "ClosedByRuntime"}, 2),
        ("runtime_adjustments_total", {}, 3),
        ("runtime_oddities_total", {"kind": "oversized"}, 1),
        ("hook_calls_total", {"hook": "devices"}, 4),
        ("hook_seconds_total", {"hook": "devices"}, 0.25),
        ("hook_failures_total", {"hook": "devices"}, 1),
        ("hook_planned_total", {"hook": "devices"}, 2),
        ("container_refusals_total", {"reason": "DeviceTaken"}, 2),
        ("grants", {"state": "held"}, 1),
        ("grants", {"state": "refused"}, 1),
        ("allocations", {"verdict": "missing"}, 1),
        ("deviceplugin_state", {"resource": "nvidia.com/gpu", "state": "watched"}, 1),
        ("deviceplugin_devices", {"resource": "nvidia.com/gpu", "health": "healthy"}, 7),
        ("deviceplugin_devices", {"resource": "nvidia.com/gpu", "health": "unhealthy"}, 1),
        ("deviceplugin_devices_withdrawn", {"resource": "nvidia.com/gpu"}, 1),
        ("deviceplugin_devices_exchanged", {"resource": "nvidia.com/gpu"}, 1),
        ("deviceplugin_allocations_total", {"resource": "nvidia.com/gpu", "result": "ok"}, 2),
        ("deviceplugin_registrations_total", {"resource": "nvidia.com/gpu", "result": "ok"}, 1),
        ("pod_files_written_total", {}, 7),
        ("pod_files_left", {}, 1),
        ("slices_reclaimed_total", {}, 1),
    ],
)
def test_each_part_is_measured(name: str, labels: dict[str, str], expected: float) -> None:
    assert value(name, **labels) == expected


def test_a_container_is_verified_or_not_and_absent_where_nobody_could_look() -> None:
    verdicts = {
        sample.labels["pod"][-1]: sample.value
        for family in text_string_to_metric_families(page())
        for sample in family.samples
        if sample.name == "xpu_agent_allocation_verified"
    }
    expected = {
        VerificationStatus.VERIFIED: 1.0,
        VerificationStatus.MISSING: 0.0,
        VerificationStatus.EXCESS: 0.0,
    }
    assert verdicts == {
        str(n): expected[verdict]
        for n, verdict in enumerate(VerificationStatus)
        if verdict in expected
    }


def test_buckets_add_up_to_all_answers() -> None:
    result = samples(page())
    name = "xpu_agent_runtime_request_seconds"
    counts = [
        result[f"{name}_bucket{[('le', repr(float(bound))), ('method', 'CreateContainer')]}"]
        for bound in LATENCY_BOUNDS_S
    ]
    assert counts == sorted(counts)
    whole = result[f"{name}_bucket{[('le', '+Inf'), ('method', 'CreateContainer')]}"]
    assert whole == result[f"{name}_count{[('method', 'CreateContainer')]}"] == 4
    assert result[f"{name}_sum{[('method', 'CreateContainer')]}"] == pytest.approx(5.5009)


def test_every_sample_belongs_to_a_declared_family_with_its_labels() -> None:
    families = {family.name: family for family in CONTAINER_FAMILIES}
    read = openmetrics_parser.text_string_to_metric_families
    for family in read(page(openmetrics=True)):  # type: ignore[no-untyped-call]  # it has no types
        for sample in family.samples:
            name = next((n for n in (sample.name, family.name) if n in families), None)
            if name is not None:
                labels = set(sample.labels) - {"le"}
                assert labels <= set(families[name].labels)


def test_without_the_services_there_are_no_series() -> None:
    assert "xpu_agent_runtime_state" not in page(None)


def test_a_runtime_that_is_not_dialled_has_a_state_and_no_figures() -> None:
    text = page(replace(STATUS, nri=None, plugin=(), files_left=None))
    assert "xpu_agent_runtime_state" in text
    assert "xpu_agent_runtime_requests_total" not in text
    assert "xpu_agent_pod_files_left" not in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
def test_promtool_finds_nothing_wrong() -> None:
    outcome = subprocess.run(
        ["promtool", "check", "metrics"], input=page(), capture_output=True, text=True, check=False
    )
    assert not [
        line for line in outcome.stderr.splitlines() if "_runtime_" in line or "_hook_" in line
    ]
