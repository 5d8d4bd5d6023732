"""Readings of memory errors, throttling, limits, links, licences and slices of NVIDIA cards."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.snapshot.inventory import DeviceSample
from plugins.vendors.nvidia.vendor import NvidiaVendor
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
CARD = gpu(0, BUSES[0])
MIB = 1 << 20
HUGE = (1 << 64) - 1
ALL_LINKS = 0xFFFFFFFF


def readings(sample: DeviceSample) -> dict[str, float]:
    """Return the values by family and labels; each reading is of a declared family."""
    families = {f.name: len(f.labels) for f in NvidiaVendor.description.families}
    assert all(families[r.family] == len(r.labels) for r in sample.readings)
    assert len({(r.family, r.labels) for r in sample.readings}) == len(sample.readings)
    return {" ".join((r.family, *r.labels)): r.value for r in sample.readings}


def family_values(stub: Stub, tree: Path, *lines: str, family: str) -> dict[str, float]:
    """Return the values of one family, by its labels, in the first sample of a scenario."""
    stub.play(SYSTEM, CARD, *lines)
    with on_tree(stub, tree) as child:
        child.discover()
        values = readings(child.sample()[0])
    return {
        name.removeprefix(family).strip(): value
        for name, value in values.items()
        if name.split()[0] == family
    }


def performance_values(stub: Stub, tree: Path, *lines: str, family: str) -> dict[str, float]:
    """Return the values of a family of performance counters, which need two samples."""
    stub.play(SYSTEM, *lines)
    with on_tree(stub, tree) as child:
        child.discover()
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s:
            for _ in range(8):
                sample = child.sample()[0]
            values = {n: v for n, v in readings(sample).items() if n.split()[0] == family}
            if values:
                return {name.removeprefix(family).strip(): v for name, v in values.items()}
    raise TimeoutError(family)


@pytest.mark.parametrize(
    ("line", "family", "expected"),
    [
        ("gpu 0 remap=1,2,1,0", "row_remap_pending", {"": 1.0}),
        ("gpu 0 remap=1,2,0,1", "row_remap_failed", {"": 1.0}),
        ("field 0 29 u32 3", "retired_pages", {"single_bit": 3.0}),
        ("field 0 30 u32 4", "retired_pages", {"double_bit": 4.0}),
        ("field 0 31 u32 1", "page_retirement_pending", {"": 1.0}),
        ("field 0 3 u64 5", "ecc_errors_total", {"corrected": 5.0}),
        ("field 0 4 u64 6", "ecc_errors_total", {"uncorrected": 6.0}),
        ("gpu 0 ecc.0.0=5", "ecc_errors_total", {"corrected": 5.0}),
        ("field 0 5 u64 7", "ecc_lifetime_errors_total", {"corrected": 7.0}),
        ("field 0 6 u64 8", "ecc_lifetime_errors_total", {"uncorrected": 8.0}),
        ("gpu 0 ecc.0.1=7", "ecc_lifetime_errors_total", {"corrected": 7.0}),
        ("gpu 0 ecc.1.1=8", "ecc_lifetime_errors_total", {"uncorrected": 8.0}),
        ("field 0 74 u64 2500000000", "throttle_seconds_total", {"power": 2.5}),
        ("field 0 75 u64 1000000000", "throttle_seconds_total", {"thermal": 1.0}),
        ("field 0 271 u64 1000000000", "throttle_seconds_total", {"hw_power_brake": 1.0}),
        ("", "memory_reserved_bytes", {"": 500000000.0}),
        ("", "memory_free_bytes", {"": 84020809984.0}),
        ("gpu 0 plimit=700000", "power_limit_watts", {"": 700.0}),
        ("field 0 190 u32 650000", "power_limit_watts", {"": 650.0}),
        ("field 0 187 u32 200000", "power_limit_bounds_watts", {"min": 200.0}),
        ("field 0 188 u32 700000", "power_limit_bounds_watts", {"max": 700.0}),
        ("field 0 189 u32 600000", "power_limit_bounds_watts", {"default": 600.0}),
        ("gpu 0 fans=2 fan.0=30 fan.1=110", "fan_speed_ratio", {"0": 0.3, "1": 1.1}),
        ("", "performance_state", {"": 0.0}),
        ("gpu 0 pstate=8", "performance_state", {"": 8.0}),
        ("gpu 0 pstate=32", "performance_state", {}),
        ("gpu 0 license=1,1,1", "vgpu_licensed", {"": 1.0}),
        ("gpu 0 license=1,2,0", "vgpu_licensed", {"": 0.0}),
        ("gpu 0 license=0,0,0", "vgpu_licensed", {}),
        ("", "last_xid", {"": 0.0}),
    ],
)
def test_a_reading_is_exported_in_base_units(
    stub: Stub, tree: Path, line: str, family: str, expected: dict[str, float]
) -> None:
    assert family_values(stub, tree, line, family=f"xpu_device_{family}") == expected


@pytest.mark.parametrize(
    ("line", "family"),
    [
        ("gpu 0 remap=0,0,2,0", "row_remap_pending"),
        ("field 0 29 u32 4294967295", "retired_pages"),
        ("field 0 31 u32 7", "page_retirement_pending"),
        ("field 0 5 u64 4294967295", "ecc_lifetime_errors_total"),
        (f"field 0 74 u64 {HUGE}", "throttle_seconds_total"),
        ("gpu 0 plimit=4294967295", "power_limit_watts"),
        ("field 0 188 u32 4294967295", "power_limit_bounds_watts"),
        ("gpu 0 fans=1 fan.0=4294967295", "fan_speed_ratio"),
        ("gpu 0 fans=4294967295 fan.0=30", "fan_speed_ratio"),
        ("gpu 0 pstate=4294967295", "performance_state"),
        ("gpu 0 license=1,1,4294967295", "vgpu_licensed"),
        ("gpu 0 license=-1,1,1", "vgpu_licensed"),
        ("gpu 0 license=1,4294967295,1", "vgpu_licensed"),
        ("gpu 0 reserved=85520809985", "memory_reserved_bytes"),
    ],
)
def test_a_reading_that_cannot_be_true_is_absent_and_counted(
    stub: Stub, tree: Path, line: str, family: str
) -> None:
    stub.play(SYSTEM, CARD, line)
    with on_tree(stub, tree) as child:
        child.discover()
        names = {name.split()[0] for name in readings(child.sample()[0])}
    assert f"xpu_device_{family}" not in names
    assert "xpu_device_implausible_readings_total" in names


def test_each_link_reports_its_traffic_and_its_errors(stub: Stub, tree: Path) -> None:
    lines = ["field 0 91 u32 2"]
    lines += [f"field 0 {n}:{link} u64 {n + link}" for n in (138, 139, 161) for link in (0, 1)]
    stub.play(SYSTEM, CARD, *lines)
    with on_tree(stub, tree) as child:
        child.discover()
        values = readings(child.sample()[0])
    assert {
        "xpu_device_nvlink_link_bytes_total 0 tx": 138 * 1024,
        "xpu_device_nvlink_link_bytes_total 1 tx": 139 * 1024,
        "xpu_device_nvlink_link_bytes_total 0 rx": 139 * 1024,
        "xpu_device_nvlink_link_bytes_total 1 rx": 140 * 1024,
        "xpu_device_nvlink_link_errors_total 0 replay": 161,
        "xpu_device_nvlink_link_errors_total 1 replay": 162,
        "xpu_device_nvlink_errors_total replay": 323,
    }.items() <= values.items()


def test_traffic_is_also_a_rate_from_the_second_sample_on(stub: Stub, tree: Path) -> None:
    def traffic(pcie: int, nvlink_kib: int) -> tuple[str, str]:
        return f"field 0 197 u64 {pcie}", f"field 0 138:{ALL_LINKS} u64 {nvlink_kib}"

    stub.play(SYSTEM, CARD, *traffic(1000, 10))
    with on_tree(stub, tree) as child:
        child.discover()
        began_s = time.monotonic()
        first = readings(child.sample()[0])
        time.sleep(0.2)
        stub.play(SYSTEM, CARD, *traffic(MIB, 20))
        second = readings(child.sample()[0])
        elapsed_s = time.monotonic() - began_s
        stub.play(SYSTEM, CARD, *traffic(5, 20))
        reset = readings(child.sample()[0])
    assert not any("per_second" in name for name in first)
    assert second["xpu_device_pcie_bytes_per_second tx"] >= (MIB - 1000) / elapsed_s
    assert second["xpu_device_nvlink_bytes_per_second tx"] >= 10 * 1024 / elapsed_s
    assert "xpu_device_pcie_bytes_per_second tx" not in reset  # the counter was reset
    assert not any("implausible" in name for name in reset)
    assert reset["xpu_device_nvlink_bytes_per_second tx"] == 0


def test_the_cards_own_rate_counters_come_before_differences(stub: Stub, tree: Path) -> None:
    lines = (CARD, "gpm 0 20 1.5", "gpm 0 21 2", "gpm 0 1 50", "field 0 197 u64 1000")
    stub.play(SYSTEM, *lines)
    with on_tree(stub, tree) as child:
        child.discover()
        values: dict[str, float] = {}
        while "xpu_device_graphics_engine_active_ratio" not in values:
            values = readings(child.sample()[0])
    assert values["xpu_device_pcie_bytes_per_second tx"] == 1.5 * MIB
    assert values["xpu_device_pcie_bytes_per_second rx"] == 2.0 * MIB


@pytest.mark.parametrize(
    ("number", "family", "labels"),
    [
        (1, "xpu_device_graphics_engine_active_ratio", ""),
        (4, "xpu_device_pipe_active_ratio", "integer"),
        (7, "xpu_device_pipe_active_ratio", "tensor_hmma"),
    ],
)
def test_a_performance_counter_is_a_ratio(
    stub: Stub, tree: Path, number: int, family: str, labels: str
) -> None:
    assert performance_values(stub, tree, CARD, f"gpm 0 {number} 37.5", family=family) == {
        labels: 0.375
    }


@pytest.mark.parametrize(
    ("number", "family", "more"),
    [
        (1, "xpu_device_slice_graphics_engine_active_ratio", ""),
        (2, "xpu_device_slice_utilization_ratio", ""),
        (3, "xpu_device_slice_sm_occupancy_ratio", ""),
        (5, "xpu_device_slice_pipe_active_ratio", " tensor"),
        (10, "xpu_device_slice_pipe_active_ratio", " dram"),
    ],
)
def test_a_slice_has_the_performance_counters_of_its_gpu_instance(
    stub: Stub, tree: Path, number: int, family: str, more: str
) -> None:
    lines = (
        gpu(0, BUSES[0], migmode=1, util=None),
        "profile 0 0 id=19 slices=1 max=7 mb=9984",
        "mig 0 0 uuid=MIG-c gi=5 ci=0 k=0 cik=0 start=4 size=1 mb=9984 sm=16",
        f"gpm 0 {number} gi=5 75",
    )
    assert performance_values(stub, tree, *lines, family=family) == {f"MIG-c 1g.10gb 5{more}": 0.75}
