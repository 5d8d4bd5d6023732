from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.web.admin_socket import (
    AdminSocketError,
    bind_socket,
    connect_socket,
    remove_socket,
    socket_identity,
)


@contextlib.contextmanager
def queue_full(path: Path) -> Iterator[None]:
    """Fill the queue of a listener that accepts nobody."""
    with contextlib.ExitStack() as entries:
        while True:
            peer = entries.enter_context(socket.socket(socket.AF_UNIX))
            peer.settimeout(0)
            try:
                peer.connect(str(path))
            except BlockingIOError:
                break
        yield


def test_the_socket_of_an_agent_that_is_too_busy_to_answer_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with bind_socket(str(path)) as first, queue_full(path):
        with pytest.raises(AdminSocketError, match="another agent listens there"):
            bind_socket(str(path))
        first.accept()[0].close()
        assert path.is_socket()


def test_whoever_finds_the_file_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "admin.sock"
    renames: list[str] = []

    def rename(source: str, target: str, **folders: int) -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(tmp_path / source))
        assert not path.exists()
        renames.append(target)
        original(source, target, **folders)

    original = os.rename
    monkeypatch.setattr(os, "rename", rename)
    with bind_socket(str(path)):
        assert renames == ["admin.sock"]
        connect_socket(str(path)).close()
    assert [file.name for file in tmp_path.iterdir()] == ["admin.sock"]


def test_what_an_agent_killed_while_it_opened_its_socket_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "admin.sock.new"))
    with bind_socket(str(tmp_path / "admin.sock")):
        assert [file.name for file in tmp_path.iterdir()] == ["admin.sock"]


def test_a_socket_of_another_kind_is_not_ours_to_replace(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(AdminSocketError):
            bind_socket(str(path))
        assert path.is_socket()


def test_a_link_to_nothing_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AdminSocketError, match="Address already in use"):
        bind_socket(str(path))
    assert path.is_symlink()
    assert not (tmp_path / "elsewhere").exists()


def test_an_agent_that_ends_removes_its_own_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "admin.sock")
    with bind_socket(path):
        remove_socket(path, socket_identity(path))
    assert socket_identity(path) is None


def test_an_agent_that_ends_leaves_the_socket_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with bind_socket(str(path)):
        own_values = socket_identity(str(path))
        path.rename(tmp_path / "moved")
        with bind_socket(str(path)):
            remove_socket(str(path), own_values)
            assert connect_socket(str(path)).getpeername()
