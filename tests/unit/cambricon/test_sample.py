from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.snapshot.inventory import DeviceSample
from agent.workers.protocol import SampleReply
from plugins.vendors.cambricon.metrics import FAMILIES
from tests.captures import needs_shared
from tests.stubs.build import described
from tests.unit.cambricon import mock
from tests.unit.cambricon.cards import card, machine, session, stub_of, tree_of

ROUND = [
    symbol.name
    for symbol in described("cndev").symbols
    if symbol.name.startswith("cndevGet") and "Count" not in symbol.name
]


def _first(*lines: str, folder: Path) -> DeviceSample:
    stub = stub_of(folder, *lines)
    with session(stub, tree_of(folder, 1)) as child:
        child.discover()
        return child.sample()[0]


def _readings(sample: DeviceSample) -> dict[tuple[str, ...], float]:
    return {(r.family, *r.labels): r.value for r in sample.readings}


@pytest.mark.parametrize(("kib", "memory_bytes"), [pytest.param(2048, 2097152, id="V59")])
def test_a_processes_memory_is_in_bytes(kib: int, memory_bytes: int, tmp_path: Path) -> None:
    sample = _first(*machine(1), f"mlu.0.proc.77 {kib}:0:33", folder=tmp_path)
    assert sample.processes is not None
    (process,) = sample.processes
    assert (process.pid, process.memory_bytes, process.core_percent) == (77, memory_bytes, 33.0)


@needs_shared
def test_a_cards_sample_is_what_the_tool_prints_of_it(tmp_path: Path) -> None:
    table = json.loads((mock.FOLDER / "cnmon-mlu370x4-3cards.json").read_text())
    row = dict(zip(table["columns"], table["rows"][0], strict=True))
    facts = {
        "util": row["Util"].rstrip("%"),
        "temp": row["Temp C"],
        "power": row["Power W"],
        "mem": row["Mem total MiB"],
        "mem_used": row["Mem used MiB"],
    }
    sample = _first("count 1", *card(0, **facts), folder=tmp_path)
    assert (sample.core_percent, sample.memory_used_bytes) == (0.0, 0)
    assert sample.memory_total_bytes == 23308 << 20
    readings = _readings(sample)
    assert readings["xpu_device_power_watts",] == 30
    assert readings["xpu_device_temperature_celsius", "chip"] == 32


def test_every_reading_belongs_to_a_family_that_is_declared(tmp_path: Path) -> None:
    lines = ("mlu.0.ecc 1:2:3:6", "mlu.0.temp_board 40", "mlu.0.temp_memory 50")
    sample = _first(*machine(1), *lines, folder=tmp_path)
    labels = {family.name: len(family.labels) for family in FAMILIES}
    assert {r.family: len(r.labels) for r in sample.readings}.items() <= labels.items()
    assert _readings(sample)["xpu_device_ecc_errors_total", "uncorrected"] == 3


@pytest.mark.parametrize(
    ("line", "member"),
    [
        ("mlu.0.util 101", "core_percent"),
        ("mlu.0.util -1", "core_percent"),
        ("mlu.0.mem_used 23309", "memory_used_bytes"),
        ("mlu.0.mem -1", "memory_total_bytes"),
    ],
)
def test_a_value_that_cannot_be_is_no_value(line: str, member: str, tmp_path: Path) -> None:
    assert getattr(_first(*machine(1), line, folder=tmp_path), member) is None


@pytest.mark.parametrize("symbol", ROUND)
def test_garbage_of_one_call_spoils_nothing_else(symbol: str, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(2))
    with session(stub, tree_of(tmp_path)) as child:
        child.discover()
        stub.add(f"call.{symbol}.0.fill 255")
        inventory, samples = child.discover(), child.sample()
    assert [d.minor for d in inventory.devices][:2] == [0, 1]
    assert inventory.devices[1].health.is_in_service
    last = samples[-1]
    assert (last.core_percent, last.memory_used_bytes) == (0.0, 0)
    for sample in samples:
        assert sample.core_percent is None or 0 <= sample.core_percent <= 100
        assert all(0 <= reading.value < 1 << 64 for reading in sample.readings)


@pytest.mark.parametrize("byte", [255, 127])
def test_garbage_in_all_values_gives_no_value(byte: int, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        calls = [name for name in ROUND if name != "cndevGetDeviceHandleByIndex"]
        stub.add(*(f"call.{symbol}.fill {byte}" for symbol in calls))
        reply = child.ask("sample")
    assert isinstance(reply, SampleReply)
    assert [s for s in reply.samples if s.core_percent is not None or s.readings] == []
    names = {rejection.family for sample in reply.samples for rejection in sample.rejections}
    assert {"memory total", "power", "utilization", "temperature chip"} <= names or byte == 127


@pytest.mark.parametrize("symbol", ["cndevGetECCInfo", "cndevGetMemoryUsageV2"])
def test_a_call_that_kills_the_process_counts_as_its_death(symbol: str, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        stub.add(f"call.{symbol}.abort 1")
        with pytest.raises(EOFError):
            child.ask("sample")
        assert child.process.wait(10) == -6


def test_a_call_that_hangs_holds_its_answer_until_it_ends(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        stub.add("call.cndevGetECCInfo.hang 1")
        with pytest.raises(TimeoutError):
            child.ask("sample", deadline_s=0.2)
        stub.play(*machine(1))
        assert isinstance(child.ask("sample"), SampleReply)  # the late answer


def test_a_call_that_is_not_supported_is_not_made_again_until_the_next_discovery(
    tmp_path: Path,
) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        for _ in range(3):
            child.sample()
        assert stub.counts()["cndevGetECCInfo"] == 1
        child.discover()
        child.sample()
    assert stub.counts()["cndevGetECCInfo"] == 2
