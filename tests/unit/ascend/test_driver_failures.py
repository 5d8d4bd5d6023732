"""A library that hangs, crashes, returns garbage, or is slow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.snapshot.device import HealthState
from plugins.vendors.ascend.health.fault_store import FaultStore
from plugins.vendors.ascend.library.dcmi import MANDATORY, OPTIONAL
from tests.unit.ascend.conftest import Machine

CALLS = [
    name
    for name in (*MANDATORY, *OPTIONAL)
    if name not in ("dcmi_init", "dcmi_create_vdevice", "dcmi_set_destroy_vdevice")
]


def test_a_port_that_hangs_stops_nothing_else(b3: Machine) -> None:
    b3.stub.add("chip.5.0.ip 10.0.0.5", "call.dcmi_get_device_network_health.sleep_ms 60000")
    with b3.session() as child:
        assert len(child.discover().devices) == 8
        for _ in range(3):
            assert len(child.sample()) == 8
        child.ask("close", deadline_s=2.0)


def test_a_call_that_hangs_is_late_and_the_process_can_be_ended(b3: Machine) -> None:
    with b3.session() as child:
        child.discover()
        b3.stub.add("call.dcmi_get_device_temperature.hang 1")
        with pytest.raises(TimeoutError):
            child.ask("sample", deadline_s=0.3)
    b3.stub.add("call.dcmi_get_device_temperature.hang")
    with b3.session() as child:
        assert len(child.discover().devices) == 8


@pytest.mark.parametrize("signal", [1, 11])
def test_a_call_that_dies_takes_its_process_only(b3: Machine, signal: int) -> None:
    with b3.session() as child:
        child.discover()
        b3.stub.add(f"call.dcmi_get_device_health.abort {signal}")
        with pytest.raises(EOFError):
            child.ask("discover")
    b3.stub.add("call.dcmi_get_device_health.abort")
    with b3.session() as child:
        assert all(d.health.is_in_service for d in child.discover().devices)


@pytest.mark.parametrize("symbol", CALLS)
@pytest.mark.parametrize("byte", [255, 127])
def test_garbage_is_refused_and_costs_no_other_answer(b3: Machine, symbol: str, byte: int) -> None:
    b3.stub.add("chip.5.0.ip 10.0.0.5", f"call.{symbol}.fill {byte}")
    with b3.session() as child:
        inventory, samples = child.discover(), child.sample()
    assert len({device.key for device in inventory.devices}) == len(inventory.devices) >= 8
    for device in inventory.devices:
        assert device.minor is None or 0 <= device.minor < 64
        assert (device.memory_bytes or 0) < 1 << 45
        assert device.model is None or device.model.isascii()
    for sample in samples:
        assert sample.core_percent is None or 0 <= sample.core_percent <= 100
        if sample.memory_used_bytes is not None and sample.memory_total_bytes is not None:
            assert sample.memory_used_bytes <= sample.memory_total_bytes
        for reading in sample.readings:
            assert not reading.family.endswith("_ratio") or 0 <= reading.value <= 1


def test_every_call_full_of_garbage_publishes_nothing(b3: Machine) -> None:
    b3.stub.add(*(f"call.{symbol}.fill 255" for symbol in CALLS))
    with b3.session() as child:
        inventory = child.discover()
        assert child.sample() == ()
    assert all(device.minor is None and not device.resources for device in inventory.devices)
    assert {device.health.state for device in inventory.devices} == {HealthState.FAILED}


def test_values_outside_their_bounds_are_reported_as_rejections(b3: Machine) -> None:
    b3.stub.add("call.dcmi_get_device_temperature.fill 127")
    with b3.session() as child:
        child.discover()
        samples = child.sample()
    for sample in samples:
        (rejection,) = sample.rejections
        assert rejection.family == "dcmi_get_device_temperature"
        assert rejection.value == str(0x7F7F7F7F)


@pytest.mark.parametrize("code", [-8003, -8005, -8006, -8009, -8010, -8014, -8255, -1])
def test_one_chip_whose_every_call_fails_leaves_fifteen(a3: Machine, code: int) -> None:
    with a3.session() as child:
        child.discover()
        a3.stub.add(f"call.*.3.1.ret {code}")
        inventory, samples = child.discover(), child.sample()
    assert len(inventory.devices) == 16
    assert [d.minor for d in inventory.devices if d.health == inventory.devices[0].health][:7] == [
        *range(7)
    ]
    assert inventory.devices[7].minor == 7
    assert len([sample for sample in samples if sample.core_percent is not None]) >= 15


def test_a_lost_state_file_is_reported_although_it_is_written_again(b3: Machine) -> None:
    state = b3.folder / "state"
    state.mkdir()
    names = ("ascend-faults.json", "ascend-devices.json", "ascend-vnpus.json")
    for name in names:
        (state / name).write_text("{")
    with b3.session(state_dir=str(state)) as child:
        looks = [child.discover().problems for _ in range(2)]
    for problems in looks:
        assert [problem.reason for problem in problems] == ["StateFileDamaged"] * 3
        assert all(any(name in str(p.message) for p in problems) for name in names)


def test_a_flood_of_events_is_bounded_and_loses_no_chip(b3: Machine) -> None:
    with b3.session() as child:
        child.discover()
        with (b3.folder / "scenario.events").open("a") as events:
            events.write("".join(f"{n % 8} 0 {0x80000000 + n:X} 0 1\n" for n in range(3000)))
        assert child.wait_event().reason == "FaultNotice"
        assert len(child.discover().devices) == 8
        assert len(child.sample()) == 8


def test_a_round_makes_few_calls_for_a_chip(a3: Machine) -> None:
    rounds, chips, most = 20, 16, 12  # a round of twelve calls a chip is some 3 ms of one core
    with a3.session() as child:
        child.discover()
        child.sample()
        before = a3.stub.counts()
        for _ in range(rounds):
            child.sample()
        after = a3.stub.counts()
    calls = sum(after[name] - before.get(name, 0) for name in after)
    assert calls <= most * chips * rounds


@pytest.mark.parametrize(
    ("began_first", "codes"),
    [
        pytest.param(False, (), id="it began after the driver had answered"),
        pytest.param(True, (0x80A18008,), id="it ended after the driver had answered"),
    ],
)
def test_an_event_during_a_poll_is_newer_than_the_poll(
    tmp_path: Path, began_first: bool, codes: Sequence[int]
) -> None:
    book = FaultStore(str(tmp_path))
    if began_first:
        book.record_raised("die", 0x80A18008, 3, 5.0)
        book.record_cleared("die", 0x80A18008, 10.5)
    else:
        book.record_raised("die", 0x80A18008, 3, 10.5)
    history = book.history_of("die")
    assert book.record_poll("die", codes, 11.0, poll_start_s=10.0) == history
    after = () if began_first else (0x80A18008,)
    assert book.record_poll("die", after, 16.0, poll_start_s=15.0).separated_s is None
