"""The file of changes: whole lines after a kill at any step, bounded, and never in the way."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from agent.config.containers import EnforceStrategiesSettings
from agent.reconcile.audit_file import (
    MAX_AUDITS,
    MAX_BATCH,
    MAX_PENDING,
    AuditFile,
    AuditTrail,
)
from agent.snapshot.publications import HOOK_REASON, AuditRecord, audit_reason
from agent.state_writer import StateWriter
from tests.hanging import hanging_files, needs_fuse
from tests.kill_steps import killed_at
from tests.patience import PATIENCE_S

LARGE = 1 << 20


def record(number: int) -> AuditRecord:
    return AuditRecord(
        wall_s=1000.0 + number,
        owner="cpu_burst",
        reason="UpdateCgroups",
        message=f"update quota to {number}",
        source="NodeSLO spec.cpuBurstStrategy.policy",
        path=f"/sys/fs/cgroup/cpu/kubepods/pod{number}/cpu.cfs_quota_us",
        key="cpu.cfs_quota_us",
        old="-1",
        new=str(number),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit.jsonl"


@pytest.fixture
def writer() -> Iterator[StateWriter]:
    one = StateWriter("audit", late_s=0.0)
    yield one
    assert one.close(30.0)


def settle(trail: AuditTrail, now_s: float = 0.0) -> None:
    """Let the thread write all that waits."""

    until_s = time.monotonic() + PATIENCE_S
    while trail.is_pending and not trail.problem:
        assert time.monotonic() < until_s
        trail.flush(now_s)
        time.sleep(0.001)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_each_change_is_one_line_with_owner_value_and_source(
    path: Path, writer: StateWriter
) -> None:
    trail = AuditTrail(AuditFile(str(path), LARGE), writer)
    trail.extend(map(record, range(3)))
    settle(trail)
    assert [line["new"] for line in lines(path)] == ["0", "1", "2"]
    assert lines(path)[0] == {
        "wall_s": 1000.0,
        "owner": "cpu_burst",
        "reason": "UpdateCgroups",
        "message": "update quota to 0",
        "source": "NodeSLO spec.cpuBurstStrategy.policy",
        "path": "/sys/fs/cgroup/cpu/kubepods/pod0/cpu.cfs_quota_us",
        "key": "cpu.cfs_quota_us",
        "old": "-1",
        "new": "0",
        "errno": 0,
        "planned": False,
        "restore": "",
    }
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_file_and_the_one_before_it_are_bounded(path: Path) -> None:
    line = b"x" * 99 + b"\n"
    file = AuditFile(str(path), 1000)
    for _ in range(100):
        file.append(line)
    older = path.with_name("audit.jsonl.1")
    assert sorted(one.name for one in path.parent.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]
    assert path.stat().st_size <= 1000
    assert older.stat().st_size == 1000


def test_an_agent_that_is_killed_at_any_step_leaves_whole_lines(path: Path) -> None:
    path.parent.mkdir()

    def work() -> None:
        file = AuditFile(str(path), 2000)
        for number in range(40):
            file.append(b'{"n": %d, "text": "%s"}\n' % (number, b"x" * 60))

    for step in range(100):
        for one in path.parent.iterdir():
            one.unlink()
        is_killed = killed_at(step, work)
        for name in ("audit.jsonl.1", "audit.jsonl"):
            whole = path.with_name(name)
            numbers = [int(str(one["n"])) for one in lines(whole)] if whole.exists() else []
            assert numbers == sorted(numbers)
        if not is_killed:
            return
    pytest.fail("the work has no end")


def test_the_next_agent_ends_the_part_of_a_line_that_a_killed_one_left(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"whole": 1}\n{"part')
    AuditFile(str(path), LARGE).append(b'{"whole": 2}\n')
    assert path.read_bytes().splitlines() == [b'{"whole": 1}', b'{"part', b'{"whole": 2}']


def test_the_next_agent_shows_the_records_of_the_one_before(
    path: Path, writer: StateWriter
) -> None:
    before = AuditTrail(AuditFile(str(path), LARGE), writer)
    before.extend(map(record, range(MAX_AUDITS + 5)))
    settle(before)
    with path.open("ab") as file:
        file.write(b'no record\n{"lost": 3}\n{"part')
    after = AuditTrail(AuditFile(str(path), LARGE), writer)
    after.append(record(5000))
    after.load()
    after.load()
    shown = after.latest()
    assert [one.new for one in shown[-3:]] == [str(MAX_AUDITS + 3), str(MAX_AUDITS + 4), "5000"]
    assert len(shown) <= MAX_AUDITS
    full = AuditTrail(AuditFile(str(path), LARGE), writer)
    full.extend(map(record, range(6000, 6000 + MAX_AUDITS - 2)))
    full.load()
    numbers = [one.new for one in full.latest()]
    assert numbers[:3] == [str(MAX_AUDITS + 3), str(MAX_AUDITS + 4), "6000"]


def test_after_a_file_was_full_the_records_of_both_are_shown(path: Path) -> None:
    file = AuditFile(str(path), 3000)
    for number in range(12):
        file.append(msgspec.json.encode(record(number)) + b"\n")
    assert path.with_name("audit.jsonl.1").exists()
    shown = [int(one.new) for one in file.read_last(8, LARGE)]
    assert shown == list(range(4, 12))


def test_a_file_that_is_refused_is_a_problem_and_nothing_is_lost_once_it_is_not(
    path: Path, writer: StateWriter
) -> None:
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    trail = AuditTrail(AuditFile(str(path), LARGE), writer)
    trail.append(record(1))
    settle(trail)
    assert str(path) in trail.problem
    path.unlink()
    trail.append(record(2))
    trail.flush(5.0)
    assert not path.exists(), "not before the pause is over"
    trail.problem = ""
    settle(trail, 20.0)
    assert [line["new"] for line in lines(path)] == ["1", "2"]
    assert trail.problem == ""


def test_a_short_write_leaves_no_part_of_a_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AuditFile(str(path), LARGE)
    file.append(b'{"n": 1}\n')
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:4]))
    with pytest.raises(OSError, match="No space left"):
        file.append(b'{"n": 2}\n')
    assert path.read_bytes() == b'{"n": 1}\n'


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_regular_file_is_left_alone(path: Path, make: object) -> None:
    path.parent.mkdir()
    assert callable(make)
    make(path)
    with pytest.raises(OSError, match=r"regular|directory"):
        AuditFile(str(path), LARGE).append(b"{}\n")


@needs_fuse
def test_a_disk_that_hangs_delays_nobody_and_lost_records_are_counted(
    tmp_path: Path, writer: StateWriter
) -> None:
    with hanging_files(tmp_path / "state") as files:
        path = files.path / "audit.jsonl"
        trail = AuditTrail(AuditFile(str(path), 1 << 30), writer)
        trail.append(record(0))
        settle(trail)
        files.hang()
        trail.append(record(1))
        trail.flush(0.0)
        trail.extend(map(record, range(MAX_PENDING + 10)))
        trail.flush(0.0)
        assert len(trail.latest()) == MAX_AUDITS
        files.answer()
        settle(trail)
        counts = [line["lost"] for line in lines(path) if "lost" in line]
    assert sum(int(str(count)) for count in counts) == 11


def test_an_agent_that_ends_writes_all_that_waits(path: Path) -> None:
    trail = AuditTrail(AuditFile(str(path), 1 << 30), StateWriter("audit"))
    trail.append(record(0))
    trail.flush(0.0)
    trail.extend(map(record, range(1, 3 * MAX_BATCH)))
    trail.close(0.0)
    assert [line["new"] for line in lines(path)] == [str(n) for n in range(3 * MAX_BATCH)]


@needs_fuse
def test_an_agent_that_ends_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    with hanging_files(tmp_path / "state") as files:
        trail = AuditTrail(AuditFile(str(files.path / "audit.jsonl"), LARGE), StateWriter("audit"))
        files.hang()
        trail.append(record(0))
        begun_s = time.monotonic()
        trail.close(0.0)
        assert time.monotonic() - begun_s < PATIENCE_S / 10
        files.answer()


def test_without_a_file_the_latest_records_are_in_memory(tmp_path: Path) -> None:
    trail = AuditTrail()
    trail.load()
    trail.extend(map(record, range(MAX_AUDITS + 1)))
    trail.flush(0.0)
    trail.close(0.0)
    assert [trail.latest()[0].new, len(list(trail))] == ["1", MAX_AUDITS]
    assert not list(tmp_path.iterdir())


def test_changes_and_refusals_are_counted_by_owner() -> None:
    trail = AuditTrail()
    one = record(1)
    trail.extend((one, one, replace(one, errno=errno.EINVAL), replace(one, planned=True)))
    trail.append(replace(one, restore="restored"))
    assert trail.changes() == (
        ("cpu_burst", "planned", 1),
        ("cpu_burst", "refused", 1),
        ("cpu_burst", "restored", 1),
        ("cpu_burst", "written", 2),
    )
    assert trail.refusals() == (("cpu_burst", "EINVAL", 1),)


@pytest.mark.parametrize("strategy", EnforceStrategiesSettings.__struct_fields__)
def test_every_strategy_has_a_reason_of_koordinator(strategy: str) -> None:
    assert audit_reason(strategy) in ("UpdateCgroups", "UpdateSystemConfig", "UpdateResctrl")
    assert audit_reason("cpuset") == HOOK_REASON
