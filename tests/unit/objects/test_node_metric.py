from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.objects.node_metric import NodeMetricPublisher, format_duration
from agent.snapshot.device import Device, DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.usage import (
    DeviceUsage,
    NumaAggregate,
    PodAggregate,
    PredictedUsage,
    Prediction,
    ResourceUsage,
    UsageAggregate,
    UsageReport,
)
from tests.captures import SHARED, needs_shared
from tests.schemas import check

CRD = "slo.koordinator.sh_nodemetrics.yaml"
NOW_S = 1_767_323_045.0
GIB = 1 << 30
HEALTHY = Health()
FAILED = Health(state=HealthState.FAILED, reason="Xid79")

Tree = Any  # JSON of the object
USE = ResourceUsage(cpu_cores=38.25, memory_bytes=384.0 * GIB)
NAMES = ("avg", "p50", "p90", "p95", "p99")


def device(minor: int, kind: DeviceKind = DeviceKind.GPU, health: Health = HEALTHY) -> Device:
    info = VendorDevice(
        kind=kind,
        vendor="v",
        bus_id=f"0000:{minor:02x}:00.0",
        uuid=f"{kind.value}-{minor}",
        minor=minor,
        health=health,
    )
    return Device(info=info)


def use(
    of: Device, core: float | None = 97.6, used: float | None = 71680.0 * (1 << 20)
) -> DeviceUsage:
    return DeviceUsage(
        key=of.key, core_percent=core, memory_bytes=used, memory_total_bytes=81559 * (1 << 20)
    )


GPU, NPU = device(0), device(10, DeviceKind.NPU, FAILED)
REPORT = UsageReport(
    node=USE,
    system=ResourceUsage(cpu_cores=2.1509, memory_bytes=9.0 * GIB + 0.7),
    devices=(use(NPU, core=None), use(GPU)),
    aggregates=(
        UsageAggregate(
            duration_s=300,
            node=tuple((name, USE) for name in NAMES),
            system=tuple((name, ResourceUsage(cpu_cores=46.0)) for name in NAMES),
            devices=tuple((name, (use(GPU),)) for name in NAMES),
        ),
        UsageAggregate(duration_s=1800),
    ),
    numa=(
        NumaAggregate(node_id=0, node=USE),
        NumaAggregate(node_id=1, node=USE, system=ResourceUsage()),
    ),
    pods=(
        PodAggregate(uid="u2", use=ResourceUsage(cpu_cores=0.0, memory_bytes=0.0)),
        PodAggregate(uid="u1", use=USE, devices=(use(GPU),)),
        PodAggregate(uid="nameless", use=USE),
        PodAggregate(uid="gone", use=USE),
    ),
)
PODS = (
    PodView(uid="u1", qos=KubeQos.GUARANTEED, name="trainer-0", namespace="ml", priority=9500),
    PodView(uid="u2", qos=KubeQos.BEST_EFFORT, name="a", namespace="ml"),
    PodView(uid="nameless", qos=KubeQos.BURSTABLE),
)
SNAPSHOT = NodeSnapshot(
    node=NodeIdentity(name="node-0"),
    devices=SnapshotPart(DeviceView(devices=(GPU, NPU)), 1.0),
    pods=SnapshotPart(PODS, 1.0),
    report=SnapshotPart(REPORT, 1.0),
)


def body(snapshot: NodeSnapshot = SNAPSHOT) -> Tree:
    (desired,) = NodeMetricPublisher().render(snapshot, NOW_S)
    assert desired.status_only
    return json.loads(json.dumps(desired.body))


def node_metric(snapshot: NodeSnapshot = SNAPSHOT) -> Tree:
    return body(snapshot)["status"]["nodeMetric"]


@needs_shared
def test_the_object_fits_the_schema_with_unknown_fields_forbidden() -> None:
    check(CRD, body())


def test_nothing_is_rendered_before_the_first_report_or_after_a_failed_one() -> None:
    for part in (SnapshotPart(REPORT), SnapshotPart(REPORT, 1.0, "the collector stopped")):
        assert NodeMetricPublisher().render(replace(SNAPSHOT, report=part), NOW_S) == ()


def test_the_time_is_that_of_the_report_in_whole_seconds() -> None:
    assert body()["status"]["updateTime"] == "2026-01-02T03:04:05Z"


def test_quantities_are_truncated_and_canonical() -> None:
    document = node_metric()
    assert document["nodeUsage"]["resources"] == {"cpu": "38250m", "memory": "384Gi"}
    assert document["systemUsage"]["resources"] == {"cpu": "2150m", "memory": "9Gi"}


def test_empty_maps_are_written_and_all_five_keys_always() -> None:
    full, cold = node_metric()["aggregatedNodeUsages"]
    assert cold == {"duration": "30m0s", "usage": {name: {} for name in NAMES}}
    assert tuple(full["usage"]) == NAMES
    assert "devices" in full["usage"]["p95"]


def test_absent_resources_are_left_out_and_not_zero() -> None:
    (full, _) = node_metric()["aggregatedSystemUsages"]
    assert full["usage"]["avg"] == {"resources": {"cpu": "46"}}


def test_devices_of_all_vendors_are_listed_with_their_real_health() -> None:
    assert node_metric()["nodeUsage"]["devices"] == [
        {
            "type": "gpu",
            "id": "gpu-0",
            "minor": 0,
            "health": True,
            "resources": {
                "koordinator.sh/gpu-core": "97",
                "koordinator.sh/gpu-memory": "70Gi",
                "koordinator.sh/gpu-memory-ratio": "87",
            },
        },
        {
            "type": "gpu",
            "id": "npu-10",
            "minor": 10,
            "health": False,
            "resources": {
                "koordinator.sh/gpu-memory": "70Gi",
                "koordinator.sh/gpu-memory-ratio": "87",
            },
        },
    ]


@pytest.mark.parametrize(
    "changes", [{"minor": None}, {"managed": False}, {"minor": 1 << 31}, {"minor": -1}]
)
def test_devices_that_are_not_published_have_no_usage(changes: Any) -> None:
    hidden = Device(info=replace(GPU.info, **changes))
    view = SnapshotPart(DeviceView(devices=(hidden,)), 1.0)
    assert "devices" not in node_metric(replace(SNAPSHOT, devices=view))["nodeUsage"]


def test_no_use_is_reported_under_a_minor_that_is_not_the_published_one() -> None:
    view = SnapshotPart(replace(SNAPSHOT.devices.value, provisional_minors=True), 1.0)
    assert "devices" not in node_metric(replace(SNAPSHOT, devices=view))["nodeUsage"]


def test_a_device_is_called_as_in_the_device_object() -> None:
    odd = Device(info=replace(GPU.info, uuid="GPU-\x00 \ud800"))
    view = SnapshotPart(DeviceView(devices=(odd,)), 1.0)
    (entry,) = node_metric(replace(SNAPSHOT, devices=view))["nodeUsage"]["devices"]
    assert entry["id"] == "GPU-  ?".strip()


def test_pods_are_sorted_and_those_without_a_name_left_out() -> None:
    pods = body()["status"]["podsMetric"]
    rows = [(pod["name"], pod["priority"], pod["qos"]) for pod in pods]
    assert rows == [("a", "koord-batch", "BE"), ("trainer-0", "koord-prod", "LSR")]
    assert pods[0]["podUsage"] == {"resources": {"cpu": "0", "memory": "0"}}
    assert len(pods[1]["podUsage"]["devices"]) == 1


def test_an_entry_has_the_present_fields_of_its_pod() -> None:
    publisher = NodeMetricPublisher()
    publisher.render(SNAPSHOT, NOW_S)
    labelled = replace(PODS[0], labels=(("koordinator.sh/qosClass", "LS"),))
    later = replace(SNAPSHOT, pods=SnapshotPart((labelled, *PODS[1:]), 2.0))
    (desired,) = publisher.render(later, NOW_S)
    assert desired.body == NodeMetricPublisher().render(later, NOW_S)[0].body
    pods = json.loads(json.dumps(desired.body))["status"]["podsMetric"]
    assert [pod["qos"] for pod in pods if pod["name"] == "trainer-0"] == ["LS"]


def test_a_memory_node_without_system_use_has_node_use_only() -> None:
    first, second = node_metric()["numaUsages"]
    assert set(first) == {"numaNodeID", "nodeUsage"}
    assert second["systemUsage"] == {}


def test_an_empty_report_has_empty_maps_and_no_lists() -> None:
    empty = body(replace(SNAPSHOT, report=SnapshotPart(UsageReport(), 1.0)))["status"]
    assert set(empty) == {"updateTime", "nodeMetric"}
    assert empty["nodeMetric"] == {"nodeUsage": {}, "systemUsage": {}}


def test_equal_snapshots_give_equal_objects() -> None:
    assert body() == body()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (300, "5m0s"),
        (600, "10m0s"),
        (1800, "30m0s"),
        (3600, "1h0m0s"),
        (45, "45s"),
        (5405, "1h30m5s"),
    ],
)
def test_durations_are_gos(seconds: int, text: str) -> None:
    assert format_duration(seconds) == text


def test_reports_are_half_a_minute_apart_at_least() -> None:
    assert NodeMetricPublisher(1.0).interval_s == 30.0


def shape(value: object) -> object:
    """Return the keys of an object, with one item of each list."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__


@needs_shared
def test_the_shape_is_that_of_a_real_koordlet() -> None:
    path = SHARED / "oracle" / "koordlet-objects.json"
    oracle = json.loads(path.read_text())["nodemetric"]["status"]
    window = UsageAggregate(
        duration_s=300, node=tuple((n, USE) for n in NAMES), system=tuple((n, USE) for n in NAMES)
    )
    report = UsageReport(
        node=USE,
        system=USE,
        aggregates=(window,),
        numa=(NumaAggregate(node_id=0, node=USE, system=USE),),
        pods=(PodAggregate(uid="u1", use=USE),),
        prediction=PREDICTION,
    )
    assert shape(body(replace(SNAPSHOT, report=SnapshotPart(report, 1.0)))["status"]) == shape(
        oracle
    )


PREDICTION = Prediction(
    pods=PredictedUsage(
        reclaimable=ResourceUsage(cpu_cores=1.0, memory_bytes=4.0 * 2**30),
        peak=ResourceUsage(cpu_cores=5.0, memory_bytes=9.0 * 2**30),
    ),
    classes=PredictedUsage(
        reclaimable=ResourceUsage(cpu_cores=2.0, memory_bytes=3.0 * 2**30),
        peak=ResourceUsage(cpu_cores=6.0, memory_bytes=8.0 * 2**30),
    ),
)


def status_of(prediction: Prediction) -> Tree:
    report = UsageReport(prediction=prediction)
    status: Tree = body(replace(SNAPSHOT, report=SnapshotPart(report, 1.0)))["status"]
    return status


def test_the_smaller_reclaimable_and_the_larger_peak_are_published() -> None:
    status = status_of(PREDICTION)
    assert status["prodReclaimableMetric"] == {
        "resource": {"resources": {"cpu": "1", "memory": "3Gi"}}
    }
    assert status["prodPeakMetric"] == {"resource": {"resources": {"cpu": "6", "memory": "9Gi"}}}


def test_what_cannot_be_predicted_is_an_empty_map_and_no_peak() -> None:
    status = status_of(Prediction(error="why"))
    assert status["prodReclaimableMetric"] == {"resource": {}}
    assert "prodPeakMetric" not in status


def test_without_prediction_neither_is_published() -> None:
    assert not {"prodReclaimableMetric", "prodPeakMetric"} & body()["status"].keys()


amounts = st.none() | st.floats(0, 1e15)
resources = st.builds(ResourceUsage, cpu_cores=amounts, memory_bytes=amounts)
uses = st.builds(
    DeviceUsage,
    key=st.sampled_from([GPU.key, NPU.key, "gone"]),
    core_percent=st.none() | st.floats(0, 6400),
    memory_bytes=amounts,
    memory_total_bytes=st.none() | st.integers(0, 1 << 50),
)


@needs_shared
@given(resources, st.lists(uses, max_size=3), st.lists(resources, max_size=2))
def test_any_report_fits_the_schema(
    node: ResourceUsage, devices: list[DeviceUsage], numa: list[ResourceUsage]
) -> None:
    one = PredictedUsage(reclaimable=node, peak=node)
    report = UsageReport(
        node=node,
        devices=tuple(devices),
        prediction=Prediction(pods=one, classes=one),
        numa=tuple(NumaAggregate(node_id=i, node=one) for i, one in enumerate(numa)),
        pods=(PodAggregate(uid="u1", use=node, devices=tuple(devices)),),
    )
    check(CRD, body(replace(SNAPSHOT, report=SnapshotPart(report, 1.0))))
