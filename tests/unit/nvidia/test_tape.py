from __future__ import annotations

import itertools

import pytest

from agent.workers.tape import Tape, parse_tape
from tests.fault import nvml_tape
from tests.unit.nvidia.conftest import BUSES

COMMITTED = nvml_tape.TAPES / "h100x8.jsonl"
COUNTERS = ("xpu_device_energy_joules_total", "xpu_device_pcie_bytes_total")


@pytest.fixture(scope="module")
def tape() -> Tape:
    return parse_tape(COMMITTED.read_bytes(), "nvidia")


@pytest.mark.parametrize("name", nvml_tape.ALL)
def test_the_session_says_today_what_the_tapes_hold(name: str) -> None:
    played = nvml_tape.ALL[name]
    of_the_host = (nvml_tape.HOSTS / played.host / "tapes" / "nvidia.jsonl").read_bytes()
    assert parse_tape(nvml_tape.record(played), "nvidia") == parse_tape(of_the_host, "nvidia")


def test_the_tape_beside_its_scenario_is_that_of_the_host() -> None:
    of_the_host = nvml_tape.HOSTS / nvml_tape.H100.host / "tapes" / "nvidia.jsonl"
    assert COMMITTED.read_bytes() == of_the_host.read_bytes()


def test_the_tape_is_of_the_cards_on_the_recorded_host(tape: Tape) -> None:
    (inventory,) = tape.inventories
    assert [(d.bus_id, d.minor) for d in inventory.devices] == list(
        zip(BUSES, range(8), strict=True)
    )
    assert {(k.type, k.count) for k in inventory.links} == {("NVSwitch", 18)}
    assert len(inventory.links) == 28
    assert inventory.problems == ()


def test_the_tapes_counters_never_go_back(tape: Tape) -> None:
    for card in range(8):
        rows = [
            [r.value for r in sample[card].readings if r.family in COUNTERS]
            for sample in tape.samples
        ]
        for before, after in itertools.pairwise(rows):
            assert all(a <= b for a, b in zip(before, after, strict=True))


def test_the_tapes_cards_differ_and_move(tape: Tape) -> None:
    busy = {tuple(sample[card].core_percent for sample in tape.samples) for card in range(8)}
    assert len(tape.samples) == nvml_tape.STEPS
    assert len(busy) >= 6
    assert all(0 <= (value or 0) <= 100 for row in busy for value in row)
