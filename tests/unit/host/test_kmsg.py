from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import HostFileError, NotSupported
from agent.host.files import LiveHostFiles
from agent.host.kernel_log import PATH, KernelLog, KernelLogRecord, parse_record
from agent.recording.directory import DirectoryFiles

LINES = (
    b"6,1,1500000,-;first\n"
    b" SUBSYSTEM=pci\n"
    b"4,2,2500000,-,caller=T1;a tab\\x09inside\n"
    b"12,3,2600000,-;written by a program\n"
)


def log_of(tmp_path: Path, data: bytes) -> KernelLog:
    file = tmp_path / PATH.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return KernelLog(LiveHostFiles(str(tmp_path)))


def test_records_of_the_kernel_are_read_once_and_those_of_programs_never(tmp_path: Path) -> None:
    log = log_of(tmp_path, LINES)
    assert log.read() == (
        KernelLogRecord(1, 1_500_000, "first"),
        KernelLogRecord(2, 2_500_000, "a tab\tinside"),
    )
    assert log.is_drained
    assert log.read() == ()
    log.close()


def test_a_read_goes_on_where_the_last_one_ended_even_inside_a_line(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"6,1,1,-;one\n6,2,2,-;tw")
    assert [r.text for r in log.read()] == ["one"]
    with (tmp_path / "dev/kmsg").open("ab") as file:
        file.write(b"o\n")
    assert [r.text for r in log.read()] == ["two"]


def test_a_read_is_bounded_and_says_that_there_is_more(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"".join(b"6,%d,1,-;%s\n" % (n, b"x" * 4000) for n in range(40)))
    first = log.read(2)
    assert 0 < len(first) < 40
    assert not log.is_drained
    rest = log.read()
    assert len(first) + len(rest) == 40
    assert log.is_drained


def test_a_log_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(HostFileError, match="ENOENT"):
        KernelLog(LiveHostFiles(str(tmp_path)))


def test_a_recorded_host_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotSupported):
        KernelLog(DirectoryFiles(tmp_path))


@pytest.mark.skipif(not os.access(PATH, os.R_OK), reason="the kernel's log is not ours to read")
def test_the_log_of_this_machine_can_be_read() -> None:
    log = KernelLog(LiveHostFiles())
    records = [record for _ in range(100) for record in log.read()]
    log.close()
    assert log.is_pollable
    sequences = [record.sequence for record in records]
    assert sequences == sorted(set(sequences))


@given(st.binary(max_size=300))
def test_no_line_is_too_odd(line: bytes) -> None:
    record = parse_record(line)
    assert record is None or record.sequence >= 0
