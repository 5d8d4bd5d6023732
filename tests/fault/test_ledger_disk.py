"""The ledger on a disk that hangs, with real control groups below it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cgroup.ledger import MAX_PENDING, ChangeLedger, LedgerEntry, LedgerError
from agent.snapshot.container import Adjustment, LinuxResources
from agent.state_writer import StateWriter
from tests.hanging import HangingFiles, hanging_files, needs_fuse
from tests.patience import PATIENCE_S
from tests.realgroups import RealGroups, needs_v1, real_groups
from tests.unit.reconcile.scene import CannedHook, Scene

BOOT = "b5c3d2e1-0000-4000-8000-000000000001"
LONG_S = PATIENCE_S
ENTRY = LedgerEntry(
    hierarchy="cpu",
    path="/kubepods/podx",
    inode=7,
    key="cpu.shares",
    owner="batch_resources",
    original="1024",
    own_values=("2",),
)
pytestmark = needs_fuse


@pytest.fixture
def files(tmp_path: Path) -> Iterator[HangingFiles]:
    with hanging_files(tmp_path / "state") as one:
        yield one


@pytest.fixture
def writer() -> Iterator[StateWriter]:
    one = StateWriter("ledger")
    yield one
    assert one.close(LONG_S)


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def entries(path: str) -> list[str]:
    ledger = ChangeLedger(path, BOOT)
    ledger.load()
    return [entry.path for entry in ledger.entries.values()]


def flushed(ledger: ChangeLedger, writer: StateWriter) -> None:
    """Flush once everything that was begun has ended."""
    writer.call(lambda: None, "", LONG_S)
    ledger.flush()


def test_what_waits_for_the_disk_is_written_once_and_whole(
    files: HangingFiles, writer: StateWriter
) -> None:
    path = str(files.path / "ledger.log")
    ledger = ChangeLedger(path, BOOT, writer)
    ledger.load()
    ledger.set(ENTRY)
    ledger.flush()
    files.hang()
    for number in range(3):
        ledger.set(replace(ENTRY, path=f"/pod{number}"))
        with pytest.raises(LedgerError, match="does not answer") as refusal:
            ledger.flush()
        assert refusal.value.is_hanging
    files.answer()
    flushed(ledger, writer)
    assert entries(path) == [ENTRY.path, "/pod0", "/pod1", "/pod2"]
    assert Path(path).read_bytes().count(b"\n") == 4


def test_lines_that_were_given_up_while_it_hung_come_with_a_whole_file(
    files: HangingFiles, writer: StateWriter
) -> None:
    path = str(files.path / "ledger.log")
    ledger = ChangeLedger(path, BOOT, writer)
    ledger.load()
    ledger.set(ENTRY)
    files.hang()
    with pytest.raises(LedgerError):
        ledger.flush()
    for number in range(MAX_PENDING + 1):
        ledger.set(replace(ENTRY, path=f"/pod{number}"))
    with pytest.raises(LedgerError):
        ledger.flush()
    files.answer()
    flushed(ledger, writer)
    assert len(entries(path)) == MAX_PENDING + 2


def test_a_ledger_that_could_not_be_read_is_read_when_the_disk_answers(
    files: HangingFiles, writer: StateWriter
) -> None:
    path = str(files.path / "ledger.log")
    before = ChangeLedger(path, BOOT)
    before.load()
    before.set(ENTRY)
    before.flush()
    files.hang()
    ledger = ChangeLedger(path, BOOT, writer)
    with pytest.raises(LedgerError, match="does not answer"):
        ledger.load()
    ledger.set(replace(ENTRY, original="2"))  # as found now: our own value
    ledger.set(replace(ENTRY, path="/other"))
    with pytest.raises(LedgerError) as refusal:
        ledger.flush()
    assert refusal.value.is_hanging
    files.answer()
    writer.call(lambda: None, "", LONG_S)
    ledger.load()
    ledger.flush()
    assert ledger.entries[ENTRY.id] == ENTRY
    assert entries(path) == [ENTRY.path, "/other"]


@needs_v1
def test_no_limit_is_written_while_the_disk_hangs_and_all_are_afterwards(
    files: HangingFiles, writer: StateWriter, groups: RealGroups
) -> None:
    hook = CannedHook("batch_resources")
    ledger = ChangeLedger(str(files.path / "ledger.log"), BOOT, writer)
    ledger.load()
    scene = Scene(groups, hook, ledger=ledger)
    files.hang()
    hook.answers["app"] = Adjustment(resources=LinuxResources(shares=2))
    before = groups.get(scene.container, "cpu.shares")
    for _ in range(2):
        report = scene.cycle()
        assert report.unwritten == 1
        assert [condition.reason for condition in report.conditions] == ["LedgerNotWritable"]
        assert "no file of a pod is written" in report.conditions[0].message
        assert groups.get(scene.container, "cpu.shares") == before
    files.answer()
    writer.call(lambda: None, "", LONG_S)
    report = scene.cycle()
    assert (report.unwritten, report.conditions) == (0, ())
    assert groups.get(scene.container, "cpu.shares") == "2"
    assert os.path.getsize(files.path / "ledger.log") > 0
