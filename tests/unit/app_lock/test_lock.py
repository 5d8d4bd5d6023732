"""The lock file of a node: who gets it, what stands in it, what unfit folders answer."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.app import lock
from agent.app.lock import (
    LockHolder,
    NodeLock,
    describe_process,
    read_holder,
    try_lock,
    wait_for_lock,
)
from agent.file_lock import LockError
from tests.full import fill, needs_mounts, small_files

OWN = describe_process("node-a", 1_767_323_045.0)


def take_lock(folder: Path) -> NodeLock:
    result = try_lock(str(folder), OWN)
    assert result is not None
    return result


def own() -> LockHolder:
    return OWN


def test_the_first_gets_it_and_the_second_does_not(tmp_path: Path) -> None:
    first = take_lock(tmp_path)
    assert try_lock(str(tmp_path), OWN) is None
    first.release()
    take_lock(tmp_path).release()


def test_the_file_names_the_holder_for_people(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    assert read_holder(str(tmp_path)) == OWN
    assert OWN.pid == os.getpid()
    assert (tmp_path / "lock").read_text().startswith(f'{{"pid":{OWN.pid},"version":"')
    assert OWN.since == "2026-01-02T03:04:05Z"
    entries.release()


def test_the_folder_is_readable_for_all_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        entries = take_lock(tmp_path / "deep" / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "deep" / "run").stat().st_mode) == 0o755
    entries.release()


def test_the_file_is_never_removed(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    inode = (tmp_path / "lock").stat().st_ino
    entries.mark_leaving()
    entries.release()
    take_lock(tmp_path).release()
    assert (tmp_path / "lock").stat().st_ino == inode


def test_a_holder_that_left_was_no_crash(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    entries.mark_leaving()
    assert try_lock(str(tmp_path), OWN) is None, "writes may still be on their way"
    entries.release()
    following = take_lock(tmp_path)
    assert following.previous_holder == msgspec.structs.replace(OWN, state="leaving")
    assert following.crash_message() is None
    following.release()


def test_a_holder_that_did_not_leave_is_reported_with_its_process_and_time(tmp_path: Path) -> None:
    take_lock(tmp_path).release()  # as the kernel does for one that was killed
    following = take_lock(tmp_path)
    output = following.crash_message()
    assert output is not None
    assert f"process {OWN.pid}, node node-a, since 2026-01-02T03:04:05Z" in output
    assert "ended without leaving" in output
    following.release()


def test_the_first_start_of_a_boot_follows_nobody(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    assert entries.previous_holder is None
    assert entries.crash_message() is None
    entries.release()


def test_a_removed_file_fails_the_check_of_its_holder(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    assert entries.check().ok
    (tmp_path / "lock").unlink()
    assert not entries.check().ok
    assert "a second agent could write" in entries.check().message
    entries.release()


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 5000, b"{", b"[1]", b'{"pid":-1}', b"\xff\xfe\n", b"9" * 5000, b"[" * 5000,
     b'{"pid":1,"version":"1","since":"2026","node":"a b"}'],
)  # fmt: skip
def test_hostile_content_is_nobody_and_is_written_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    assert read_holder(str(tmp_path)) is None
    entries = take_lock(tmp_path)
    assert entries.previous_holder is None
    assert read_holder(str(tmp_path)) == OWN
    assert (tmp_path / "lock").stat().st_size == lock.HOLDER_BYTES
    entries.release()


@given(content=st.binary(max_size=300))
def test_no_content_breaks_a_reader(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("lock")
    (folder / "lock").write_bytes(content)
    read_holder(str(folder))


@given(node=st.text(max_size=400))
def test_any_name_of_a_node_fits_the_record(
    tmp_path_factory: pytest.TempPathFactory, node: str
) -> None:
    folder = tmp_path_factory.mktemp("lock")
    mine = describe_process(node, 0.0)
    entries = try_lock(str(folder), mine)
    assert entries is not None
    assert read_holder(str(folder)) == mine
    entries.release()


def _fifo(path: Path) -> None:
    os.mkfifo(path / "lock")


def _link(path: Path) -> None:
    (path / "lock").symlink_to(path / "elsewhere")


def _folder(path: Path) -> None:
    (path / "lock").mkdir()


@pytest.mark.parametrize("make", [_fifo, _link, _folder])
def test_what_is_no_plain_file_is_refused_and_left_alone(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path)
    with pytest.raises(LockError, match=str(tmp_path)):
        try_lock(str(tmp_path), OWN)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_in_place_of_the_folder_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(LockError, match=r"Not a directory; set node\.run_dir"):
        try_lock(str(tmp_path / "run"), OWN)


def test_a_read_only_file_system_says_what_to_do() -> None:
    with pytest.raises(LockError, match=r"set node\.run_dir"):
        try_lock("/proc/xpu-agent-run", OWN)


@needs_mounts
@pytest.mark.parametrize("names", [100, 1], ids=["no room", "no name left"])
def test_on_a_full_file_system_the_lock_is_taken_and_the_problem_reported(
    tmp_path: Path, names: int
) -> None:
    with small_files(tmp_path / "run", names=names) as folder:
        filler = fill(folder)
        entries = take_lock(folder)
        assert "cannot name its holder: No space left" in entries.check().message
        assert try_lock(str(folder), OWN) is None
        with pytest.raises(LockError, match="No space left"):
            entries.mark_leaving()
        filler.unlink()
        assert try_lock(str(folder), OWN) is None  # also where the file can be made by now
        entries.release()
        after = take_lock(folder)
        assert after.check().ok
        after.release()


def test_a_standby_says_once_whom_it_waits_for_and_then_gets_the_lock(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    output: list[str] = []
    waits: list[float] = []

    def pause(wait_s: float) -> bool:
        waits.append(wait_s)
        if len(waits) == 20:
            entries.release()
        return False

    got = wait_for_lock(str(tmp_path), own, output.append, pause)
    assert got is not None
    assert len(output) == 1
    assert output[0].startswith(f"xpu-agent {OWN.version} (process {OWN.pid}, node node-a, since")
    assert sum(waits[-1:]) < 2, "the bound of a take-over"
    got.release()


def test_a_standby_that_is_stopped_holds_nothing(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    assert wait_for_lock(str(tmp_path), own, lambda _: None, lambda _: True) is None
    entries.release()
    take_lock(tmp_path).release()


def test_a_signal_of_before_the_wait_is_not_missed(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)

    def say(_: str) -> None:
        # blocked, so it waits for the next look; another thread of the tests would take it
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    assert wait_for_lock(str(tmp_path), own, say) is None
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    entries.release()


def test_a_lock_without_a_name_is_waited_for_as_well(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    (tmp_path / "lock").write_text("")
    output: list[str] = []
    wait_for_lock(str(tmp_path), own, output.append, lambda _: True)
    assert output[0].startswith("another process, which left no name, holds ")
    entries.release()


def test_a_copy_of_the_process_that_runs_another_program_does_not_hold_it(tmp_path: Path) -> None:
    entries = take_lock(tmp_path)
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        assert child.stdout.read(1) == b"x", "the kernel closes ours only while it starts the other"
        entries.release()
        take_lock(tmp_path).release()
        assert child.poll() is None
        child.stdin.close()
