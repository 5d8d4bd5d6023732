from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from agent.errors import PublishError
from agent.objects import event_log
from agent.objects.event_log import BURST, MAX_SERIES, EventLineLimiter, EventLog
from agent.wire_formats.event import Event
from tests.factory import BOOT_S, snapshot

SNAP = snapshot()


def event(message: str = "m", at_s: float = BOOT_S) -> Event:
    return Event(
        type="Warning", reason="DeviceGone", message=message, object_kind="Device", at_s=at_s
    )


def lines(folder: Path, name: str = "events.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_events_are_appended_one_a_line(tmp_path: Path) -> None:
    assert EventLog(str(tmp_path / "out")).record([event("a"), event("b")], SNAP) == 2
    assert EventLog(str(tmp_path / "out")).record([event("c")], SNAP) == 1
    assert [line["message"] for line in lines(tmp_path / "out")] == ["a", "b", "c"]


def test_nothing_is_created_while_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert EventLog(str(tmp_path / "out")).record([], SNAP) == 0
    assert not (tmp_path / "out").exists()


def test_repeats_are_counted_and_written_at_most_once_a_minute(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    for second in range(0, 125, 5):
        log.record([event(at_s=BOOT_S + second)], SNAP)
    assert [line["count"] for line in lines(tmp_path)] == [1, 13, 25]
    assert {line["firstTimestamp"] for line in lines(tmp_path)} == {"2026-01-02T03:04:05Z"}
    assert lines(tmp_path)[-1]["lastTimestamp"] == "2026-01-02T03:06:05Z"
    assert len({line["metadata"]["name"] for line in lines(tmp_path)}) == 1


@pytest.mark.parametrize("later_s", [3600.0, -5.0])
def test_a_series_that_was_silent_or_whose_clock_went_back_starts_again(later_s: float) -> None:
    series = EventLineLimiter()
    assert series.take(event()) == (1, BOOT_S)
    assert series.take(event(at_s=BOOT_S + later_s)) == (1, BOOT_S + later_s)


def test_a_storm_of_different_events_is_cut_off_and_recovers() -> None:
    series = EventLineLimiter()
    lines = [series.take(event(str(i))) for i in range(BURST + 20)]
    assert lines.count(None) == 20
    assert series.dropped == 20
    assert series.take(event("x", BOOT_S + event_log.REFILL_S)) is not None
    assert series.take(event("y", BOOT_S + event_log.REFILL_S)) is None


def test_what_was_held_back_is_in_the_count_of_the_next_line() -> None:
    series = EventLineLimiter()
    for i in range(BURST):
        series.take(event(str(i)))
    assert series.take(event("late")) is None
    assert series.take(event("late", BOOT_S + 30)) == (2, BOOT_S)


def test_only_so_many_series_are_remembered() -> None:
    series = EventLineLimiter()
    for i in range(MAX_SERIES * 3):
        series.take(event(str(i), BOOT_S + i))
    assert len(series._series) == MAX_SERIES


def test_a_full_file_becomes_the_first_generation_and_the_older_one_goes(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    for generation in range(3):
        (tmp_path / "events.jsonl").write_text(" " * (event_log.MAX_BYTES - 1) + "\n")
        log.record([event(str(generation), BOOT_S + generation)], SNAP)
        assert [line["message"] for line in lines(tmp_path)] == [str(generation)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1"]
    assert (tmp_path / "events.jsonl.1").stat().st_size <= event_log.MAX_BYTES


def test_a_torn_line_of_a_crash_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"kind":"Ev')
    EventLog(str(tmp_path)).record([event("a")], SNAP)
    torn, whole = (tmp_path / "events.jsonl").read_text().splitlines()
    assert torn == '{"kind":"Ev'
    assert json.loads(whole)["message"] == "a"


def test_a_failure_is_reported_kept_and_cleared_by_a_success(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    log.record([event("a")], SNAP)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))  # as a full disk
    try:
        with pytest.raises(PublishError, match=r"events\.jsonl: EFBIG"):
            log.record([event("b")], SNAP)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "EFBIG" in log.error
    log.record([event("c")], SNAP)
    assert log.error == ""
    assert [line["message"] for line in lines(tmp_path)] == ["a", "b", "c"]


def test_what_could_not_be_written_is_written_once_the_folder_is_there(tmp_path: Path) -> None:
    blocked = tmp_path / "out"
    blocked.write_text("a file where the folder should be")
    log = EventLog(str(blocked))
    for number in range(event_log.MAX_WAITING + 10):
        with pytest.raises(PublishError):
            log.record([event(str(number), BOOT_S + number * event_log.REFILL_S)], SNAP)
    blocked.unlink()
    assert log.record((), SNAP) == event_log.MAX_WAITING
    assert log.error == ""
    assert [line["message"] for line in lines(blocked)][:2] == ["10", "11"]
    assert log.record((), SNAP) == 0


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("untouched\n")
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "other")
    log = EventLog(str(tmp_path))
    with pytest.raises(PublishError, match=r"events\.jsonl"):
        log.record([event("a")], SNAP)
    assert (tmp_path / "other").read_text() == "untouched\n"
    (tmp_path / "events.jsonl").unlink()
    log.record((), SNAP)
    assert [line["message"] for line in lines(tmp_path)] == ["a"]


def test_a_fifo_in_the_place_of_the_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(PublishError, match="not a plain file"):
        EventLog(str(tmp_path)).record([event("a")], SNAP)
