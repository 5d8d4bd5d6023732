from __future__ import annotations

from pathlib import Path

import pytest

from agent.snapshot.device import HealthState
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))


def test_an_xid_is_pushed_with_its_card_and_counted(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "event 5 type=8 data=79 at=0", "event 5 type=8 data=31 at=0")
        events = [child.wait_event(), child.wait_event()]
        sample = child.sample()[5]
    assert [(e.key, e.reason, e.state) for e in events] == [
        (BUSES[5], "Xid79", HealthState.FAILED),
        (BUSES[5], "Xid31", None),
    ]
    assert events[0].message.startswith("Xid error detected on device, error code: 79 (")
    assert [
        (r.labels, r.value) for r in sample.readings if r.family == "xpu_device_xid_errors_total"
    ] == [(("31",), 1.0), (("79",), 1.0)]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (0x2, "DoubleBitECC"),
        (0x100, "MIGConfigChange"),
        (0x200, "SingleBitECCStorm"),
        (0x400, "DRAMRetirement"),
        (0x800, "RowRemapFailure"),
        (0x1000, "NonFatalPoison"),
        (0x2000, "FatalPoison"),
        (0x4000, "GPUUnavailable"),
    ],
)
def test_other_events_are_pushed_under_their_name(
    stub: Stub, tree: Path, kind: int, reason: str
) -> None:
    stub.play(SYSTEM, *GPUS, f"event 1 type={kind} at=0")
    with on_tree(stub, tree) as child:
        child.discover()
        event = child.wait_event()
    assert (event.key, event.reason) == (BUSES[1], reason)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("error nvmlDeviceRegisterEvents 3 3", id="V39"),
        pytest.param("gpu 2 events=0", id="no-events-at-all"),
    ],
)
def test_cards_without_events_stay_healthy_and_sampled(stub: Stub, tree: Path, line: str) -> None:
    stub.play(SYSTEM, *GPUS, line)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
        assert len(child.sample()) == 8
    assert {d.health.reason for d in inventory.devices} == {"DeviceHealthy"}


def test_the_noise_of_the_driver_is_not_requested(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        masks = {
            int(c.split()[2]) for c in stub.take_calls() if c.startswith("nvmlDeviceRegisterEvents")
        }
        child.discover()
        again = [c for c in stub.take_calls() if c.startswith("nvmlDeviceRegisterEvents")]
    assert masks == {0xFF0A}
    assert again == []


@pytest.mark.parametrize("code", [pytest.param(15, id="V40")])
def test_a_wait_that_says_lost_again_and_again_blames_the_lost_card_and_does_not_spin(
    stub: Stub, tree: Path, code: int
) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "lost 4", f"error nvmlEventSetWait_v2 {code}")
        event = child.wait_event()
        stub.take_calls()
        with pytest.raises(TimeoutError):
            child.wait_event(1.5)
        calls = stub.take_calls()
    assert (event.key, event.reason) == (BUSES[4], "GpuLost")
    assert sum(c.startswith("nvmlEventSetWait") for c in calls) <= 6
    assert sum(c == "nvmlDeviceGetHandleByPciBusId_v2 0" for c in calls) <= 2


def test_a_set_that_fails_is_made_anew(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS, "error nvmlEventSetWait_v2 999 x1", "event 0 type=8 data=13 at=0")
    with on_tree(stub, tree) as child:
        child.discover()
        event = child.wait_event()
        calls = [c.split()[0] for c in stub.take_calls()]
    assert event.reason == "Xid13"
    assert calls.count("nvmlEventSetCreate") == 2
    assert calls.count("nvmlEventSetFree") == 1


def test_a_driver_without_events_at_all_leaves_sampling_alone(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS, "error nvmlEventSetCreate 3", "lost 1")
    with on_tree(stub, tree) as child:
        inventory = child.discover()
        samples = child.sample()
    assert inventory.devices[1].health.reason == "GpuLost"
    assert [s.health is not None and s.health.reason for s in samples][:3] == [
        False,
        "GpuLost",
        False,
    ]
