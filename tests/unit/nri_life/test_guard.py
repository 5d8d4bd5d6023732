"""The lock that keeps a second connection from being opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.nri.guard import Guard, GuardError


def test_one_has_it_and_the_next_gets_it_afterwards(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first, second = Guard(path), Guard(path)
    assert [first.taken(), first.taken(), second.taken()] == [True, True, False]
    first.release()
    first.release()
    assert [second.taken(), first.taken()] == [True, False]


def test_without_a_path_nothing_is_locked() -> None:
    assert Guard("").taken()


def test_a_file_that_cannot_be_made_names_itself(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match="none/lock: No such file or directory"):
        Guard(str(tmp_path / "none" / "lock")).taken()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GuardError):
        Guard(str(tmp_path / "lock")).taken()
    assert not (tmp_path / "elsewhere").exists()
