from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from agent.cgroup import cpu
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, BVT, CPUS, MEMORY, QUOTA, SHARES, CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.values import CgroupValues, ExpectedBytes, KernelFiles
from agent.cgroup.write_plan import DesiredValue, WriteResult
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from agent.errors import HostFileError
from agent.host.files import LiveHostFiles

POD, ONE = "/kubepods/pod1", "/kubepods/pod1/c1"
LAYOUT = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified="", root="/kubepods")


class TableFiles:
    """Version 2's files as a table; `refuses` has what writes answer, by the end of the path."""

    def __init__(self, **files: str) -> None:
        self.files = files
        self.refuses: dict[str, list[int]] = {}
        self.writes: list[tuple[str, str]] = []
        self.becomes: dict[str, str] = {}  # what a text reads back as

    def read(self, path: str, size: int) -> bytes:
        if path not in self.files:
            raise HostFileError(path, errno.ENOENT)
        return self.files[path].encode()[:size]

    def write(self, path: str, text: str) -> None:
        for end, numbers in self.refuses.items():
            if path.endswith(end) and numbers:
                raise HostFileError(path, numbers.pop())
        self.writes.append((path, text))
        self.files[path] = self.becomes.get(text, text)

    def inode(self, path: str) -> int:
        return hash(path)

    def holds(self, expected: Iterable[ExpectedBytes]) -> bool:
        """Return whether each file starts with these bytes."""
        return all(self.read(path, size) == data for path, size, data in expected)

    def generation(self, path: str) -> None:
        """Return `None`: no descriptor stays open."""

    def close(self, path: str) -> None:
        """Keep nothing open."""


def writer_of(files: TableFiles) -> CgroupWriter:
    return CgroupWriter(CgroupValues(files, LAYOUT), ChangeLedger(None, ""), ManualClock())


def wish(cgroup: str, key: CgroupKey, value: CgroupValue, owner: str = "test") -> DesiredValue:
    return DesiredValue(cgroup=cgroup, key=key, value=value, owner=owner)


def run(writer: CgroupWriter, *wishes: DesiredValue, now_s: float = 0.0) -> WriteResult:
    prepared = writer.prepare(wishes, now_s)
    writer.record_in_ledger(prepared)
    return writer.apply(prepared, now_s)


@pytest.mark.parametrize(
    ("key", "found", "wanted", "text"),
    [
        (QUOTA, "100000 50000\n", Bandwidth(150000), "150000 100000"),  # V18
        (QUOTA, "100000 100000\n", Bandwidth(-1), "max 100000"),
        (MEMORY, "1048576\n", -1, "max"),  # V20
        (MEMORY, "max\n", 1048576, "1048576"),
        (CPUS, "0-1\n", frozenset({2, 3}), "2-3"),
        (BURST, "0\n", 5, "5"),
    ],
)
def test_what_is_written_on_version_2(
    key: CgroupKey, found: str, wanted: CgroupValue, text: str
) -> None:
    path = f"{POD}/{key.v2}"
    files = TableFiles(**{path: found})
    assert run(writer_of(files), wish(POD, key, wanted)).written == 1
    assert [written for _, written in files.writes] == [text]


@pytest.mark.parametrize(
    ("key", "found", "wanted"),
    [
        (QUOTA, "max 50000\n", Bandwidth(-1)),
        (QUOTA, "100000 100000\n", Bandwidth(100000)),
        (MEMORY, "999424\n", 1_000_000),  # V24
        (MEMORY, "max\n", -1),
        (CPUS, "8,0-3\n", frozenset({0, 1, 2, 3, 8})),
    ],
)
def test_a_desired_value_on_version_2_is_not_written_again(
    key: CgroupKey, found: str, wanted: CgroupValue
) -> None:
    files = TableFiles(**{f"{POD}/{key.v2}": found})
    assert run(writer_of(files), wish(POD, key, wanted)).written == 0
    assert files.writes == []


@pytest.mark.parametrize(("found", "writes"), [("100", 0), ("39", 0), ("50", 1)])
def test_a_weight_of_either_formula_is_left_alone(found: str, writes: int) -> None:  # V21
    files = TableFiles(**{f"{ONE}/cpu.weight": f"{found}\n"})
    both = cpu.linear_weight(1024), cpu.quadratic_weight(1024)
    desired_value = DesiredValue(
        cgroup=ONE, key=SHARES, value=both[0], equivalents=both, owner="test"
    )
    run(writer_of(files), desired_value)
    assert len(files.writes) == writes


def test_cpus_that_are_accepted_without_effect_are_reported() -> None:
    files = TableFiles(**{f"{ONE}/cpuset.cpus": "\n", f"{ONE}/cpuset.cpus.effective": "0-1\n"})
    outcome = run(writer_of(files), wish(ONE, CPUS, frozenset({2})))
    assert (outcome.written, [t.reason for t in outcome.problems]) == (1, ["CPUsNotInForce"])


def test_a_refused_value_is_retried_ever_more_rarely_and_reported_once() -> None:
    files = TableFiles(**{f"{POD}/cpu.bvt_warp_ns": "0\n"})
    files.refuses = {"bvt_warp_ns": [errno.EINVAL] * 99}
    writer, desired = writer_of(files), wish(POD, BVT, 2)
    tried, reports = [], 0
    for second in range(1000):
        outcome = run(writer, desired, now_s=float(second))
        reports += len(outcome.problems)
        if outcome.audits:
            tried.append(second)
    assert tried == [0, 60, 180, 420, 900]
    assert reports == 1


def test_a_kind_that_three_groups_in_a_row_refuse_is_left_for_an_hour() -> None:
    pods = [f"/kubepods/pod{number}" for number in range(6)]
    files = TableFiles(**{f"{pod}/cpu.bvt_warp_ns": "0\n" for pod in pods})
    files.refuses = {"bvt_warp_ns": [errno.EOPNOTSUPP] * 99}
    writer = writer_of(files)
    tried = [bool(run(writer, wish(pod, BVT, 2)).audits) for pod in pods]
    assert tried == [True, True, True, False, False, False]
    assert writer.refusals.suspended_writes(1.0) == (
        ("cpu.bvt_warp_ns", "3 groups in a row refused it"),
    )
    assert run(writer, wish(pods[5], BVT, 2), now_s=3601.0).audits


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM, errno.EACCES])
def test_an_owner_without_permission_stops_and_reports_it_once(number: int) -> None:
    files = TableFiles(**{f"{c}/cpu.bvt_warp_ns": "0\n" for c in (POD, ONE)})
    files.refuses = {"bvt_warp_ns": [number] * 99}
    writer = writer_of(files)
    first = run(writer, wish(POD, BVT, 2), wish(ONE, BVT, 2))
    assert [trouble.reason for trouble in first.problems] == ["WriteNotPermitted"]
    assert run(writer, wish(ONE, BVT, 2), now_s=1.0).audits == ()
    assert [owner for owner, _ in writer.refusals.suspended_writes(1.0)] == ["test"]
    files.refuses = {}
    assert run(writer, wish(ONE, BVT, 2, owner="other"), now_s=1.0).written == 1


@pytest.mark.parametrize(
    ("number", "attempts"), [(errno.EROFS, 1), (errno.EPERM, 1), (errno.EOPNOTSUPP, 3)]
)
def test_what_every_group_refuses_is_not_tried_in_every_group_of_one_cycle(
    number: int, attempts: int
) -> None:
    pods = [f"/kubepods/pod{place}" for place in range(250)]
    files = TableFiles(**{f"{pod}/cpu.bvt_warp_ns": "0\n" for pod in pods})
    files.refuses = {"bvt_warp_ns": [number] * 999}
    writer, desired = writer_of(files), [wish(pod, BVT, 2) for pod in pods]
    of_a_strategy, of_a_hook = (writer.prepare(one, 0.0) for one in (desired[1:], desired[:1]))
    outcome = writer.apply(of_a_strategy, 0.0)
    assert len(outcome.audits) == attempts
    assert outcome.unwritten == len(pods) - 1
    assert writer.apply(of_a_hook, 0.0).audits == ()
    files.refuses = {}
    assert run(writer, *desired, now_s=3601.0).written == len(pods)


def test_a_write_is_repeated_at_once_after_eagain() -> None:
    files = TableFiles(**{f"{POD}/memory.max": "max\n"})
    files.refuses = {"memory.max": [errno.EAGAIN, errno.EAGAIN]}
    assert run(writer_of(files), wish(POD, MEMORY, 1048576)).written == 1


def test_a_value_that_reads_back_otherwise_is_a_refusal() -> None:
    files = TableFiles(**{f"{POD}/memory.max": "max\n"})
    files.becomes = {"1048576": "4096"}
    outcome = run(writer_of(files), wish(POD, MEMORY, 1048576))
    assert (outcome.written, outcome.unwritten) == (0, 1)
    assert [trouble.reason for trouble in outcome.problems] == ["ValueRefused"]


def test_a_file_with_nonsense_is_left_alone() -> None:
    files = TableFiles(**{f"{POD}/cpu.max": "nonsense\n"})
    assert run(writer_of(files), wish(POD, QUOTA, Bandwidth(100000))).written == 0
    assert files.writes == []


def test_after_a_restart_a_value_of_the_agent_is_not_taken_for_another_programs() -> None:
    files = TableFiles(**{f"{POD}/cpu.max": "max 100000\n"})
    first = writer_of(files)
    run(first, wish(POD, QUOTA, Bandwidth(100000)))
    second = CgroupWriter(first.values, first.ledger, ManualClock())
    for value in (200000, 300000, 400000, 500000):
        assert run(second, wish(POD, QUOTA, Bandwidth(value))).written == 1
    assert second.overwrites.reverts == 0
    (entry,) = second.ledger.entries.values()
    assert entry.original == "-1 100000"


def test_below_a_group_that_could_not_be_widened_nothing_is_tried_on_version_1() -> None:
    layout = CgroupLayout(
        version=1, driver="cgroupfs", mounts=(("cpu", "/cpu"),), unified=None, root="/kubepods"
    )
    files = TableFiles()
    for group in (POD, ONE):
        files.files[f"/cpu{group}/cpu.cfs_quota_us"] = "100000\n"
        files.files[f"/cpu{group}/cpu.cfs_period_us"] = "100000\n"
    files.refuses = {f"{POD}/cpu.cfs_quota_us": [errno.EINVAL] * 9}
    wider = Bandwidth(200000)
    writer = CgroupWriter(CgroupValues(files, layout), ChangeLedger(None, ""), ManualClock())
    outcome = run(writer, wish(POD, QUOTA, wider), wish(ONE, QUOTA, wider))
    assert (outcome.written, outcome.unwritten, files.writes) == (0, 2, [])


def test_on_version_2_a_group_is_written_below_one_that_could_not_be() -> None:
    files = TableFiles(**{f"{c}/cpu.max": "100000 100000\n" for c in (POD, ONE)})
    files.refuses = {f"{POD}/cpu.max": [errno.EINVAL] * 9}
    wider = Bandwidth(200000)
    outcome = run(writer_of(files), wish(POD, QUOTA, wider), wish(ONE, QUOTA, wider))
    assert (outcome.written, outcome.unwritten) == (1, 1)
    assert files.writes == [(f"{ONE}/cpu.max", "200000 100000")]


def test_what_is_known_of_groups_that_are_gone_is_forgotten() -> None:
    files = TableFiles(**{f"{ONE}/cpu.max": "100000 100000\n"})
    writer, wishes = writer_of(files), (wish(ONE, QUOTA, Bandwidth(100000)),)
    for _ in range(2):
        assert writer.prepare(wishes, 0.0).compared == 1
    writer.retain(frozenset())
    assert (writer.file_states, writer._matched_files) == ({}, {})
    assert writer.prepare(wishes, 0.0).compared == 1


def test_an_unchanged_pod_is_read_and_a_changed_one_is_noticed() -> None:
    files = TableFiles(**{f"{c}/cpu.max": "100000 100000\n" for c in (POD, ONE)})
    wishes = (wish(POD, QUOTA, Bandwidth(100000)), wish(ONE, QUOTA, Bandwidth(100000)))
    writer = writer_of(files)
    for _ in range(3):
        assert writer.prepare(wishes, 0.0).steps == ()
    files.files[f"{ONE}/cpu.max"] = "max 100000\n"
    assert [step.desired.cgroup for step in writer.prepare(wishes, 0.0).steps] == [ONE]
    del files.files[f"{ONE}/cpu.max"]
    assert writer.prepare(wishes, 0.0).compared == 1
    others = (wish(POD, QUOTA, Bandwidth(50000)), wishes[1])
    assert [step.desired.cgroup for step in writer.prepare(others, 99.0).steps] == [POD]


def test_no_more_descriptors_are_open_than_allowed(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    records = len(os.listdir("/proc/self/fd"))
    files = KernelFiles(LiveHostFiles(str(tmp_path)), limit=1)
    for _ in range(2):
        assert [files.read(f"/{name}", 8) for name in "abc"] == [b"a", b"b", b"c"]
    assert len(os.listdir("/proc/self/fd")) == records + 1
    files.close_all()
    assert len(os.listdir("/proc/self/fd")) == records


def test_a_plain_file_has_only_the_text_of_the_last_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("100000\n")
    files = KernelFiles(LiveHostFiles(str(tmp_path)))
    for text in ("2000", "30", "4"):
        files.read("/file", 64)
        files.write("/file", text)
        assert (tmp_path / "file").read_text() == text
