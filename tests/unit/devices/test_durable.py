"""Killed at any step, failing at any step: the old content or the new, and nothing beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.durable import replace_file, temporary_path

STEPS = ("open", "write", "fsync", "replace")


class Cut(BaseException):
    """The process ends here."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("end", [Cut, OSError])
def test_what_is_cut_off_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, end: type[BaseException]
) -> None:
    path = tmp_path / "state.json"
    replace_file(str(path), b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, step, lambda *_, **__: (_ for _ in ()).throw(end))
        with pytest.raises(end):
            replace_file(str(path), b"newer")
    assert path.read_bytes() == b"old"
    if end is OSError:
        assert names(tmp_path) == ["state.json"]
    replace_file(str(path), b"newer")  # whatever was left in the way
    assert path.read_bytes() == b"newer"
    assert names(tmp_path) == ["state.json"]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("untouched")
    path = tmp_path / "state.json"
    Path(temporary_path(str(path))).symlink_to(other)
    replace_file(str(path), b"mine")
    assert (path.read_bytes(), other.read_text()) == (b"mine", "untouched")


def test_the_mode_is_the_requested_one_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace_file(str(tmp_path / "shown"), b"", 0o644)
        replace_file(str(tmp_path / "kept"), b"")
    finally:
        os.umask(before)
    assert oct((tmp_path / "shown").stat().st_mode & 0o777) == "0o644"
    assert oct((tmp_path / "kept").stat().st_mode & 0o777) == "0o640"
