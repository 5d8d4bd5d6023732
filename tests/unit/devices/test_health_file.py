"""What of health outlives the agent, and what is done with a file that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.app.composition import build_health_file, build_minor_store, create_inputs
from agent.clock import ManualClock
from agent.config.settings import NodeSettings, Settings
from agent.devices import health_file as devices_health_file
from agent.devices.health import HealthCause, HealthTrack, TimePoint
from agent.devices.health_file import (
    MAX_FILE,
    MAX_STORED_TRACKS,
    MAX_TURNS,
    HealthFile,
    decode_health,
    encode_health,
    select_records,
)
from agent.errors import ParseError
from agent.recording.host_source import open_host
from agent.snapshot.device import HealthState
from agent.state_writer import StateFile, StateWriter
from tests.patience import PATIENCE_S
from tests.process.agent import EIGHT_CARDS
from tests.unit.devices.looks import BAD, WALL_S, Device, at

DEADLINE_S = PATIENCE_S
KEY = "0000:3b:00.0"
VALID = b'{"version":1,"boot_id":"b","mono_s":1,"wall_s":1,"vendors":{}}'


def failed(looks: str = "gb") -> HealthTrack:
    device = Device()
    device.looks(looks)
    assert device.track is not None
    return device.track


def again(track: HealthTrack, *, boot: str = "b007", now: TimePoint) -> HealthTrack:
    data = encode_health(select_records({"nvidia": {KEY: track}}), "b007", at(10))
    return decode_health(data, boot, now)["nvidia"][KEY]


@pytest.mark.parametrize("looks", ["gb", "gbg"])
def test_what_had_failed_begins_as_probing_with_its_reason_and_its_date(looks: str) -> None:
    track = failed(looks)
    result = again(track, now=at(20))
    assert (result.state, result.since_s) == (HealthState.PROBING, track.since_s)
    assert (result.cause.reason, result.cause.message) == (BAD.reason, BAD.message)
    assert (result.good_checks, result.last_bad_s, result.changes) == (0, at(20).mono_s, 0)


def test_what_still_fails_has_not_failed_again() -> None:
    device = Device()
    device.track = again(failed(), now=at(20))
    device.second = 20
    health = device.look(BAD)
    assert (health.state, health.since_s, health.changes) == (HealthState.FAILED, WALL_S + 2, 0)
    assert device.looks("ggg") == "PPH"
    assert device.health.changes == 2


def test_a_device_that_became_healthy_is_watched_again() -> None:
    device = Device()
    device.track = again(failed("gbgg"), now=at(20))
    device.second = 20
    assert device.looks("ggg") == "PPH"


@pytest.mark.parametrize(
    ("boot", "now", "ages"),
    [
        pytest.param("b007", at(100), [98, 95, 94], id="same boot: the monotonic clock goes on"),
        pytest.param("b008", TimePoint(7.0, WALL_S + 100), [98, 95, 94], id="reboot: by the wall"),
        pytest.param("b008", TimePoint(7.0, WALL_S - 900), [8, 5, 4], id="the wall was set back"),
        pytest.param(
            "b007", TimePoint(7.0, WALL_S + 100), [98, 95, 94], id="same id, another clock"
        ),
    ],
)
def test_turns_keep_their_age(boot: str, now: TimePoint, ages: list[float]) -> None:
    result = again(failed("gbgggbg"), boot=boot, now=now)
    assert [now.mono_s - at_s for at_s in result.turn_times_s] == ages
    assert result.is_flapping


def test_a_healthy_device_with_a_recent_change_is_stored() -> None:
    assert select_records({"v": {KEY: failed("ggg")}}) == {}
    assert KEY in select_records({"v": {KEY: failed("gbggg")}})["v"]


def test_equal_checks_change_nothing_in_the_file() -> None:
    device = Device()
    device.looks("gb")
    first = select_records({"v": {KEY: device.track or failed()}})
    device.looks("bbb")
    assert select_records({"v": {KEY: device.track or failed()}}) == first


def test_of_too_many_devices_those_out_of_service_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices_health_file, "MAX_STORED_TRACKS", 2)
    tracks = {"a": failed("go"), "b": failed(), "c": failed("gbggg"), "d": failed()}
    assert sorted(select_records({"v": tracks})["v"]) == ["b", "d"]


def test_no_file_is_written_that_the_next_agent_would_not_read() -> None:
    wordy = replace(
        failed("b"), cause=HealthCause("Xid79", "\u4e2d" * 2000), turn_times_s=(1.5,) * MAX_TURNS
    )
    records = select_records(
        {"nvidia": {f"card-{number}": wordy for number in range(MAX_STORED_TRACKS)}}
    )
    data = encode_health(records, "b007", at(0))
    assert MAX_FILE // 2 < len(data) <= MAX_FILE
    assert decode_health(data, "b007", at(1))


def document(**changes: Any) -> bytes:
    return json.dumps({**json.loads(VALID), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(VALID[:-5], id="cut"),
        pytest.param(b"\xff" * 40, id="no text"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(document(version=2), id="of another version"),
        pytest.param(document(mono_s="x"), id="wrong type"),
        pytest.param(
            document(vendors={"v": {"k": {"state": "gone", "reason": "", "message": ""}}})
        ),
        pytest.param(document(vendors={"v": {"k": {"state": "failed"}}}), id="no reason"),
    ],
)
def test_an_invalid_file_is_renamed_and_reported(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "health.json"
    path.write_bytes(data)
    file = HealthFile(str(tmp_path), "b007")
    assert file.load(at(0)) == {}
    assert (tmp_path / "health.json.bad").read_bytes() == data
    assert not path.exists()
    check = file.check()
    assert (check.ok, check.gates_ready) == (False, False)
    assert "put aside as .bad" in check.message


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_no_bytes_raise_anything_but_a_parse_error(data: bytes) -> None:
    try:
        assert decode_health(data, "b007", at(0)) is not None
    except ParseError:
        return


def test_a_file_that_is_too_large_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "health.json").write_bytes(VALID + b" " * devices_health_file.MAX_FILE)
    file = HealthFile(str(tmp_path), "b007")
    assert file.load(at(0)) == {}
    assert "larger" in file.check().message


def health_file(folder: Path) -> tuple[HealthFile, StateFile]:
    """Return the file of a life of the agent, and its part that is written."""
    writer = StateWriter()
    file = HealthFile(str(folder), "b007", writer)
    return file, writer.file(str(folder / "health.json"), devices_health_file.MODE)


def test_the_records_are_written_once_and_read_by_the_next_agent(tmp_path: Path) -> None:
    file, state = health_file(tmp_path / "state")
    assert file.load(at(0)) == {}
    file.save({"nvidia": {}}, at(1))
    assert state.wait(DEADLINE_S)
    assert not (tmp_path / "state").exists()
    entries = {"nvidia": {KEY: failed()}}
    file.save(entries, at(2))
    assert state.wait(DEADLINE_S)
    path = tmp_path / "state" / "health.json"
    written = path.read_bytes()
    path.unlink()
    file.save(entries, at(3))
    assert state.wait(DEADLINE_S)
    assert not path.exists()
    path.write_bytes(written)
    result = HealthFile(str(tmp_path / "state"), "b007").load(at(4))
    assert result["nvidia"][KEY].state is HealthState.PROBING
    assert file.check().ok


def test_when_all_is_well_again_that_is_written_too(tmp_path: Path) -> None:
    file, state = health_file(tmp_path)
    file.save({"nvidia": {KEY: failed()}}, at(2))
    assert state.wait(DEADLINE_S)
    after, state = health_file(tmp_path)
    after.load(at(3))
    after.save({"nvidia": {}}, at(3))
    assert state.wait(DEADLINE_S)
    assert HealthFile(str(tmp_path), "b007").load(at(4)) == {}


def test_a_folder_that_cannot_be_written_is_reported_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("a file where the folder should be")
    file, state = health_file(blocked)
    file.save({"nvidia": {KEY: failed()}}, at(2))
    while not state.error:
        assert not state.wait(0.01)
    assert "a restart would forget" in file.check().message
    assert [r.getMessage() for r in caplog.records] == ["state_file_not_written"]
    blocked.unlink()
    assert state.wait(DEADLINE_S)
    assert file.check().ok
    assert (blocked / "health.json").exists()


def test_without_a_folder_nothing_is_stored() -> None:
    file = HealthFile("", "")
    assert file.load(at(0)) == {}
    file.save({"nvidia": {KEY: failed()}}, at(1))
    assert (file.check().ok, "nothing is kept" in file.check().message) == (True, True)


def test_a_recorded_host_is_the_reason_for_keeping_nothing_whatever_the_settings_say() -> None:
    opened = open_host(str(EIGHT_CARDS))
    settings = Settings(node=NodeSettings(state_dir="/var/lib/xpu-agent"))
    inputs = create_inputs(settings, opened, ManualClock())
    assert build_health_file(inputs).check().message == "nothing is kept: the host is a recording"
    assert build_minor_store(inputs).check().message == "not stored: the host is a recording"


def test_a_suspect_device_stays_suspect_until_checks_are_good() -> None:
    device = Device()
    device.track = again(failed("go"), now=at(20))
    device.second = 20
    assert device.looks("gg") == "SH"
    other = Device()
    other.track = replace(again(failed("go"), now=at(20)))
    other.second = 20
    assert other.looks("b") == "F"
    assert other.health.changes == 1
