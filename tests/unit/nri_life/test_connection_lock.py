"""The lock that keeps a second connection from being opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.file_lock import LockError
from agent.nri.plugin import ConnectionLock


def test_one_has_it_and_the_next_gets_it_afterwards(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first, second = ConnectionLock(path), ConnectionLock(path)
    assert [first.acquire(), first.acquire(), second.acquire()] == [True, True, False]
    first.release()
    first.release()
    assert [second.acquire(), first.acquire()] == [True, False]


def test_without_a_path_nothing_is_locked() -> None:
    assert ConnectionLock("").acquire()


def test_a_file_that_cannot_be_made_names_itself(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="none/lock: No such file or directory"):
        ConnectionLock(str(tmp_path / "none" / "lock")).acquire()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LockError):
        ConnectionLock(str(tmp_path / "lock")).acquire()
    assert not (tmp_path / "elsewhere").exists()
