"""The thread of the state files against file systems that hang, are full, or take nothing."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agent.state_writer import MAX_PENDING_CALLS, NO_ANSWER, StateWriter
from plugins.shared.state_file import JsonStateFile
from tests.hanging import HangingFiles, hanging_files, needs_fuse
from tests.patience import PATIENCE_S

LONG_S = PATIENCE_S


@pytest.fixture
def writer() -> Iterator[StateWriter]:
    one = StateWriter(late_s=0.0)
    yield one
    assert one.close(LONG_S)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[HangingFiles]:
    with hanging_files(tmp_path / "state") as one:
        yield one


def test_the_newest_content_is_on_the_disk(writer: StateWriter, tmp_path: Path) -> None:
    file = writer.file(str(tmp_path / "deep" / "state.json"))
    for number in range(100):
        file.write(b"%d" % number)
    assert file.wait(LONG_S)
    assert (tmp_path / "deep" / "state.json").read_bytes() == b"99"
    assert file.error == ""


def test_a_removed_file_is_written_again(writer: StateWriter, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    file = writer.file(str(path))
    file.write(b"1")
    assert file.wait(LONG_S)
    path.unlink()
    file.write(b"1")
    assert file.wait(LONG_S)
    assert path.read_bytes() == b"1"


def test_a_write_that_fails_is_named_and_tried_again(writer: StateWriter, tmp_path: Path) -> None:
    blocked = tmp_path / "folder"
    blocked.write_text("no folder")
    file = writer.file(str(blocked / "state.json"))
    file.write(b"1")
    assert not file.wait(0.2)
    assert os.strerror(errno.EEXIST) in file.error or os.strerror(errno.ENOTDIR) in file.error
    blocked.unlink()
    assert file.wait(LONG_S)
    assert (blocked / "state.json").read_bytes() == b"1"
    assert file.error == ""


def test_a_writer_that_is_closed_tries_a_failing_file_once(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("no folder")
    writer = StateWriter()
    writer.file(str(tmp_path / "folder" / "state.json")).write(b"1")
    assert writer.close(LONG_S)


def test_a_fifo_in_the_place_of_a_file_is_refused(writer: StateWriter, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(OSError, match="not a regular file"):
        writer.read(str(tmp_path / "state.json"), 10, LONG_S)


def test_what_work_raises_reaches_the_caller(writer: StateWriter) -> None:
    def fail() -> None:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        writer.call(fail, "", LONG_S)


def test_a_save_returns_at_once_whether_its_content_is_on_the_disk(
    writer: StateWriter, tmp_path: Path
) -> None:
    blocked = tmp_path / "folder"
    blocked.write_text("no folder")
    file = writer.file(str(blocked / "state.json"))
    assert not file.save(b"1", LONG_S)
    assert file.error
    blocked.unlink()
    assert file.save(b"2", LONG_S)
    assert (blocked / "state.json").read_bytes() == b"2"


@needs_fuse
class TestAFileSystemThatHangs:
    def test_delays_no_caller_and_is_named(self, writer: StateWriter, files: HangingFiles) -> None:
        file = writer.file(str(files.path / "state.json"))
        file.write(b"1")
        assert file.wait(LONG_S)
        files.hang()
        for number in range(1000):
            file.write(b"%d" % number)
        assert not file.wait(0.2)
        assert file.error == f"{file.path}: {NO_ANSWER}"
        files.answer()
        assert file.wait(LONG_S)
        assert writer.read(file.path, 10, LONG_S) == b"999"
        assert file.error == ""

    def test_a_plug_in_waits_for_it_once(self, files: HangingFiles) -> None:
        file = JsonStateFile(str(files.path), "state.json", list[int])
        while not file.save([1]):  # a busy machine may take longer than it waits
            pass
        files.hang()
        assert not file.save([2])
        for number in range(1000):  # had each of them its half a second, the test would time out
            assert not file.save([number])
        assert file.problem is not None
        assert NO_ANSWER in file.problem.message
        files.answer()
        while not file.save([3]):
            assert file.problem is not None
        assert file.problem is None
        assert (files.path / "state.json").read_bytes() == b"[3]"

    def test_a_read_has_a_deadline(self, writer: StateWriter, files: HangingFiles) -> None:
        (files.path / "state.json").write_bytes(b"1")
        files.hang()
        with pytest.raises(TimeoutError) as refusal:
            writer.read(str(files.path / "state.json"), 10, 0.1)
        assert refusal.value.errno == errno.ETIMEDOUT
        files.answer()
        assert writer.read(str(files.path / "state.json"), 10, LONG_S) == b"1"

    def test_work_that_was_given_up_is_not_done_later(
        self, writer: StateWriter, files: HangingFiles
    ) -> None:
        outcome: list[int] = []
        file = writer.file(str(files.path / "state.json"))
        file.write(b"1")
        assert file.wait(LONG_S)
        files.hang()
        file.write(b"2")
        while not file._is_writing:  # it will not end: nothing is answered
            assert not file.wait(0.01)
        for number in range(2 * MAX_PENDING_CALLS):
            with pytest.raises(TimeoutError):
                writer.call(partial(outcome.append, number), "", 0.001)
        files.answer()
        writer.call(lambda: outcome.append(-1), "", LONG_S)
        assert outcome == [-1]

    def test_it_keeps_no_process_from_ending(self, files: HangingFiles) -> None:
        writer = StateWriter()
        files.hang()
        writer.file(str(files.path / "state.json")).write(b"1")
        assert not writer.close(0.1)
        hanging = [one for one in threading.enumerate() if one.name == "state files"]
        assert [one.daemon for one in hanging] == [True] * len(hanging)
        files.answer()
        assert writer.close(LONG_S)
