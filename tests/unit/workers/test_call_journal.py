"""The journal of calls: what is blamed, what is left out, for how long."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock import ManualClock
from agent.errors import CallSuspended
from agent.snapshot.device import DeviceCondition, DeviceKind, HealthState, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.workers.call_journal import (
    FILE_BYTES,
    FIRST_PAUSE_S,
    LIST_AT,
    LONGEST_PAUSE_S,
    MAX_HANGS,
    CallJournal,
    LibraryCall,
    LibraryHangs,
    active_hangs,
    add_hang,
    call_in_progress,
    find_journal,
    prepare_journal,
    read_hangs,
    read_journal,
)

CARD, OTHER = "0000:23:00.0", "0000:24:00.0"
HEAT, POWER = LibraryCall("GetTemperature", CARD), LibraryCall("GetPower", CARD)


def journal(path: str, clock: ManualClock, hung_call: LibraryCall | None = None) -> CallJournal:
    return CallJournal(path, hung_call=hung_call, clock=clock)


def refused(of: CallJournal, symbol: str, device: str) -> bool:
    try:
        of.enter(symbol, device)
    except CallSuspended:
        return True
    of.leave()
    return False


@pytest.fixture
def path(tmp_path: Path) -> str:
    return prepare_journal(str(tmp_path / "run"), "nvidia")


def test_the_call_in_progress_is_read_by_another_process(path: str) -> None:
    own_values = journal(path, ManualClock(wall_s=1.7e9))
    own_values.enter("GetTemperature", CARD)
    assert call_in_progress(read_journal(path)) == LibraryCall("GetTemperature", CARD, 1000.0)
    own_values.leave()
    assert call_in_progress(read_journal(path)) is None


def test_of_several_threads_the_oldest_call_about_a_device_is_blamed(path: str) -> None:
    clock = ManualClock(wall_s=1.7e9)
    own_values = journal(path, clock)
    own_values.enter("Init", "")
    over, begun = threading.Event(), threading.Semaphore(0)

    def hang(symbol: str, device: str) -> None:
        own_values.enter(symbol, device)
        begun.release()
        over.wait()

    threads = []
    for number, name in enumerate(("GetPower", "GetTemperature")):
        clock.mono_s += 1
        threads.append(threading.Thread(target=hang, args=(name, f"card {number}")))
        threads[-1].start()
        begun.acquire()
    result = call_in_progress(read_journal(path))
    over.set()
    for thread in threads:
        thread.join()
    assert (str(result), result and result.began_s) == ("GetPower of card 0", 1001.0)


def test_a_call_about_no_device_is_named_and_not_left_out(path: str) -> None:
    own_values = journal(path, ManualClock(wall_s=1.7e9))
    own_values.enter("Init", "")
    result = call_in_progress(read_journal(path))
    assert str(result) == "Init"
    again = journal(path, ManualClock(wall_s=1.7e9), hung_call=result)
    assert again.hangs == ()
    assert again.events() == ()
    assert not refused(again, "Init", "")


def test_a_call_that_hung_is_left_out_and_then_tried_again(path: str) -> None:
    clock = ManualClock(wall_s=1.7e9)
    own_values = journal(path, clock, hung_call=HEAT)
    assert refused(own_values, "GetTemperature", CARD)
    assert not refused(own_values, "GetTemperature", OTHER)
    assert not refused(own_values, "GetPower", CARD)
    clock.mono_s += FIRST_PAUSE_S
    assert not refused(own_values, "GetTemperature", CARD)


def test_the_next_process_knows_it_too(path: str) -> None:
    clock = ManualClock(wall_s=1.7e9)
    journal(path, clock, hung_call=HEAT)
    after = journal(path, clock)
    assert refused(after, "GetTemperature", CARD)
    assert after.events() == ()  # it was told when it happened


def test_a_second_call_of_the_device_takes_all_its_calls(path: str) -> None:
    clock = ManualClock(wall_s=1.7e9)
    journal(path, clock, hung_call=HEAT)
    own_values = journal(path, clock, hung_call=POWER)
    assert refused(own_values, "GetName", CARD)
    assert not refused(own_values, "GetName", OTHER)
    assert (
        "GetPower of 0000:23:00.0 did not return: no call about it is made"
        in own_values.hangs[0].description
    )


def test_a_call_that_hangs_again_waits_twice_as_long() -> None:
    hangs: LibraryHangs = ()
    now_s, pauses = 0.0, []
    for _ in range(12):
        hangs = add_hang(hangs, HEAT, now_s, 0.0)
        pauses.append(hangs[0].until_s - now_s)
        now_s = hangs[0].until_s
    assert len(hangs) == 1
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_what_was_well_long_enough_is_forgotten() -> None:
    hangs = add_hang((), HEAT, 0.0, 0.0)
    later_s = hangs[0].until_s + FIRST_PAUSE_S
    (again,) = add_hang(hangs, POWER, later_s, 0.0)
    assert (again.symbol, again.every_call, again.count) == ("GetPower", False, 1)


def test_a_device_on_trial_that_hangs_in_any_call_is_out_for_longer() -> None:
    hangs = add_hang(add_hang((), HEAT, 0.0, 0.0), POWER, 1.0, 0.0)
    (again,) = add_hang(hangs, HEAT, hangs[0].until_s, 0.0)
    assert (again.every_call, again.count) == (True, 2)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from("ab"), st.floats(0, 1e6))))
def test_the_list_is_bounded_and_has_each_device_once(steps: list[tuple[int, str, float]]) -> None:
    hangs: LibraryHangs = ()
    now_s = 0.0
    for device, symbol, after_s in steps:
        now_s += after_s
        hangs = add_hang(hangs, LibraryCall(symbol, str(device)), now_s, 0.0)
        assert len(hangs) <= MAX_HANGS
        assert len({hang.device for hang in hangs}) == len(hangs)
        assert hangs[-1].device == str(device)
        assert hangs[-1] in active_hangs(hangs, now_s)


@given(st.binary(max_size=3000), st.integers(0, LIST_AT + 200))
def test_any_file_is_read(data: bytes, at: int) -> None:
    content = bytearray(FILE_BYTES)
    content[at : at + len(data)] = data
    call_in_progress(bytes(content))
    assert len(read_hangs(bytes(content))) <= FILE_BYTES
    read_hangs(data)
    call_in_progress(data)


def test_names_of_any_kind_and_length_fit(path: str) -> None:
    own_values = journal(path, ManualClock(wall_s=1.7e9))
    own_values.enter("a\tb\0c" * 200, "\udc80\n" * 200)
    call_in_progress(read_journal(path))
    own_values.enter("Get\tName", CARD)
    assert call_in_progress(read_journal(path)) == LibraryCall("Get Name", CARD, 1000.0)


def test_without_a_folder_it_lies_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in ("", str(file / "below")):
        path = prepare_journal(folder, "memory")
        own_values = journal(path, ManualClock(wall_s=1.7e9))
        own_values.enter("GetName", CARD)
        assert call_in_progress(read_journal(path)) == LibraryCall("GetName", CARD, 1000.0)
        own_values.leave()
        assert path == prepare_journal("", "memory")


def test_without_any_file_calls_are_made_all_the_same(tmp_path: Path) -> None:
    for path in ("", str(tmp_path / "none")):
        own_values = journal(path, ManualClock(wall_s=1.7e9), hung_call=HEAT)
        assert refused(own_values, "GetTemperature", CARD)
        assert not refused(own_values, "GetPower", CARD)


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "calls-x").symlink_to(victim)
    (folder / "calls-y").symlink_to("/dev/null")
    os.mkfifo(folder / "calls-z")
    for name in "xyz":
        assert prepare_journal(str(folder), name).startswith("/proc/")
    assert victim.read_text() == "precious"


def test_a_command_reads_what_the_agent_left_out_and_writes_nothing(path: str) -> None:
    journal(path, ManualClock(wall_s=1.7e9), hung_call=HEAT)
    before = read_journal(path)
    folder = str(Path(path).parent)
    reader = ManualClock(wall_s=1.7e9)
    own_call_journal = CallJournal(find_journal(folder, "nvidia"), record=False, clock=reader)
    assert refused(own_call_journal, "GetTemperature", CARD)
    assert not refused(own_call_journal, "GetPower", CARD)
    assert read_journal(path) == before
    assert find_journal(folder, "other") == find_journal("", "nvidia") == ""


def card(key: str, *conditions: DeviceCondition) -> VendorDevice:
    return VendorDevice(kind=DeviceKind.GPU, vendor="x", bus_id=key, conditions=conditions)


def test_devices_and_problems_name_what_is_left_out(path: str) -> None:
    clock = ManualClock(wall_s=1.7e9)
    warning = DeviceCondition(type="Degraded", status=True, reason="Rows", message="few left")
    answer = Inventory(vendor="x", devices=(card(CARD, warning), card(OTHER)))
    marked = journal(path, clock, hung_call=HEAT).annotate(answer)
    (condition,) = marked.devices[0].conditions
    assert (condition.type, condition.status, condition.reason) == ("Degraded", True, "CallHung")
    assert "GetTemperature of 0000:23:00.0 did not return" in condition.message
    assert "also Rows: few left" in condition.message
    assert marked.devices[0].health.state is HealthState.HEALTHY
    assert marked.devices[1] == answer.devices[1]
    assert [p.reason for p in marked.problems] == ["CallHung"]
    own_values = journal(path, clock, hung_call=POWER)
    out = own_values.annotate(answer).devices[0].health
    assert (out.state, out.reason) == (HealthState.FAILED, "CallHung")
    clock.mono_s = own_values.hangs[0].until_s
    assert own_values.annotate(answer) is answer
