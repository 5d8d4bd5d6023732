from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.collector_series import COLLECTOR_FAMILIES
from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.inventory import Problem
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import (
    BestEffortUsage,
    BlockDevice,
    ColdMemory,
    CollectorStatus,
    ContainerCycles,
    CycleUsage,
    DeviceIo,
    DiskCounters,
    Mount,
    ResctrlCounters,
    ResctrlUsage,
    StorageUsage,
    UsageSample,
)
from tests.factory import NOW_S, group, pod, snapshot

POD = pod(0)
CONTAINER = POD.containers[0].id
DISK = BlockDevice(
    name="sda",
    number="8:0",
    kind="disk",
    size_bytes=1 << 30,
    counters=DiskCounters(reads=1, read_bytes=512, writes=2, written_bytes=1024, busy_ms=2500),
)
VOLUME = BlockDevice(
    name="dm-0",
    number="253:0",
    kind="lvm",
    size_bytes=1 << 20,
    parents=("sda", "sdb"),
    volume_group="vg",
    logical_volume="data",
)
IO = DeviceIo(read_bytes=1, written_bytes=2, reads=3, writes=4)
STORAGE = StorageUsage(
    devices=(VOLUME, DISK),
    mounts=(
        Mount(path="/data", device="dm-0", filesystem="ext4"),
        Mount(path="/etc/hosts", device="dm-0", filesystem="ext4", is_whole=False),
        Mount(path="/k/pods/u/volumes/kubernetes.io~csi/p/mount", device="sda", filesystem="xfs"),
    ),
    pods={POD.uid: {"253:0": IO, "9:9": IO}, "ended": {"8:0": IO}},
    containers={CONTAINER: {"253:0": IO}, "ended": {"8:0": IO}},
)


def with_usage(**changes: object) -> NodeSnapshot:
    snap = snapshot(pods=(POD,))
    usage: UsageSample = replace(snap.usage.value, **changes)
    return replace(snap, usage=SnapshotPart(usage, NOW_S))


def resctrl_counters(**changes: str) -> ResctrlCounters:
    return replace(
        ResctrlCounters(
            cache_id=3,
            occupancy_bytes=1,
            total_bytes=2,
            local_bytes=3,
            total_bytes_per_s=4.0,
            local_bytes_per_s=5.0,
        ),
        **changes,
    )


def complete() -> NodeSnapshot:
    """A snapshot in which every collector has values, and one has a problem."""
    cycles = ContainerCycles(cycles=30, instructions=20, window_s=10.0)
    return with_usage(
        best_effort=BestEffortUsage(use=group(0), request_milli=1500, limit_milli=2500),
        cycles=CycleUsage(containers={CONTAINER: cycles}),
        resctrl=ResctrlUsage(
            groups=(
                resctrl_counters(group="BE"),
                resctrl_counters(pod_uid=POD.uid),
                resctrl_counters(pod_uid="ended"),
            )
        ),
        cold_memory=ColdMemory(
            node_bytes=1 << 20,
            pods={POD.uid: 1 << 19},
            containers={CONTAINER: 1 << 18},
            applications={"spark": 1 << 17, "ended": 1},
            idle_ratio=0.25,
        ),
        applications={"spark": group(0)},
        storage=STORAGE,
        collectors=(
            CollectorStatus(name="usage", success=True, duration_s=0.25, last_success_s=7.0),
            CollectorStatus(
                name="cycles",
                duration_s=0.5,
                problems=(Problem(reason="NotPermitted", message="m"),) * 2,
            ),
            CollectorStatus(name="other"),
        ),
    )


def samples(snap: NodeSnapshot) -> dict[str, list[tuple[dict[str, str], float]]]:
    names = {family.name for family in COLLECTOR_FAMILIES}
    by_name = defaultdict(list)
    page = MetricsRenderer({}).render(snap, NOW_S).decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in names:
                by_name[sample.name].append((sample.labels, sample.value))
    return by_name


def test_every_family_of_the_collectors_is_exported_with_exactly_its_labels() -> None:
    labels = {
        name: set().union(*(labels for labels, _ in rows))
        for name, rows in samples(complete()).items()
    }
    assert labels == {family.name: set(family.labels) for family in COLLECTOR_FAMILIES}


def test_a_collector_has_duration_success_and_last_success() -> None:
    page = samples(complete())
    by_collector = {
        name: {labels["collector"]: value for labels, value in page[f"xpu_agent_collector_{name}"]}
        for name in ("success", "duration_seconds", "last_success_timestamp_seconds", "problem")
    }
    assert by_collector == {
        "success": {"usage": 1.0, "cycles": 0.0},
        "duration_seconds": {"usage": 0.25, "cycles": 0.5},
        "last_success_timestamp_seconds": {"usage": 7.0},
        "problem": {"cycles": 1.0},
    }


def test_a_container_without_instructions_has_counts_and_no_ratio() -> None:
    cycles = ContainerCycles(cycles=0, instructions=0, window_s=10.0)
    page = samples(with_usage(cycles=CycleUsage(containers={CONTAINER: cycles})))
    assert "xpu_container_cycles_per_instruction" not in page
    assert page["xpu_container_window_cycles"][0][1] == 0.0


def test_values_of_containers_that_ended_are_not_exported() -> None:
    cycles = ContainerCycles(cycles=1, instructions=1, window_s=10.0)
    assert not samples(with_usage(cycles=CycleUsage(containers={"e" * 64: cycles})))


def test_the_best_effort_tier_is_exported_in_cores() -> None:
    page = samples(complete())
    values = {name: rows[0][1] for name, rows in page.items() if "_best_effort_cpu_" in name}
    assert values == {
        "xpu_node_best_effort_cpu_usage_cores": 0.123456789,
        "xpu_node_best_effort_cpu_request_cores": 1.5,
        "xpu_node_best_effort_cpu_limit_cores": 2.5,
        "xpu_node_best_effort_cpu_throttled_ratio": 0.25,
    }


def test_what_is_not_known_of_the_best_effort_tier_is_absent() -> None:
    page = samples(with_usage(best_effort=BestEffortUsage(request_milli=0)))
    assert {name: rows[0][1] for name, rows in page.items()} == {
        "xpu_node_best_effort_cpu_request_cores": 0.0
    }


def test_a_host_application_has_the_figures_of_a_group() -> None:
    page = MetricsRenderer({}).render(with_usage(applications={'a"b': group(1)}), NOW_S).decode()
    lines = [line for line in page.splitlines() if line.startswith("xpu_host_application_")]
    assert (
        r'xpu_host_application_memory_used_bytes{node="hgx-h100-01",application="a\"b"} 2097152'
        in lines
    )
    assert len(lines) == 7


def test_resctrl_groups_of_classes_and_pods_are_distinguished() -> None:
    page = samples(complete())
    ((labels, value),) = page["xpu_node_resctrl_cache_occupancy_bytes"]
    assert (labels["group"], labels["cache_id"], value) == ("BE", "3", 1.0)
    rows = page["xpu_pod_resctrl_memory_bandwidth_bytes_per_second"]
    assert {(labels["pod_uid"], labels["scope"], value) for labels, value in rows} == {
        (POD.uid, "total", 4.0),
        (POD.uid, "local", 5.0),
    }


def test_what_resctrl_does_not_monitor_is_absent() -> None:
    groups = (ResctrlCounters(group="BE", cache_id=0, total_bytes=0),)
    page = samples(with_usage(resctrl=ResctrlUsage(groups=groups)))
    assert [name for name in page if "resctrl" in name] == [
        "xpu_node_resctrl_memory_traffic_bytes_total"
    ]


def test_hot_memory_is_what_the_cold_part_leaves_of_memory_with_page_cache() -> None:
    snap = complete()
    page = samples(snap)
    node = snap.usage.value.node.memory_with_cache_bytes
    assert node is not None
    values = {name: rows[0][1] for name, rows in page.items() if "hot_cache" in name}
    assert values == {
        "xpu_node_memory_used_with_hot_cache_bytes": node - (1 << 20),
        "xpu_pod_memory_used_with_hot_cache_bytes": (2 << 20) - (1 << 19),
        "xpu_container_memory_used_with_hot_cache_bytes": (2 << 20) - (1 << 18),
        "xpu_host_application_memory_used_with_hot_cache_bytes": (2 << 20) - (1 << 17),
    }


def test_a_cold_part_that_exceeds_the_whole_leaves_hot_memory_absent() -> None:
    page = samples(with_usage(cold_memory=ColdMemory(pods={POD.uid: 1 << 40, "ended": 5})))
    assert [name for name in page if "_memory_" in name] == ["xpu_pod_memory_cold_bytes"]
    assert [value for _, value in page["xpu_pod_memory_cold_bytes"]] == [float(1 << 40)]


def test_a_device_is_described_by_what_it_is_built_on() -> None:
    page = samples(complete())
    info = {labels["device"]: labels for labels, _ in page["xpu_node_disk_info"]}
    assert info["dm-0"] == {
        "node": "hgx-h100-01",
        "device": "dm-0",
        "number": "253:0",
        "kind": "lvm",
        "parents": "sda,sdb",
        "volume_group": "vg",
        "logical_volume": "data",
    }
    busy = [(labels["device"], value) for labels, value in page["xpu_node_disk_busy_seconds_total"]]
    assert busy == [("sda", 2.5)]  # the volume's counters are not known: absent


def test_mounts_of_pods_and_parts_of_devices_are_left_out() -> None:
    page = samples(complete())
    assert [labels["mount_point"] for labels, _ in page["xpu_node_mount_info"]] == ["/data"]


def test_block_io_of_pods_names_the_device_or_its_number() -> None:
    page = samples(complete())
    rows = page["xpu_pod_storage_written_bytes_total"]
    assert [(labels["device"], value) for labels, value in rows] == [("dm-0", 2.0), ("9:9", 2.0)]
