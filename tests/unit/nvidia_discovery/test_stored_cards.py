"""Cards that vanish, return, or return with another minor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock import ManualClock
from agent.snapshot.device import HealthState
from agent.snapshot.inventory import Inventory
from agent.workers.protocol import ClearReply
from plugins.vendors.nvidia.discovery.card_store import FILE_NAME, MAX_CARDS, REFRESH_S, CardStore
from plugins.vendors.nvidia.discovery.cards import NvidiaCards
from plugins.vendors.nvidia.discovery.sysfs import NvidiaFunction, NvidiaHardware
from tests.fault.nvml_stub import ROOT, Stub, add_function, build, gpu, on_tree
from tests.stubs.child import Child
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
UUID = "GPU-00000000-0000-4000-8000-00000000000{}"
NO_HANDLE = "error nvmlDeviceGetHandleByPciBusId_v2"


def discover_once(stub: Stub, tree: Path, *lines: str, **settings: object) -> Inventory:
    """Return the inventory of a new process."""
    stub.play(SYSTEM, *lines)
    with on_tree(stub, tree, state_dir=str(stub.folder / "state"), **settings) as child:
        return child.discover()


def reasons(inventory: Inventory) -> dict[int | None, str]:
    return {
        d.minor: d.health.reason for d in inventory.devices if d.health.reason != "DeviceHealthy"
    }


def stored(stub: Stub) -> dict[str, dict[str, object]]:
    file = json.loads((stub.folder / "state" / FILE_NAME).read_text())
    assert file["version"] == 1
    cards: dict[str, dict[str, object]] = file["cards"]
    return cards


def clear(child: Child, key: str) -> bool:
    reply = child.ask("clear", device=key)
    assert isinstance(reply, ClearReply), reply
    return reply.cleared


def test_cards_are_remembered_by_their_uuid(stub: Stub, tree: Path) -> None:
    discover_once(stub, tree, *GPUS)
    cards = stored(stub)
    assert {c["bdf"]: c["minor"] for c in cards.values()} == dict(zip(BUSES, range(8), strict=True))


def test_without_a_folder_nothing_is_stored(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        assert child.discover().problems == ()
    assert not (stub.folder / "state").exists()


def test_a_card_whose_function_vanished_between_runs_is_listed_as_lost(
    stub: Stub, tree: Path
) -> None:
    discover_once(stub, tree, *GPUS)
    (tree / "sys/bus/pci/devices" / BUSES[3]).rename(tree / "away")
    inventory = discover_once(stub, tree, *GPUS[:3], *GPUS[4:])
    assert reasons(inventory) == {3: "GpuLost"}
    card = inventory.devices[3]
    assert (card.bus_id, card.uuid, card.resources) == (BUSES[3], UUID.format(3), ())
    (tree / "away").rename(tree / "sys/bus/pci/devices" / BUSES[3])
    assert reasons(discover_once(stub, tree, *GPUS)) == {}


def test_a_card_that_is_away_too_long_is_forgotten(stub: Stub, tree: Path) -> None:
    discover_once(stub, tree, *GPUS)
    (tree / "sys/bus/pci/devices" / BUSES[3]).rename(tree / "away")
    file = stub.folder / "state" / FILE_NAME
    text = json.loads(file.read_text())
    text["cards"][UUID.format(3)]["last_seen_s"] = time.time() - 90_000
    file.write_text(json.dumps(text))
    inventory = discover_once(stub, tree, *GPUS[:3], *GPUS[4:])
    assert len(inventory.devices) == 7
    assert UUID.format(3) not in stored(stub)


@pytest.mark.parametrize("anew", [True, False])
def test_a_card_that_lost_its_driver_stays_listed(stub: Stub, tree: Path, *, anew: bool) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree, state_dir=str(stub.folder / "state")) as child:
        child.discover()
        (tree / "sys/bus/pci/devices" / BUSES[3] / "driver").unlink()
        if not anew:
            inventory = child.discover()
    if anew:
        inventory = discover_once(stub, tree, *GPUS)
    assert reasons(inventory) == {3: "DriverNotBound"}
    card = inventory.devices[3]
    assert (card.managed, card.uuid, card.health.state) == (
        True,
        UUID.format(3),
        HealthState.FAILED,
    )


@pytest.mark.parametrize("boot", ["0001", "0002"])
def test_a_discrete_card_keeps_its_size_over_a_restart(stub: Stub, tree: Path, boot: str) -> None:
    file = tree / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("0001\n")
    stub.play(SYSTEM, gpu(0, BUSES[0]))
    with on_tree(stub, tree, state_dir=str(stub.folder / "state")) as child:
        before = child.discover().devices[0]
    file.write_text(f"{boot}\n")
    stub.play(SYSTEM, gpu(0, BUSES[0], mem=0, used=0))
    with on_tree(stub, tree, state_dir=str(stub.folder / "state")) as child:
        card = child.discover().devices[0]
    same = (before.memory_bytes, before.resources)
    # after a boot another card may be in the slot
    assert (card.memory_bytes, card.resources) == (same if boot == "0001" else (None, ()))


def test_while_the_driver_is_away_all_cards_stay_listed(stub: Stub, tree: Path) -> None:
    discover_once(stub, tree, *GPUS)
    (tree / "sys/bus/pci/devices" / BUSES[0]).rename(tree / "away")
    for bus in BUSES[1:]:
        (tree / "sys/bus/pci/devices" / bus / "driver").unlink()
    (tree / "sys/module/nvidia").rmdir()
    inventory = discover_once(stub, tree, library_dirs=[str(tree)])
    assert reasons(inventory) == {0: "GpuLost", **dict.fromkeys(range(1, 8), "DriverMissing")}
    assert {card.managed for card in inventory.devices} == {True}
    assert [p.reason for p in inventory.problems] == ["LibraryMissing"]


def test_a_function_of_another_maker_is_ignored(stub: Stub, tree: Path) -> None:
    add_function(tree, "0000:c4:00.0", None)
    inventory = discover_once(stub, tree, *GPUS)
    assert [d.managed for d in inventory.devices] == [True] * 8 + [False]


def test_a_card_that_does_not_answer_is_named_by_what_is_remembered(stub: Stub, tree: Path) -> None:
    discover_once(stub, tree, *GPUS)
    information = tree / "proc/driver/nvidia/gpus" / BUSES[5] / "information"
    information.write_text("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-????????-????-????\n")
    inventory = discover_once(stub, tree, *GPUS, f"{NO_HANDLE} 5 15")
    assert (inventory.devices[5].uuid, inventory.devices[5].minor) == (UUID.format(5), 5)
    assert (
        inventory.devices[5].vendor_minor is None
    )  # it is unknown whether the card still has that number
    assert reasons(inventory) == {5: "GpuLost"}


@pytest.mark.parametrize("anew", [True, False])
def test_a_card_in_another_slot_is_the_same_card(stub: Stub, tree: Path, *, anew: bool) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree, state_dir=str(stub.folder / "state")) as child:
        child.discover()
        (tree / "sys/bus/pci/devices" / BUSES[7]).rename(tree / "away")
        add_function(tree, "0000:0a:00.0", GPU_UUID=UUID.format(7), Device_Minor="7")
        stub.play(SYSTEM, *GPUS[:7], gpu(7, "0000:0a:00.0"))
        if not anew:
            inventory = child.discover()
    if anew:
        inventory = discover_once(stub, tree, *GPUS[:7], gpu(7, "0000:0a:00.0"))
    assert [d.bus_id for d in inventory.devices] == ["0000:0a:00.0", *BUSES[:7]]
    assert inventory.problems == ()
    assert reasons(inventory) == {}


def test_a_card_under_another_number_waits_under_its_old_one(stub: Stub, tree: Path) -> None:
    discover_once(stub, tree, *GPUS)
    swapped = [*GPUS[:6], gpu(6, BUSES[6], minor=7), gpu(7, BUSES[7], minor=6)]
    inventory = discover_once(stub, tree, *swapped)
    assert reasons(inventory) == {6: "MinorChanged", 7: "MinorChanged"}
    assert [d.minor for d in inventory.devices] == list(range(8))
    assert [d.vendor_minor for d in inventory.devices] == [*range(6), 7, 6]
    assert dict(inventory.devices[6].facts)["minor-now"] == "7"
    assert discover_once(stub, tree, *swapped).devices[6].health.reason == "MinorChanged"
    assert reasons(discover_once(stub, tree, *GPUS)) == {}


def test_a_person_can_accept_the_new_number_of_a_card(stub: Stub, tree: Path) -> None:
    discover_once(stub, tree, *GPUS)
    stub.play(SYSTEM, *GPUS[:7], gpu(7, BUSES[7], minor=9))
    with on_tree(stub, tree, state_dir=str(stub.folder / "state")) as child:
        assert reasons(child.discover()) == {7: "MinorChanged"}
        assert clear(child, BUSES[7])
        assert not clear(child, BUSES[0])
        inventory = child.discover()
    assert (inventory.devices[7].minor, reasons(inventory)) == (9, {})


def test_another_card_in_the_slot_takes_its_own_number(stub: Stub, tree: Path) -> None:
    discover_once(stub, tree, *GPUS)
    fresh = gpu(2, BUSES[2], uuid="GPU-ffffffff-0000-4000-8000-000000000002")
    inventory = discover_once(stub, tree, *GPUS[:2], fresh, *GPUS[3:])
    assert reasons(inventory) == {}
    assert UUID.format(2) not in stored(stub)


@pytest.mark.parametrize("content", ["{", '{"version": 2}', "[]", '{"version":1,"cards":{"a":{}}}'])
def test_a_damaged_file_is_begun_anew(stub: Stub, tree: Path, content: str) -> None:
    (stub.folder / "state").mkdir()
    (stub.folder / "state" / FILE_NAME).write_text(content)
    assert len(discover_once(stub, tree, *GPUS).devices) == 8
    assert len(stored(stub)) == 8


def test_a_folder_that_cannot_be_written_is_reported(stub: Stub, tree: Path) -> None:
    (stub.folder / "state").write_text("a file in its place")
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree, state_dir=str(stub.folder / "state")) as child:
        child.discover()
        inventory = child.discover()
    assert "StateNotWritten" in [p.reason for p in inventory.problems]
    assert reasons(inventory) == {}


def test_a_person_can_release_a_stored_number(tmp_path: Path) -> None:
    memory = CardStore(str(tmp_path), "boot")
    assert memory.record("GPU-a", "0000:01:00.0", 0, 1.0) is None
    assert memory.record("GPU-a", "0000:01:00.0", 1, 2.0) == 0
    assert memory.renumber("GPU-a")
    assert memory.record("GPU-a", "0000:01:00.0", 1, 3.0) is None
    assert not memory.renumber("GPU-b")


def test_a_card_that_reports_no_number_keeps_its_own(tmp_path: Path) -> None:
    memory = CardStore(str(tmp_path), "boot")
    memory.record("GPU-a", "0000:01:00.0", 4, 1.0)
    assert memory.record("GPU-a", "0000:01:00.0", None, 2.0) is None
    assert memory.cards["GPU-a"].minor == 4


def test_the_file_is_written_when_something_changed_and_else_seldom(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    memory = CardStore(str(tmp_path), "boot")
    memory.record("GPU-a", "0000:01:00.0", 0, 0.0)
    memory.save()
    first = file.read_bytes()
    memory.record("GPU-a", "0000:01:00.0", 0, REFRESH_S)
    memory.save()
    assert file.read_bytes() == first
    memory.record("GPU-a", "0000:01:00.0", 0, REFRESH_S + 1)
    memory.save()
    assert file.read_bytes() != first
    assert json.loads(file.read_bytes())["boot_id"] == "boot"


def test_no_more_cards_are_stored_than_a_node_can_have(tmp_path: Path) -> None:
    memory = CardStore(str(tmp_path), "boot")
    for number in range(MAX_CARDS + 5):
        memory.record(f"GPU-{number}", f"0000:{number % 256:02x}:{number // 256:02x}.0", 0, number)
    memory.prune(0)
    assert len(memory.cards) == MAX_CARDS
    assert "GPU-0" not in memory.cards


@given(st.binary(max_size=300))
def test_any_file_is_read_or_begun_anew(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_bytes(content)
        assert CardStore(folder, "").cards == {}


def test_cards_that_could_not_be_written_are_when_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("a file in its place")
    memory = CardStore(str(folder), "boot")
    memory.record("GPU-a", "0000:01:00.0", 0, 0.0)
    memory.save()
    folder.unlink()
    memory.save()
    assert (memory.problem, set(CardStore(str(folder), "boot").cards)) == (None, {"GPU-a"})


AFTER_A_MINUTE = """
import json, sys
from agent.clock import ManualClock
from agent.recording.host_source import open_host
from plugins.vendors.nvidia.session import NvidiaSession
from plugins.vendors.nvidia.settings import NvidiaSettings

clock = ManualClock(mono_s=1000.0)
settings = NvidiaSettings(library_dirs=(sys.argv[2],))
session = NvidiaSession(open_host(sys.argv[1]).files, settings, clock=clock)
for after_s in (0.0, 59.0, 2.0, 1.0, 1.0):
    clock.advance(after_s)
    now_s = clock.monotonic()
    found = session.discover() if now_s == 1000.0 else None
    session.sample()
    events = [event.reason for event in session.events(0.0)]
    if events:
        found = session.discover()
    state = found.devices[0].health.state.value if found else None
    print(json.dumps([now_s, events, state]))
"""


def test_a_library_of_another_driver_requests_the_discovery_that_fails_the_cards(
    stub: Stub, tree: Path
) -> None:
    stub.play(SYSTEM, *GPUS, "error nvmlInitWithFlags 18")
    result = subprocess.run(
        [sys.executable, "-c", AFTER_A_MINUTE, str(tree), str(build())],
        env={**os.environ, **stub.environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        [1000.0, [], "suspect"],
        [1059.0, [], None],
        [1061.0, ["DriverMismatch"], "failed"],
        [1062.0, [], None],
        [1063.0, [], None],
    ]


def test_a_library_of_another_driver_has_a_minute_before_the_cards_are_out() -> None:
    clock = ManualClock()
    cards = NvidiaCards(CardStore("", "boot"), clock, 86_400.0)
    hardware = NvidiaHardware(cards=(NvidiaFunction(bus_id=BUSES[0], driver="nvidia", minor=0),))

    def state(reason: str) -> HealthState:
        (card,) = cards.describe_all_unreachable(hardware, reason, "told")
        assert card.health.reason == reason
        return card.health.state

    assert state("DriverMismatch") is HealthState.SUSPECT
    clock.advance(59)
    assert state("DriverMismatch") is HealthState.SUSPECT
    clock.advance(1)
    assert state("DriverMismatch") is HealthState.FAILED
    assert state("LibraryMissing") is HealthState.SUSPECT
    assert state("DriverMismatch") is HealthState.SUSPECT
