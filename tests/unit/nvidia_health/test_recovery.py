"""Cards that fail, are probed, and recover or not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.snapshot.device import Health, HealthState
from agent.snapshot.inventory import DeviceSample
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.stubs.child import Child
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
BOOT = "proc/sys/kernel/random/boot_id"


def reason(sample: DeviceSample) -> str | None:
    return sample.health.reason if sample.health is not None else None


def until(child: Child, expected_reason: str | None, card: int = 0) -> DeviceSample:
    """Sample for ten cycles at most, until the card's health has the expected reason."""
    for _ in range(11):
        sample = child.sample()[card]
        if reason(sample) == expected_reason:
            return sample
    raise AssertionError(reason(sample))


@pytest.mark.parametrize("number", [pytest.param(119, id="V41")])
def test_each_sample_of_a_failed_card_is_a_probe_until_it_is_well_again(
    stub: Stub, tree: Path, number: int
) -> None:
    stub.play(SYSTEM, *GPUS, "field 0 230 u32 0")
    with on_tree(stub, tree) as child:
        child.discover()
        assert [reason(s) for s in child.sample()[:3]].count(None) >= 2
        event = f"event 0 type=8 data={number} at=0"
        stub.play(SYSTEM, *GPUS, "field 0 230 u32 1", event)
        assert child.wait_event().reason == f"Xid{number}"
        assert [reason(child.sample()[0]) for _ in range(3)] == [f"Xid{number}"] * 3
        stub.play(SYSTEM, *GPUS, "field 0 230 u32 0", event)
        assert [reason(child.sample()[0]) for _ in range(3)] == ["DeviceHealthy"] * 3
        first_event = child.wait_event()
        assert child.discover().devices[0].health == Health()
    # the agent decides when the card is healthy: the event only requests a check
    assert (first_event.reason, first_event.state) == ("CauseGone", None)


@pytest.mark.parametrize("number", [pytest.param(79, id="V42")])
def test_a_card_that_fell_off_stays_out_over_restarts_until_another_boot(
    stub: Stub, tree: Path, tmp_path: Path, number: int
) -> None:
    (tree / BOOT).parent.mkdir(parents=True)
    (tree / BOOT).write_text("11111111-1111-4111-8111-111111111111\n")
    state = str(tmp_path / "state")
    stub.play(SYSTEM, *GPUS, f"event 2 type=8 data={number} at=0", "field 2 230 u32 0")
    with on_tree(stub, tree, state_dir=state) as child:
        child.discover()
        child.wait_event()
        assert [reason(child.sample()[2]) for _ in range(3)] == [f"Xid{number}"] * 3
        state_file, until_s = Path(state) / "nvidia-causes.json", time.monotonic() + 20
        while not state_file.exists():  # written by the thread that waits for events
            assert time.monotonic() < until_s
            child.ask("ping")
    stub.play(SYSTEM, *GPUS, "field 2 230 u32 0")
    with on_tree(stub, tree, state_dir=state) as child:
        assert child.discover().devices[2].health.reason == f"Xid{number}"
    (tree / BOOT).write_text("22222222-2222-4222-8222-222222222222\n")
    with on_tree(stub, tree, state_dir=state) as child:
        assert child.discover().devices[2].health == Health()


def test_a_lost_card_that_answers_again_is_reported_and_healthy(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "lost 1")
        assert reason(child.sample()[1]) == "GpuLost"
        child.discover()  # which gets no handle for the card
        assert until(child, "GpuLost", 1).core_percent is None
        stub.play(SYSTEM, *GPUS)
        for _ in range(10):
            child.sample()
        while (event := child.wait_event()).reason != "CardAnswers":
            assert event.key == BUSES[1]
        assert child.discover().devices[1].health == Health()
        assert child.sample()[1].core_percent == 11.0


def test_a_card_that_no_bus_shows_is_probed_by_its_uuid(stub: Stub, tmp_path: Path) -> None:
    root = tmp_path / "wsl"
    for name in ("proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    (root / "dev/dxg").touch()
    card = gpu(0, BUSES[0], module=None, minor=None)
    event = "event 0 type=8 data=119 at=0"
    stub.play(SYSTEM, card, "field 0 230 u32 0")
    with on_tree(stub, root) as child:
        assert child.discover().devices[0].bus_id is None
        stub.play(SYSTEM, card, "field 0 230 u32 1", event)
        assert child.wait_event().reason == "Xid119"
        assert reason(child.sample()[0]) == "Xid119"
        stub.play(SYSTEM, card, "field 0 230 u32 0", event)
        assert reason(child.sample()[0]) == "DeviceHealthy"


def test_a_card_that_comes_back_as_another_is_not_taken_for_the_one_that_failed(
    stub: Stub, tree: Path
) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "lost 1")
        child.sample()
        stub.play(SYSTEM, *GPUS, "gpu 1 uuid=GPU-99999999-0000-4000-8000-000000000009")
        assert [reason(child.sample()[1]) for _ in range(3)] == ["GpuLost"] * 3


def test_a_card_whose_config_space_reads_all_ones_is_not_called_any_more(
    stub: Stub, tree: Path
) -> None:
    config = tree / "sys/bus/pci/devices" / BUSES[1] / "config"
    config.write_bytes(b"\xde\x10" + bytes(62))
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "event 1 type=8 data=79 at=0")
        child.wait_event()
        child.sample()
        config.write_bytes(b"\xff" * 64)
        stub.take_calls()
        sample = child.sample()[1]
        calls = [c for c in stub.take_calls() if c.split()[1:2] == ["1"]]
    assert calls == []
    assert sample.health is not None
    assert sample.health.message.endswith("; also GpuLost")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["gpu 0 sram=1"], "SRAMThreshold"),
        (["gpu 0 unrepairable=1"], "UnrepairableMemory"),
        pytest.param(["gpu 0 remap=0,2,0,1"], "RowRemapFailure", id="V44-failure"),
        (["field 0 230 u32 4"], "DrainAndReset"),
    ],
)
def test_what_polls_find_takes_the_card_out(
    stub: Stub, tree: Path, lines: list[str], expected: str
) -> None:
    able = (
        "gpu 0 sram=0 unrepairable=0",
        "field 0 230 u32 0",
    )  # otherwise the call is not repeated
    stub.play(SYSTEM, *GPUS, *able)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, *able, *lines)
        sample = until(child, expected)
        event = child.wait_event()
    assert sample.health is not None
    assert sample.health.state is HealthState.FAILED
    assert (event.reason, event.state) == (expected, HealthState.FAILED)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(["gpu 0 remap=0,2,1,0"], "RowRemapPending", id="V44-pending"),
        (["gpu 0 repair=2"], "RepairPending"),
        (["gpu 0 width=8"], "PCIeWidthReduced"),
        pytest.param(["event 0 type=8 data=63 at=0"], "Xid63", id="V32"),
    ],
)
def test_warnings_are_a_condition_of_a_healthy_card(
    stub: Stub, tree: Path, lines: list[str], expected: str
) -> None:
    stub.play(SYSTEM, *GPUS, *lines)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
        if "event" in lines[0]:
            child.wait_event()
            inventory = child.discover()
    card = inventory.devices[0]
    assert card.health == Health()
    assert [(c.type, c.status, c.reason) for c in card.conditions] == [("Degraded", True, expected)]


def test_settings_move_numbers(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS, "event 0 type=8 data=48 at=0", "event 1 type=8 data=13 at=0")
    with on_tree(stub, tree, xids={"ignore": ["48"], "fatal": ["13"]}) as child:
        child.discover()
        events = {e.reason: e.state for e in (child.wait_event(), child.wait_event())}
    assert events == {"Xid48": None, "Xid13": HealthState.FAILED}


@pytest.mark.parametrize(
    ("code", "state", "name"),
    [
        (4, HealthState.SUSPECT, "NoPermission"),
        (23, HealthState.SUSPECT, "NVMLError23"),
        (999, HealthState.FAILED, "NVMLUnknown"),
        (12345, HealthState.FAILED, "NVMLError12345"),
    ],
)
def test_a_card_whose_look_up_fails_is_failed_and_not_recovered(
    stub: Stub, tree: Path, code: int, state: HealthState, name: str
) -> None:
    stub.play(SYSTEM, *GPUS, f"error nvmlDeviceGetHandleByPciBusId_v2 1 {code}")
    with on_tree(stub, tree) as child:
        health = child.discover().devices[1].health
        assert (health.state, health.reason) == (state, name)
        for _ in range(21):
            assert reason(child.sample()[1]) == name
        assert "CardAnswers" not in [event.reason for event in child.events]
        stub.play(SYSTEM, *GPUS)
        for _ in range(10):
            child.sample()
        while child.wait_event().reason != "CardAnswers":
            pass
        assert child.discover().devices[1].health == Health()


def test_an_unknown_error_of_one_look_up_is_ignored(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS, "error nvmlDeviceGetHandleByPciBusId_v2 1 999 x1")
    with on_tree(stub, tree) as child:
        assert child.discover().devices[1].health == Health()
