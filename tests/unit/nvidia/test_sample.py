from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.snapshot.device import Health, HealthState
from agent.snapshot.inventory import DeviceSample, ProcessSample
from plugins.vendors.nvidia.vendor import NvidiaVendor
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
CARD = gpu(0, BUSES[0])
ALL_LINKS = 0xFFFFFFFF
LATER_US = int((time.time() + 12 * 3600) * 1e6)  # newer than any sample of this run


def first(stub: Stub, tree: Path, *lines: str) -> DeviceSample:
    """Return the first sample of the first card in a scenario."""
    stub.play(SYSTEM, *lines)
    with on_tree(stub, tree) as child:
        child.discover()
        return child.sample()[0]


def readings(sample: DeviceSample) -> dict[str, float]:
    return {" ".join((r.family, *r.labels)): r.value for r in sample.readings}


def test_every_card_is_sampled(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        samples = child.sample()
    assert [s.key for s in samples] == list(BUSES)
    assert [s.core_percent for s in samples] == [10.0 + i for i in range(8)]
    assert {s.memory_total_bytes for s in samples} == {85520809984}
    assert samples[3].memory_used_bytes == 1000000003  # without the driver's reserve


def test_nothing_is_sampled_before_a_discovery(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        assert child.sample() == ()


def test_readings_are_in_base_units(stub: Stub, tree: Path) -> None:
    fields = [
        "field 0 186 u32 345678",
        "field 0 83 u64 987654321",
        "field 0 82 u32 51",
        "field 0 197 u64 1000",
        "field 0 198 u64 2000",
        f"field 0 138:{ALL_LINKS} u64 3",
        f"field 0 139:{ALL_LINKS} u64 4",
        "field 0 230 u32 0",
    ]
    values = readings(
        first(stub, tree, gpu(0, BUSES[0], throttle="0x48", remap="1,2,0,0"), *fields)
    )
    assert values == pytest.approx(
        {
            "xpu_device_power_watts": 345.678,
            "xpu_device_energy_joules_total": 987654.321,
            "xpu_device_temperature_celsius gpu": 40,
            "xpu_device_temperature_celsius memory": 51,
            "xpu_device_clock_hertz sm": 1.98e9,
            "xpu_device_clock_hertz memory": 2.619e9,
            "xpu_device_pcie_bytes_total tx": 1000,
            "xpu_device_pcie_bytes_total rx": 2000,
            "xpu_device_nvlink_bytes_total tx": 3072,
            "xpu_device_nvlink_bytes_total rx": 4096,
            "xpu_device_recovery_action": 0,
            "xpu_device_remapped_rows_total correctable": 1,
            "xpu_device_remapped_rows_total uncorrectable": 2,
            "xpu_device_throttle_active sw_power_cap": 0,
            "xpu_device_throttle_active hw_slowdown": 1,
            "xpu_device_throttle_active sw_thermal": 0,
            "xpu_device_throttle_active hw_thermal": 1,
            "xpu_device_throttle_active hw_power_brake": 0,
            "xpu_device_memory_busy_ratio": 0.05,
            "xpu_device_memory_free_bytes": 84020809984,
            "xpu_device_memory_reserved_bytes": 500000000,
            "xpu_device_row_remap_pending": 0,
            "xpu_device_row_remap_failed": 0,
            "xpu_device_performance_state": 0,
            "xpu_device_last_xid": 0,
        }
    )


def test_every_reading_is_of_a_family_with_its_labels(stub: Stub, tree: Path) -> None:
    families = {f.name: f for f in NvidiaVendor.description.families}
    for reading in first(stub, tree, CARD).readings:
        assert len(families[reading.family].labels) == len(reading.labels)


def test_an_unsupported_value_is_absent_and_not_zero(stub: Stub, tree: Path) -> None:
    lists = ("ComputeRunningProcesses", "GraphicsRunningProcesses", "MPSComputeRunningProcesses")
    silent = [f"error nvmlDeviceGet{n}{v} 3" for n in lists for v in ("", "_v2", "_v3")]
    sample = first(stub, tree, f"gpu 0 bus={BUSES[0]} mem=1000 used=10", *silent)
    assert replace(sample, readings=()) == DeviceSample(
        key=BUSES[0], memory_used_bytes=10, memory_total_bytes=1000, processes=None
    )
    assert readings(sample) == {
        "xpu_device_memory_free_bytes": 990,
        "xpu_device_memory_reserved_bytes": 0,
        "xpu_device_last_xid": 0,  # counted by the agent
    }


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            ["proc 0 pid=10 mem=5000 list=compute", "proc 0 pid=10 mem=5000 list=mps"],
            [(10, 5000, 0.0)],
            id="V58",
        ),
        pytest.param(
            ["proc 0 pid=10 mem=3000 sm=5 list=compute", "proc 0 pid=10 mem=7000 list=graphics"],
            [(10, 7000, 5.0)],
            id="greatest-not-sum",
        ),
        pytest.param(["proc 0 pid=10 mem=na sm=5"], [(10, None, 5.0)], id="memory-not-told"),
        pytest.param(
            [
                f"proc 0 pid=10 mem=1 sm=5 ts={LATER_US}",
                f"proc 0 pid=10 mem=1 sm=70 ts={LATER_US + 1}",
            ],
            [(10, 1, 70.0)],
            id="newest-sample",
        ),
        pytest.param(["proc 0 pid=10 mem=1 sm=5 ts=1000"], [(10, 1, 0.0)], id="old-sample"),
        pytest.param([], [], id="none"),
        pytest.param(
            ["proc 0 pid=10 mem=1 sm=5", "error nvmlDeviceGetProcessUtilization 3"],
            [(10, 1, None)],
            id="utilisation-not-supported",
        ),
        pytest.param(
            [
                *(f"proc 0 pid={n} mem=1 list=compute" for n in range(1, 8)),
                "error nvmlDeviceGetComputeRunningProcesses_v3 0 7 x1",
            ],
            [(n, 1, 0.0) for n in range(1, 8)],
            id="more-were-born-between-two-calls",
        ),
    ],
)
def test_processes_are_merged_by_pid(
    stub: Stub, tree: Path, lines: list[str], expected: list[tuple[int, int | None, float | None]]
) -> None:
    processes = first(stub, tree, CARD, *lines).processes
    assert processes == tuple(
        ProcessSample(pid=pid, memory_bytes=size, core_percent=busy) for pid, size, busy in expected
    )


@pytest.mark.parametrize("level", [450, 510, 535, 570])
def test_processes_are_listed_by_the_entry_point_that_the_driver_has(
    tmp_path: Path, tree: Path, level: int
) -> None:
    lines = [f"proc 0 pid={n} mem=77 sm=3" for n in range(1, 7)]
    sample = first(Stub(tmp_path, level), tree, CARD, *lines)
    assert sample.processes is not None
    assert [(p.pid, p.memory_bytes, p.core_percent) for p in sample.processes] == [
        (n, 77, 3.0) for n in range(1, 7)
    ]
    # version 1 of the call counts the driver's reserve as used
    assert sample.memory_used_bytes == (1500000000 if level == 450 else 1000000000)


def test_a_cycle_makes_few_calls_and_none_that_blocks(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS, *(f"proc {i} pid={i + 10} mem=1 sm=1" for i in range(8)))
    with on_tree(stub, tree) as child:
        child.discover()
        child.sample()
        stub.take_calls()
        child.sample()
        calls = [c.split() for c in stub.take_calls() if "EventSet" not in c]
    names = [c[0] for c in calls]
    assert (
        names.count("nvmlDeviceGetFieldValues") == 0
    )  # none is supported, so none is called again
    assert "nvmlDeviceGetPcieThroughput" not in names
    assert len(calls) <= 8 * 17 + 12  # one of the eight cards is in its slow cycle


def test_fields_are_read_in_one_call_and_unsupported_ones_once(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD, "field 0 186 u32 1", "field 0 83 u64 !3", "field 0 82 u32 !999")
    with on_tree(stub, tree) as child:
        child.discover()
        stub.take_calls()
        child.sample()
        child.sample()
        calls = [c for c in stub.take_calls() if c.startswith("nvmlDeviceGetFieldValues")]
    # the discovery read the energy for the health check, and it was not supported
    assert calls == ["nvmlDeviceGetFieldValues 0 9", "nvmlDeviceGetFieldValues 0 2"]


def test_processes_are_not_idle_after_the_clock_was_set_back(stub: Stub, tree: Path) -> None:
    now_us = int(time.time() * 1e6)
    with on_tree(stub, tree) as child:
        stub.play(SYSTEM, CARD, f"proc 0 pid=5 mem=7 sm=40 ts={now_us + 3_600_000_000}")
        child.discover()
        before = child.sample()[0].processes or ()
        stub.play(SYSTEM, CARD, f"proc 0 pid=5 mem=7 sm=60 ts={now_us + 60_000_000}")
        after = child.sample()[0].processes or ()
    assert [p.core_percent for p in (*before, *after)] == [40.0, 60.0]


def test_a_card_without_process_utilization_never_reports_zero_processes(
    stub: Stub, tree: Path
) -> None:
    refused = ("nvmlDeviceGetProcessUtilization 3", "nvmlDeviceGetMPSComputeRunningProcesses_v3 6")
    stub.play(SYSTEM, CARD, "proc 0 pid=5 mem=77", *(f"error {what}" for what in refused))
    with on_tree(stub, tree) as child:
        child.discover()
        for _ in range(7):
            (process,) = child.sample()[0].processes or ()
            assert (process.pid, process.core_percent) == (5, None)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_field_that_is_no_number_gives_no_value(stub: Stub, tree: Path, value: str) -> None:
    fields = (f"field 0 {number} f64 {value}" for number in (230, 91, 29, 186))
    stub.play(SYSTEM, CARD, *fields)
    with on_tree(stub, tree) as child:
        assert child.discover().devices[0].health == Health()
        assert all(map(math.isfinite, readings(child.sample()[0]).values()))


def test_a_card_that_is_lost_has_no_figures_and_is_announced(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "lost 2")
        samples = child.sample()
        event = child.wait_event()
        child.sample()
        assert child.events == []  # once
    assert [s.key for s in samples] == list(BUSES)
    assert samples[2] == DeviceSample(key=BUSES[2], health=samples[2].health)
    assert samples[2].health is not None
    assert samples[2].health.reason == "GpuLost"
    assert (event.key, event.reason, event.state) == (BUSES[2], "GpuLost", HealthState.FAILED)


def test_a_change_of_health_is_noticed_within_ten_cycles(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD, "field 0 230 u32 0")
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, CARD, "field 0 230 u32 2")
        for _ in range(10):
            child.sample()
        event = child.wait_event()
    assert (event.reason, event.state) == ("NodeRebootRequired", HealthState.FAILED)


def test_a_warning_requests_a_discovery_within_ten_cycles(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD)
    with on_tree(stub, tree) as child:
        before = child.discover().devices[0]
        stub.play(SYSTEM, CARD, "gpu 0 remap=0,2,1,0")
        for _ in range(9):
            child.sample()
        event = child.wait_event()
        warned = child.discover().devices[0]
        stub.play(SYSTEM, CARD)
        for _ in range(9):
            child.sample()
        over = child.wait_event()
        for _ in range(9):
            child.sample()
        assert not child.events
    assert before.conditions == ()
    assert (event.key, event.reason, event.state) == (BUSES[0], "RowRemapPending", None)
    assert [c.reason for c in warned.conditions] == ["RowRemapPending"]
    assert (over.reason, over.message) == ("WarningGone", "RowRemapPending is over")


def test_unknown_errors_that_stay_take_the_card_out_of_service(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, CARD, "error nvmlDeviceGetTemperature 999")
        for _ in range(10):
            child.sample()
        assert child.wait_event().reason == "NVMLUnknown"


def test_a_late_card_is_called_less_often_and_reported(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD, gpu(1, BUSES[1]))
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, CARD, gpu(1, BUSES[1]), "delay nvmlDeviceGetTemperature 1100 x1")
        both, rest = child.sample(), child.sample()
        event = child.wait_event()
    assert [s.key for s in both if s.core_percent is not None] == [BUSES[0], BUSES[1]]
    assert BUSES[0] not in [s.key for s in rest]
    assert (event.key, event.reason) == (BUSES[0], "SlowAnswer")
