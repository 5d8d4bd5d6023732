"""Performance counters, slices and process lists in samples."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.snapshot.device import DevicePartition
from agent.snapshot.inventory import DeviceSample
from plugins.vendors.nvidia.health.trends import ORPHAN_BYTES, is_orphan_lasting, orphan_start
from plugins.vendors.nvidia.mig.usage import card_percent, compute_share
from plugins.vendors.nvidia.vendor import NvidiaVendor
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.stubs.child import Child
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
CARD = gpu(0, BUSES[0])
COUNTERS = ("gpm 0 2 62.5", "gpm 0 3 25", "gpm 0 5 12.5", "gpm 0 10 50", "gpm 0 12 37.5")
CUT = (
    gpu(0, BUSES[0], migmode=1, util=None),
    "profile 0 2 id=9 slices=3 max=2 mb=40448",
    "profile 0 0 id=19 slices=1 max=7 mb=9984",
    "mig 0 0 uuid=MIG-a gi=3 ci=0 k=2 cik=0 start=0 size=4 mb=40448 sm=16",
    "mig 0 1 uuid=MIG-b gi=3 ci=1 k=2 cik=0 start=0 size=4 mb=40448 sm=16",
    "mig 0 2 uuid=MIG-c gi=5 ci=0 k=0 cik=0 start=4 size=1 mb=9984 sm=16",
    "error nvmlDeviceGetProcessUtilization 3",
    "error nvmlDeviceGetSamples 3",
)
GIB = 1 << 30


def readings(sample: DeviceSample) -> dict[str, float]:
    return {" ".join((r.family, *r.labels)): r.value for r in sample.readings}


def sample_with(child: Child, family: str) -> DeviceSample:
    """Sample until there are performance counters, which need two samples 100 ms apart."""
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        sample = child.sample()[0]
        if any(name.startswith(family) for name in readings(sample)):
            return sample
    raise TimeoutError(family)


def test_a_card_with_performance_counters_reports_its_units(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD, *COUNTERS)
    with on_tree(stub, tree) as child:
        child.discover()
        values = readings(sample_with(child, "xpu_device_sm_active_ratio"))
    assert {
        name: value for name, value in values.items() if "_sm_" in name or "_pipe_" in name
    } == {
        "xpu_device_sm_active_ratio": 0.625,
        "xpu_device_sm_occupancy_ratio": 0.25,
        "xpu_device_pipe_active_ratio tensor": 0.125,
        "xpu_device_pipe_active_ratio dram": 0.5,
        "xpu_device_pipe_active_ratio fp32": 0.375,
    }


def test_counters_that_are_refused_cost_the_card_nothing_else(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD, *COUNTERS, "error nvmlGpmMetricsGet 999")
    with on_tree(stub, tree) as child:
        child.discover()
        for _ in range(12):
            (sample, *_) = child.sample()
        assert sample.core_percent == 10.0
        assert sample.health is None or sample.health.is_in_service
        assert child.events == []


def test_counters_that_a_later_discovery_does_not_find_have_no_values(
    stub: Stub, tree: Path
) -> None:
    stub.play(SYSTEM, CARD, *COUNTERS)
    with on_tree(stub, tree) as child:
        child.discover()
        sample_with(child, "xpu_device_sm_active_ratio")
        stub.play(SYSTEM, CARD, *COUNTERS, "error nvmlGpmQueryDeviceSupport 999")
        child.discover()
        values = readings(child.sample()[0])
    assert not [name for name in values if "_sm_" in name or "_pipe_" in name]


def test_a_card_without_counters_is_queried_once(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.take_calls()
        for _ in range(5):
            child.sample()
        calls = [c.split()[0] for c in stub.take_calls() if "Gpm" in c]
    assert calls == ["nvmlGpmQueryDeviceSupport"]


def test_the_load_of_a_partitioned_card_is_that_of_its_instances(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *CUT, "gpm 0 2 gi=3 70", "gpm 0 2 gi=5 35", "mig 0 2 used=12345")
    with on_tree(stub, tree) as child:
        device = child.discover().devices[0]
        assert [p.profile for p in device.partitions] == ["1c.3g.40gb", "1c.3g.40gb", "1g.10gb"]
        for _ in range(12):
            sample = sample_with(child, "xpu_device_slice_utilization_ratio")
    assert sample.core_percent == pytest.approx(70 * 3 / 7 + 35 / 7)
    values = readings(sample)
    assert values["xpu_device_slice_utilization_ratio MIG-b 1c.3g.40gb 3"] == 0.7
    assert values["xpu_device_slice_utilization_ratio MIG-c 1g.10gb 5"] == 0.35
    assert values["xpu_device_slice_memory_total_bytes MIG-c 1g.10gb 5"] == 9984 << 20
    assert values["xpu_device_slice_memory_used_bytes MIG-c 1g.10gb 5"] == 12345
    calls = [c.split()[0] for c in stub.take_calls() if "MemoryInfo" in c]
    newer = [calls[n - 1] for n, name in enumerate(calls) if not name.endswith("_v2")]
    assert set(newer) == {"nvmlDeviceGetMemoryInfo_v2"}  # without the driver's reserve


def test_a_partitioned_card_without_counters_does_not_report_its_load(
    stub: Stub, tree: Path
) -> None:
    stub.play(SYSTEM, *CUT)
    with on_tree(stub, tree) as child:
        child.discover()
        (sample, *_) = child.sample()
    assert sample.core_percent is None
    assert not any("utilization" in name for name in readings(sample))


def test_processes_of_a_cut_card_are_those_of_their_slices(stub: Stub, tree: Path) -> None:
    stub.play(
        SYSTEM,
        *CUT,
        "proc 0 pid=10 mem=7 gi=3 ci=1 list=compute",
        "proc 0 pid=11 mem=8 gi=5 ci=0 list=compute",
        "proc 0 pid=11 mem=9 gi=5 ci=0 list=mps",
        "proc 0 pid=12 mem=5 list=compute",
    )
    with on_tree(stub, tree) as child:
        child.discover()
        (sample, *_) = child.sample()
    assert sample.processes is not None
    assert [(p.pid, p.memory_bytes, p.core_percent, p.partition) for p in sample.processes] == [
        (10, 7, None, "MIG-b"),
        (11, 9, None, "MIG-c"),
        (12, 5, None, ""),
    ]


def test_a_process_that_has_ended_is_left_out_though_the_driver_lists_it(
    stub: Stub, tree: Path
) -> None:
    (tree / "proc/10").mkdir()
    stub.play(SYSTEM, CARD, "proc 0 pid=10 mem=7", "proc 0 pid=11 mem=8")
    with on_tree(stub, tree) as child:
        child.discover()
        before = child.sample()[0].processes
        (tree / "proc/10").rmdir()
        after = child.sample()[0].processes
    # a process that was never in /proc may be in another namespace
    assert [p.pid for p in before or ()] == [10, 11]
    assert [p.pid for p in after or ()] == [11]


def test_empty_lists_are_skipped_and_expensive_ones_more(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD, "proc 0 pid=10 mem=7 list=compute")
    with on_tree(stub, tree) as child:
        child.discover()
        stub.take_calls()
        for _ in range(10):
            child.sample()
        calls = [c.split()[0] for c in stub.take_calls()]
        assert calls.count("nvmlDeviceGetComputeRunningProcesses_v3") == 10
        assert calls.count("nvmlDeviceGetGraphicsRunningProcesses_v3") == 2
        late = "delay nvmlDeviceGetComputeRunningProcesses_v3 20"
        stub.play(SYSTEM, CARD, "proc 0 pid=10 mem=7 list=compute", late)
        samples = [child.sample()[0].processes for _ in range(13)]
        calls = [c.split()[0] for c in stub.take_calls()]
    assert calls.count("nvmlDeviceGetComputeRunningProcesses_v3") <= 6
    assert {p.pid for processes in samples for p in processes or ()} == {10}


def test_what_changes_seldom_is_of_declared_families(stub: Stub, tree: Path) -> None:
    lines = ["gpu 0 encoder=25 decoder=50 uncorrected=3", "field 0 94 u32 7", "field 0 91 u32 2"]
    lines += [f"field 0 {number}:{link} u64 4" for number in (161, 162, 163) for link in (0, 1)]
    stub.play(SYSTEM, CARD, *lines)
    with on_tree(stub, tree) as child:
        child.discover()
        (sample, *_) = child.sample()
    values = readings(sample)
    assert {
        "xpu_device_engine_busy_ratio encoder": 0.25,
        "xpu_device_engine_busy_ratio decoder": 0.5,
        "xpu_device_ecc_errors_total uncorrected": 3,
        "xpu_device_pcie_replays_total": 7,
        "xpu_device_nvlink_errors_total replay": 8,
        "xpu_device_nvlink_errors_total recovery": 8,
        "xpu_device_nvlink_errors_total crc": 8,
    }.items() <= values.items()
    families = {f.name: len(f.labels) for f in NvidiaVendor.description.families}
    assert all(families[r.family] == len(r.labels) for r in sample.readings)


@pytest.mark.parametrize(
    ("profile", "memory_mb", "size", "total_gib", "expected"),
    [
        ("1g.5gb", 4864, 1, 40, 1 / 7),
        ("1c.3g.20gb", 19968, 4, 40, 3 / 7),
        ("7g.40gb", 40192, 8, 40, 1.0),
        ("1g.10gb", 9856, 2, 40, 1 / 7),
        ("2g.12gb", 11968, 2, 24, 2 / 4),
        ("4g.24gb", 23936, 4, 24, 1.0),
        ("1g", 0, 1, 40, None),
    ],
)
def test_an_instance_has_its_share_of_the_compute_slices(
    profile: str, memory_mb: int, size: int, total_gib: int, expected: float | None
) -> None:
    part = DevicePartition(uuid="", profile=profile, memory_bytes=memory_mb << 20, size=size)
    assert compute_share(part, total_gib * GIB) == (
        pytest.approx(expected) if expected is not None else None
    )


def test_a_card_of_which_no_instance_reports_load_is_not_idle() -> None:
    part = DevicePartition(uuid="", profile="1g.5gb", memory_bytes=GIB, size=1, instance=1)
    assert card_percent((part,), {}, 40 * GIB) is None


@pytest.mark.parametrize(
    ("used_bytes", "processes", "seconds", "expected"),
    [
        (ORPHAN_BYTES, 0, 300.0, True),
        (ORPHAN_BYTES, 0, 299.0, False),
        (ORPHAN_BYTES - 1, 0, 900.0, False),
        (ORPHAN_BYTES, 1, 900.0, False),
        (ORPHAN_BYTES, None, 900.0, False),
        (None, 0, 900.0, False),
    ],
)
def test_memory_of_nobody_is_worth_a_warning_after_minutes(
    used_bytes: int | None, processes: int | None, seconds: float, *, expected: bool
) -> None:
    since_s = orphan_start(None, used_bytes, processes, 100.0)
    since_s = orphan_start(since_s, used_bytes, processes, 100.0 + seconds)
    assert is_orphan_lasting(since_s, 100.0 + seconds) is expected
