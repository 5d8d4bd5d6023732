from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from types import MappingProxyType

import pytest
from hypothesis import given
from msgspec.structs import replace
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import (
    BLOCK_LINES,
    MAX_VALUE_AGE_S,
    MetricsRenderer,
    render_metrics,
)
from agent.snapshot.device import Device, Health, HealthState
from agent.snapshot.inventory import (
    DeviceSample,
    MetricFamily,
    MetricValue,
    Problem,
    ProcessSample,
    RejectionCount,
)
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciLink
from agent.snapshot.publications import PublisherStatus
from agent.snapshot.usage import CgroupUsage, UsageSample
from tests.factory import NOW_S, gpu, nic, pod, snapshot
from tests.hostile import device_sets, few, texts
from tests.patience import PATIENCE_S

VENDORS = {
    "nvidia": (
        MetricFamily(name="xpu_device_power_watts", type="gauge", help="Power of the card."),
        MetricFamily(
            name="xpu_device_pcie_bytes_total", type="counter", help="Bytes.", labels=("direction",)
        ),
    ),
    "rdma": (
        MetricFamily(name="xpu_rdma_info", type="gauge", help="Facts.", labels=("rdma", "driver")),
    ),
}
PUBLISHERS = (
    PublisherStatus(name="device", duration_s=0.25, last_success_s=1.5e9, written=1, unchanged=7),
    PublisherStatus(name="topology", success=False, duration_s=0.5, failed=3, error="disk full"),
    PublisherStatus(name="idle"),
)
PODS = tuple(pod(i, containers=2) for i in range(3))

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page(snap: NodeSnapshot, now_s: float = NOW_S, *, openmetrics: bool = False) -> str:
    renderer = MetricsRenderer(VENDORS)
    published = replace(snap, publishers=PUBLISHERS)
    return renderer.render(published, now_s, openmetrics=openmetrics).decode()


def families(text: str, *, openmetrics: bool = False) -> Iterator[Metric]:
    parse = (
        openmetrics_parser.text_string_to_metric_families
        if openmetrics
        else text_string_to_metric_families
    )
    yield from parse(text)


def values(text: str, *, openmetrics: bool = False) -> Values:
    found: Values = {}
    for family in families(text, openmetrics=openmetrics):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float | None:
    """Return the only sample that has these labels among others; `None` if there is none."""
    found = [
        number
        for (sample, pairs), number in values(text).items()
        if sample == name and labels.items() <= dict(pairs).items()
    ]
    assert len(found) <= 1
    return found[0] if found else None


def with_samples(snap: NodeSnapshot, *samples: DeviceSample) -> NodeSnapshot:
    state = VendorState(vendor="any", state="ready", samples=SnapshotPart(samples, NOW_S))
    return replace(snap, vendors=(state,))


def test_both_formats_parse_and_say_the_same() -> None:
    snap = snapshot(pods=PODS)
    text = values(page(snap))
    assert text == values(page(snap, openmetrics=True), openmetrics=True)
    assert len(text) > 300


def test_a_family_is_explained_once_and_its_samples_stand_together() -> None:
    names = [line.split()[2] for line in page(snapshot(pods=PODS)).splitlines() if "# HELP" in line]
    assert len(set(names)) == len(names)


def test_a_page_comes_in_chunks_and_each_family_has_one_header() -> None:
    pods = tuple(pod(index) for index in range(BLOCK_LINES + 1))
    chunks = list(MetricsRenderer(VENDORS).render_chunks(snapshot(pods=pods), NOW_S))
    samples = [sum(not line.startswith(b"#") for line in chunk.splitlines()) for chunk in chunks]
    assert max(samples) <= BLOCK_LINES < len(pods)
    text = b"".join(chunks)
    assert text.count(b"# TYPE xpu_pod_cpu_usage_cores gauge\n") == 1
    assert text.count(b"\nxpu_pod_cpu_usage_cores{") == len(pods)


def test_every_sample_has_the_labels_of_its_family() -> None:
    renderer = MetricsRenderer(VENDORS)
    declared = {family.name: set(family.labels) for family in renderer.families}
    for name, pairs in values(page(snapshot(pods=PODS))):
        assert {label for label, _ in pairs} <= declared[name]


def test_openmetrics_ends_with_its_mark_and_takes_suffixes_off_family_names() -> None:
    text = page(snapshot(pods=PODS), openmetrics=True)
    assert text.endswith("\n# EOF\n")
    assert "# TYPE xpu_pod_cpu_seconds counter\n# UNIT xpu_pod_cpu_seconds seconds\n" in text
    assert "# TYPE xpu_device info\n" in text
    assert "# TYPE xpu_device_info gauge\n" in page(snapshot())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_complain_about() -> None:
    run = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page(snapshot(pods=PODS)),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_equal_arguments_give_equal_bytes_whatever_was_rendered_before() -> None:
    snap = snapshot(pods=PODS)
    renderer = MetricsRenderer(VENDORS)
    first = renderer.render(snap, NOW_S)
    other = replace(snapshot((gpu(3),), pods=PODS[:1]), publishers=PUBLISHERS)
    renderer.render(other, NOW_S, openmetrics=True)
    assert renderer.render(snap, NOW_S) == first
    assert render_metrics(snap, NOW_S, vendor_families=VENDORS) == first


def test_the_cache_holds_one_page_and_no_more() -> None:
    renderer = MetricsRenderer(VENDORS)
    renderer.render(snapshot((), pods=tuple(pod(i) for i in range(500))), NOW_S)
    renderer.render(snapshot((), pods=(pod(1000),)), NOW_S)
    assert len(renderer._labels) < 10


def test_usage_of_a_container_is_exported_in_base_units() -> None:
    text = page(snapshot(pods=PODS))
    labels = {"namespace": "team-a", "pod": "train-1", "container": "worker-0"}
    assert value(text, "xpu_container_cpu_seconds_total", **labels) == 987.654321002
    assert value(text, "xpu_container_memory_used_bytes", **labels) == 3 << 20
    assert value(text, "xpu_container_cpu_throttled_periods_total", **labels) == 25
    some = {"resource": "memory", "degree": "some"}
    assert value(text, "xpu_container_pressure_ratio", **labels, **some) == 0.015
    assert value(text, "xpu_container_pressure_waiting_seconds_total", **labels, **some) == 2.5


def test_an_unknown_value_has_no_sample_and_is_not_zero() -> None:
    usage = UsageSample(
        pods=MappingProxyType({PODS[0].uid: CgroupUsage(memory_bytes=0)}),
    )
    snap = replace(snapshot((gpu(0),), pods=PODS), usage=SnapshotPart(usage, NOW_S), vendors=())
    text = page(snap)
    assert value(text, "xpu_pod_memory_used_bytes", pod="train-0") == 0
    assert value(text, "xpu_pod_cpu_usage_cores", pod="train-0") is None
    assert value(text, "xpu_device_memory_used_bytes") is None
    assert value(text, "xpu_device_utilization_ratio") is None
    assert "xpu_node_cpu_usage_cores" not in text


def test_values_that_are_too_old_are_not_exported_but_their_age_is() -> None:
    snap = snapshot(pods=PODS)
    text = page(snap, NOW_S + MAX_VALUE_AGE_S + 1)
    assert value(text, "xpu_agent_snapshot_part_age_seconds", part="usage") == MAX_VALUE_AGE_S + 1
    assert "xpu_pod_" not in text
    assert "xpu_device_utilization_ratio" not in text
    assert value(text, "xpu_device_healthy", minor="1") == 1
    never = replace(snap, usage=SnapshotPart(snap.usage.value))
    assert "xpu_container_" not in page(never)


def test_pods_are_left_out_when_they_are_switched_off() -> None:
    text = MetricsRenderer(VENDORS, pods=False).render(snapshot(pods=PODS), NOW_S).decode()
    assert "xpu_pod_" not in text
    assert "xpu_node_cpu_usage_cores" in text


def test_a_device_is_shown_with_its_facts_state_and_use() -> None:
    bad = Health(state=HealthState.SUSPECT, reason="Xid63", message="remapped")
    card = gpu(1, health=bad)
    link = PciLink(speed=160, max_speed=320, width=8, max_width=16)
    card = replace(card, place=replace(card.place, link_degraded="width", link=link))
    found = DeviceSample(key=card.key, core_percent=25.0, processes=(ProcessSample(pid=1),))
    text = page(with_samples(snapshot((card, nic(0))), found))
    assert value(text, "xpu_device_info", type="gpu", pcie_root="pci0000:3d", managed="true") == 1
    assert value(text, "xpu_device_healthy", minor="1", vendor="nvidia") == 1
    assert value(text, "xpu_device_health_state", minor="1", state="suspect") == 1
    assert value(text, "xpu_device_health_state", minor="1", state="healthy") == 0
    assert value(text, "xpu_device_link_degraded", minor="1") == 1
    assert value(text, "xpu_device_link_degraded", vendor="mlx5") == 0
    assert value(text, "xpu_device_pcie_link_lanes", minor="1", kind="now") == 8
    assert value(text, "xpu_device_pcie_link_lanes", minor="1", kind="most") == 16
    assert value(text, "xpu_device_pcie_link_generation", minor="1", kind="now") == 4
    assert value(text, "xpu_device_pcie_link_generation", minor="1", kind="most") == 5
    assert value(text, "xpu_device_utilization_ratio", minor="1") == 0.25
    assert value(text, "xpu_device_memory_total_bytes", minor="1") == 85_520_809_984
    assert value(text, "xpu_device_processes", minor="1") == 1


def test_readings_of_vendors_carry_the_labels_of_their_device() -> None:
    card, port = gpu(0), nic(0)
    snap = with_samples(
        snapshot((card, port)),
        DeviceSample(
            key=card.key,
            readings=(
                MetricValue(family="xpu_device_pcie_bytes_total", value=7, labels=("sent",)),
                MetricValue(family="xpu_device_pcie_bytes_total", value=8, labels=("sent",)),
                MetricValue(family="xpu_device_pcie_bytes_total", value=9),
                MetricValue(family="xpu_device_healthy", value=5),
                MetricValue(family="undeclared", value=5),
            ),
        ),
        DeviceSample(
            key=port.key,
            readings=(
                MetricValue(family="xpu_rdma_info", value=1, labels=("mlx5_0", "mlx5_core")),
            ),
        ),
    )
    text = page(snap)
    assert value(text, "xpu_device_pcie_bytes_total", direction="sent", minor="0") == 8
    assert value(text, "xpu_device_healthy", minor="0", vendor="nvidia") == 1
    assert value(text, "xpu_rdma_info", device="0000:18:00.0", rdma="mlx5_0") == 1
    assert "undeclared" not in text


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e-300, -0.0, 2**70])
def test_any_number_of_a_vendor_can_be_read_back(number: float) -> None:
    card = gpu(0)
    reading = MetricValue(family="xpu_device_power_watts", value=number)
    snap = with_samples(snapshot((card,)), DeviceSample(key=card.key, readings=(reading,)))
    for openmetrics in (False, True):
        found = values(page(snap, openmetrics=openmetrics), openmetrics=openmetrics)
        (read,) = [v for (name, _), v in found.items() if name == "xpu_device_power_watts"]
        assert read == number or math.isnan(number)


def test_the_agent_exports_the_state_of_its_workers_and_publishers() -> None:
    snap = snapshot((gpu(0), gpu(1, minor=None)))
    view = replace(
        snap.devices.value,
        problems=(("rdma", Problem(reason="NoLibrary", message="not found")),),
    )
    hung = VendorState(vendor="rdma", state="stalled", restarts=4)
    snap = replace(snap, devices=SnapshotPart(view, NOW_S), vendors=(*snap.vendors, hung))
    text = page(replace(snap, pci=SnapshotPart(snap.pci.value, None, "EIO")))
    assert value(text, "xpu_agent_vendor_state", vendor="rdma", state="stalled") == 1
    assert value(text, "xpu_agent_vendor_state", vendor="rdma", state="ready") == 0
    assert value(text, "xpu_agent_vendor_restarts_total", vendor="rdma") == 4
    assert value(text, "xpu_agent_vendor_sample_age_seconds", vendor="rdma") is None
    assert value(text, "xpu_agent_vendor_problem", vendor="rdma", reason="NoLibrary") == 1
    assert value(text, "xpu_agent_snapshot_part_failed", part="pci") == 1
    assert value(text, "xpu_agent_devices_unpublished", reason="NoMinor") == 1
    assert value(text, "xpu_agent_publisher_success", publisher="topology") == 0
    assert value(text, "xpu_agent_publisher_success", publisher="idle") is None
    counted = {"publisher": "device", "result": "unchanged"}
    assert value(text, "xpu_agent_publisher_objects_total", **counted) == 7


@given(texts, texts, texts)
def test_hostile_names_of_pods_come_back_as_they_are(name: str, space: str, image: str) -> None:
    base = pod(0, name=name, namespace=space)
    one = replace(base, containers=(replace(base.containers[0], name=image),))
    snap = snapshot((), pods=(one,))
    for openmetrics in (False, True):
        text = page(snap, openmetrics=openmetrics)
        found = values(text, openmetrics=openmetrics)
        (pairs,) = [dict(p) for n, p in found if n == "xpu_container_memory_used_bytes"]
        told = {"namespace": space, "pod": name, "container": image}
        for label, wanted in told.items():
            assert pairs.get(label, "") == wanted.encode("utf-8", "replace").decode()


@few
@given(device_sets)
def test_any_device_set_gives_a_page_without_repetition(devices: tuple[Device, ...]) -> None:
    values(page(snapshot(devices)))


def test_rendering_imports_no_prometheus_client() -> None:
    code = "import sys, agent.metrics.exposition; sys.exit('prometheus_client' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode
        == 0
    )


def test_a_pod_that_is_listed_twice_has_its_samples_once() -> None:
    one = pod(0)
    text = page(snapshot((), pods=(one, one, replace(one, name="other"))))
    assert value(text, "xpu_pod_memory_used_bytes", pod=one.name) is not None
    assert value(text, "xpu_pod_memory_used_bytes", pod="other") is not None


def test_rejected_readings_are_counted_by_vendor_and_family() -> None:
    node = snapshot()
    count = RejectionCount(family='xpu_"odd"', count=3, device="k", value="nan")
    lying = replace(node, vendors=(replace(node.vendors[0], rejections=(count,)),))
    name = "xpu_device_readings_rejected_total"
    labels = r'{node="hgx-h100-01",vendor="nvidia",family="xpu_\"odd\""}'
    assert f"{name}{labels} 3\n" in page(lying)
    assert name not in page(node)
