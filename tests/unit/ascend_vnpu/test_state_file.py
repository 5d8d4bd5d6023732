from __future__ import annotations

from pathlib import Path

import pytest

from plugins.shared.state_file import MAX_FILE, JsonStateFile

Value = dict[str, int]


def file(folder: str) -> JsonStateFile[Value]:
    return JsonStateFile(folder, "state.json", Value)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert file(str(tmp_path / "new")).load() is None
    assert file(str(tmp_path / "new")).save({"a": 1})
    assert file(str(tmp_path / "new")).load() == {"a": 1}


def test_without_a_folder_nothing_lasts_and_nothing_fails() -> None:
    state_file = file("")
    assert not state_file.save({"a": 1})
    assert state_file.load() is None
    assert state_file.problem is None


def test_a_write_that_was_cut_off_leaves_the_old_content(tmp_path: Path) -> None:
    file(str(tmp_path)).save({"a": 1})
    (tmp_path / ".state.json.tmp").write_text('{"a": 2')
    assert file(str(tmp_path)).load() == {"a": 1}
    assert file(str(tmp_path)).save({"a": 3})
    assert file(str(tmp_path)).load() == {"a": 3}


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": "x"}', b"\xff", b" " * (MAX_FILE + 1)])
def test_a_damaged_file_is_put_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    state_file = file(str(tmp_path))
    assert state_file.load() is None
    assert state_file.problem is not None
    assert state_file.problem.reason == "StateFileDamaged"
    assert (tmp_path / "state.json.bad").exists()
    assert state_file.save({"a": 1})
    assert state_file.problem is None


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    state_file = file(str(tmp_path))
    assert state_file.save({"a": 1})
    assert not state_file.save({"a" * MAX_FILE: 1})
    assert state_file.problem is not None
    assert state_file.problem.reason == "StateNotWritten"
    assert file(str(tmp_path)).load() == {"a": 1}


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state_file = file(str(tmp_path / "file"))
    assert not state_file.save({"a": 1})
    assert state_file.problem is not None
    assert state_file.problem.reason == "StateNotWritten"


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    state_file = file(str(tmp_path))
    assert state_file.load() is None
    assert state_file.problem is not None
    assert state_file.problem.reason == "StateFileUnreadable"


def test_equal_content_is_written_once_unless_it_is_gone(tmp_path: Path) -> None:
    state_file = file(str(tmp_path))
    state_file.save({"a": 1})
    first = (tmp_path / "state.json").stat().st_ino
    assert state_file.save({"a": 1})
    assert (tmp_path / "state.json").stat().st_ino == first
    (tmp_path / "state.json").unlink()
    assert state_file.save({"a": 1})
    assert state_file.load() == {"a": 1}
