from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from agent.metrics.families import FAMILIES
from agent.snapshot.allocation import AllocationView
from agent.snapshot.cpu import CpuTopology
from agent.snapshot.device import Health, HealthState
from agent.snapshot.inventory import DeviceSample, Problem, ProcessSample, RejectionCount
from agent.snapshot.node import GpuDirectPair, HotplugView, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import PublisherStatus
from agent.snapshot.self_check import LoopStatus
from agent.snapshot.usage import (
    MpsDaemon,
    NumaUsage,
    PredictedUsage,
    Prediction,
    ResourceUsage,
    SharingView,
    UsageReport,
)
from tests.factory import NOW_S, PRESSURE, gpu, group, nic, pod, snapshot

PUBLISHER = PublisherStatus(name="device", duration_s=0.1, last_success_s=1.0, written=1)

REJECTION = RejectionCount(family="xpu_device_power_watts", count=1, device="k", value="nan")
AMOUNTS = ResourceUsage(cpu_cores=1.0, memory_bytes=2.0)
HALF = PredictedUsage(reclaimable=AMOUNTS, peak=AMOUNTS)


def full_snapshot() -> NodeSnapshot:
    """A snapshot in which every fact that has a family is there."""
    sick = Health(state=HealthState.SUSPECT, reason="Xid", message="m")
    devices = (gpu(0, health=sick), gpu(1, minor=None), gpu(2), nic(0))
    snap = snapshot(devices, pods=(pod(0), pod(1, containers=2)))
    view = replace(
        snap.devices.value,
        problems=(("nvidia", Problem(reason="R", message="m")),),
        direct=(GpuDirectPair(gpu=gpu(0).key, nic=nic(0).key, level="PIX", verdict="ok"),),
    )
    numa = NumaUsage(node_id=1, cpu_cores=1.0, memory_bytes=5, pods_memory_bytes=4)
    usage = snap.usage.value
    usage = replace(
        usage,
        node=replace(usage.node, numa=(numa,), pressure={"io": PRESSURE}),
        applications={"spark": group(0)},
        owners={1: (pod(0).uid, pod(0).containers[0].id)},
    )
    sample = DeviceSample(
        key=gpu(0).key,
        core_percent=1.0,
        memory_used_bytes=1,
        memory_total_bytes=2,
        processes=(
            ProcessSample(
                pid=1,
                memory_bytes=1,
                core_percent=1.0,
                virtual_bytes=1,
                engine_percents=(("encoder", 1.0),),
            ),
        ),
    )
    (nvidia,) = snap.vendors
    return replace(
        snap,
        cpus=SnapshotPart(CpuTopology(usable=frozenset((0, 1))), NOW_S),
        devices=SnapshotPart(view, NOW_S),
        vendors=(replace(nvidia, samples=SnapshotPart((sample,), NOW_S), rejections=(REJECTION,)),),
        usage=SnapshotPart(usage, NOW_S),
        allocations=SnapshotPart(AllocationView(held={gpu(2).key: (pod(1).uid,)}), NOW_S),
        report=SnapshotPart(UsageReport(prediction=Prediction(pods=HALF, classes=HALF)), NOW_S),
        sharing=SnapshotPart(
            SharingView(mps=(MpsDaemon(pid=1, pipe_dir="/tmp/nvidia-mps"),)), NOW_S
        ),
        hotplug=HotplugView(
            state="listening", seen=(("pci", 1),), dropped=(("full", 1),), scans=(("timer", 1),)
        ),
        refused=(("EACCES", 2),),
        publishers=(PUBLISHER,),
        loops=(LoopStatus(name="usage", interval_s=1.0),),
    )


def test_every_family_of_the_table_is_exported_with_exactly_its_labels() -> None:
    page = MetricsRenderer({}).render(full_snapshot(), NOW_S).decode()
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels[sample.name] |= set(sample.labels)
    assert labels == {family.name: set(family.labels) for family in FAMILIES}


def test_pages_may_be_rendered_on_several_threads_at_once() -> None:
    renderer = MetricsRenderer({})
    pictures = [snapshot(pods=tuple(pod(i) for i in range(count))) for count in (1, 40)]
    expected = [MetricsRenderer({}).render(picture, NOW_S) for picture in pictures]
    with ThreadPoolExecutor(4) as pool:
        pages = list(pool.map(lambda i: renderer.render(pictures[i % 2], NOW_S), range(24)))
    assert pages == expected * 12
