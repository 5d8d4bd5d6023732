from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import CPUS, MEMORY, QUOTA, SHARES, CgroupKey, CgroupValue
from agent.cgroup.ledger import OOM_HIERARCHY, ChangeLedger, LedgerEntry
from agent.cgroup.processes import OOM_SCORE_ADJ
from agent.cgroup.restore import OFFLINE_TEXT, RestoreResult, restore_entries
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from agent.host.files import LiveHostFiles
from tests.realgroups import RealGroups, needs_v1, real_groups

pytestmark = [needs_v1, pytest.mark.root]


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


class Run:
    """What wrote, and what puts back."""

    def __init__(self, groups: RealGroups) -> None:
        self.ledger = ChangeLedger(None, "")
        self.values = CgroupValues(KernelFiles(LiveHostFiles()), groups.layout)
        self.writer = CgroupWriter(self.values, self.ledger, ManualClock())

    def write(self, *wishes: tuple[str, CgroupKey, CgroupValue]) -> None:
        created = [DesiredValue(cgroup=c, key=k, value=v, owner="test") for c, k, v in wishes]
        prepared = self.writer.prepare(created, 0.0)
        self.writer.record_in_ledger(prepared)
        self.writer.apply(prepared, 0.0)

    def undo(self, *, force: bool = False, dry_run: bool = False) -> tuple[RestoreResult, ...]:
        entries = tuple(self.ledger.entries.values())
        return restore_entries(
            self.ledger,
            self.values,
            entries,
            monotonic=lambda: 0.0,
            force=force,
            dry_run=dry_run,
        )


def states(restore_results: tuple[RestoreResult, ...]) -> set[str]:
    return {restore_result.state for restore_result in restore_results}


def test_everything_is_as_it_was_before(groups: RealGroups) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(pod, "cpu.cfs_quota_us", "200000")
    groups.put(child, "cpu.cfs_quota_us", "150000")
    run = Run(groups)
    run.write(
        (pod, QUOTA, Bandwidth(50000)),
        (child, QUOTA, Bandwidth(20000, 50000)),
        (child, CPUS, frozenset({1})),
        (pod, SHARES, 2),
    )
    assert groups.get(child, "cpuset.cpus") == "1"
    assert states(run.undo()) == {"restored"}
    assert groups.get(pod, "cpu.cfs_quota_us") == "200000"
    assert groups.get(child, "cpu.cfs_quota_us") == "150000"
    assert groups.get(child, "cpu.cfs_period_us") == "100000"
    assert groups.get(child, "cpuset.cpus") == "0-1"
    assert groups.get(pod, "cpu.shares") == "1024"
    assert run.ledger.entries == {}


def test_a_limit_that_is_no_multiple_of_a_page_is_put_back(groups: RealGroups) -> None:
    pod = groups.pod()
    for limits in ((10**9,), (10**9, 2 * 10**9, 3 * 10**9)):
        run = Run(groups)
        for limit in limits:
            run.write((pod, MEMORY, limit))
        assert int(groups.get(pod, "memory.limit_in_bytes")) < limits[-1]
        assert states(run.undo()) == {"restored"}
        assert int(groups.get(pod, "memory.limit_in_bytes")) > 1 << 62


def test_a_dry_run_writes_nothing_and_says_both_values(groups: RealGroups) -> None:
    pod = groups.pod()
    run = Run(groups)
    run.write((pod, SHARES, 2))
    (one,) = run.undo(dry_run=True)
    assert (one.state, one.summary) == ("planned", f"{pod}/cpu.shares 2 → 1024")
    assert groups.get(pod, "cpu.shares") == "2"
    assert len(run.ledger.entries) == 1


def test_another_programs_value_is_kept_and_reported_unless_forced(groups: RealGroups) -> None:
    pod = groups.pod()
    run = Run(groups)
    run.write((pod, SHARES, 2))
    groups.put(pod, "cpu.shares", "77")
    assert states(run.undo()) == {"foreign"}
    assert groups.get(pod, "cpu.shares") == "77"
    assert states(run.undo(force=True)) == {"restored"}
    assert groups.get(pod, "cpu.shares") == "1024"


def test_a_new_group_of_the_same_name_is_not_touched(groups: RealGroups) -> None:
    pod = groups.pod()
    run = Run(groups)
    run.write((pod, SHARES, 2))
    groups.path("cpu", pod).rmdir()
    groups.path("cpu", pod).mkdir()
    groups.put(pod, "cpu.shares", "2")
    assert states(run.undo()) == {"gone"}
    assert groups.get(pod, "cpu.shares") == "2"
    assert run.ledger.entries == {}


def test_what_the_kernel_refuses_stays_to_be_undone(groups: RealGroups) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    run = Run(groups)
    run.write((child, CPUS, frozenset({1})))
    groups.put(pod, "cpuset.cpus", "1")
    (one,) = run.undo()
    assert one.state == "refused"
    assert "EACCES" in one.detail
    assert len(run.ledger.entries) == 1


def test_cpus_that_were_switched_off_meanwhile_are_left_out(groups: RealGroups) -> None:
    pod = groups.pod()
    run = Run(groups)
    run.write((pod, CPUS, frozenset({1})))
    (entry,) = run.ledger.entries.values()
    run.ledger.set(replace(entry, original=f"0-{os.cpu_count()}"))
    (planned,) = run.undo(dry_run=True)
    online = groups.get("/", "cpuset.cpus")
    assert planned.summary.endswith(f"1 → {online} ({OFFLINE_TEXT})")
    assert states(run.undo()) == {"restored"}
    assert groups.get(pod, "cpuset.cpus") == online
    assert run.ledger.entries == {}


def test_an_entry_that_exceeds_the_time_is_reported(groups: RealGroups) -> None:
    pod = groups.pod()
    run = Run(groups)
    run.write((pod, SHARES, 2))
    ticks = itertools.count()
    entries = tuple(run.ledger.entries.values())
    outcome = restore_entries(
        run.ledger, run.values, entries, monotonic=lambda: float(next(ticks)), budget_s=1.0
    )
    assert states(outcome) == {"late"}
    assert len(run.ledger.entries) == 1


def test_a_time_that_is_too_short_to_read_all_files_restores_some_of_them(
    groups: RealGroups,
) -> None:
    pod = groups.pod()
    children = [groups.container(pod, number) for number in range(1, 4)]
    run = Run(groups)
    run.write(*((child, SHARES, 2) for child in children))
    clock = ManualClock()
    read = run.values.files.read

    def read_slowly(path: str, size: int) -> bytes:
        clock.advance(1.0)
        return read(path, size)

    run.values.files.read = read_slowly  # type: ignore[method-assign]  # a slow kernel
    for _ in children:
        entries = tuple(run.ledger.entries.values())
        restore_entries(run.ledger, run.values, entries, monotonic=clock.monotonic, budget_s=0.5)
    assert run.ledger.entries == {}
    assert {groups.get(child, "cpu.shares") for child in children} == {"1024"}


def test_processes_wait_for_the_next_time_too(groups: RealGroups) -> None:
    child = groups.container(groups.pod(), 1)
    run = Run(groups)
    inode = groups.path("memory", child).stat().st_ino
    run.ledger.set(
        LedgerEntry(
            hierarchy=OOM_HIERARCHY,
            path=child,
            inode=inode,
            key=OOM_SCORE_ADJ,
            owner="oom_score",
            original="0",
        )
    )
    entries = tuple(run.ledger.entries.values())
    assert states(
        restore_entries(run.ledger, run.values, entries, monotonic=float, budget_s=0.0)
    ) == {"late"}
    assert len(run.ledger.entries) == 1


def test_a_resize_during_the_agents_value_is_the_value_to_restore(groups: RealGroups) -> None:
    pod = groups.pod()
    groups.put(pod, "cpu.cfs_quota_us", "100000")
    run = Run(groups)
    run.write((pod, QUOTA, Bandwidth(-1)))
    groups.put(pod, "cpu.cfs_quota_us", "300000")  # by the kubelet
    run.write((pod, QUOTA, Bandwidth(-1)))
    assert groups.get(pod, "cpu.cfs_quota_us") == "-1"
    run.undo()
    assert groups.get(pod, "cpu.cfs_quota_us") == "300000"


def test_processes_get_the_first_score_back(groups: RealGroups) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    nested = groups.make(f"{child}/inner")
    pids = groups.sleeper(child), groups.sleeper(nested)
    run = Run(groups)
    first = open_score(pids[0])
    for pid in pids:
        run.values.files.write(f"/proc/{pid}/{OOM_SCORE_ADJ}", "345")
    inode = groups.path("memory", child).stat().st_ino
    run.ledger.set(
        LedgerEntry(
            hierarchy=OOM_HIERARCHY,
            path=child,
            inode=inode,
            key=OOM_SCORE_ADJ,
            owner="oom_score",
            original=first,
            own_values=("345",),
        )
    )
    assert states(run.undo()) == {"restored"}
    assert [open_score(pid) for pid in pids] == [first, first]


def open_score(pid: int) -> str:
    with open(f"/proc/{pid}/{OOM_SCORE_ADJ}") as file:  # noqa: PTH123 - a kernel file
        return file.read().strip()
