"""Writes that version 2 refuses, or takes with consequences."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, HIGH, MEMORY, QUOTA, CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import MAX_NEW_VALUES, MAX_OWN_VALUES, ChangeLedger
from agent.cgroup.reclaim import BUDGET_S, CHUNK_BYTES
from agent.cgroup.restore import restore_entries
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_backoff import (
    BUSY_REPORTED,
    BUSY_RETRIES,
    FIRST_RETRY_S,
    REFUSING_GROUPS,
)
from agent.cgroup.write_plan import DesiredValue, WriteProblem, WriteResult
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from tests.cgroup_v2.fake import MOUNT, NO_LIMIT, FakeFiles, FakeKernel, Group

MIB = 1 << 20
POD = "/kubepods/podx"


class Killed(BaseException):
    """The process ends here."""


class Node:
    """One group with processes in it, and an agent whose ledger is on a disk."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "ledger.log")
        self.kernel = FakeKernel("/kubepods")
        self.kernel.make(POD)
        self.group.processes = 1
        self.files = FakeFiles(self.kernel)
        self.start()

    @property
    def group(self) -> Group:
        """What the group holds."""
        return self.kernel.group(POD)

    def start(self) -> None:
        """Start the agent."""
        layout = CgroupLayout(
            version=2, driver="cgroupfs", mounts=(), unified=MOUNT, root="/kubepods"
        )
        ledger = ChangeLedger(self.path, "boot")
        ledger.load()
        self.clock = ManualClock()
        self.writer = CgroupWriter(CgroupValues(self.files, layout), ledger, self.clock)

    def want(
        self, key: CgroupKey, value: CgroupValue, now_s: float = 0.0, owner: str = "test"
    ) -> WriteResult:
        """Let the agent write once."""
        wish = DesiredValue(cgroup=POD, key=key, value=value, owner=owner, message="set it")
        ready = self.writer.prepare((wish,), now_s)
        self.writer.record_in_ledger(ready)
        self.writer.ledger.flush()
        outcome = self.writer.apply(ready, now_s)
        self.writer.ledger.flush()
        return outcome

    def undo(self, **how: bool) -> list[tuple[str, str]]:
        """Put all back; return state and detail of each entry."""
        ledger = ChangeLedger(self.path, "boot")
        ledger.load()
        entries = tuple(ledger.entries.values())
        outcome = restore_entries(ledger, self.writer.values, entries, monotonic=lambda: 0.0, **how)
        return [(one.state, one.detail) for one in outcome]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_page_cache_above_a_new_limit_is_reclaimed_first_and_nobody_is_killed(node: Node) -> None:
    node.group.cache_bytes, node.group.anonymous_bytes = 200 * MIB, 50 * MIB
    outcome = node.want(MEMORY, 100 * MIB)
    assert (outcome.written, node.group.processes) == (1, 1)
    assert (node.group.max_bytes, node.group.high_bytes) == (100 * MIB, NO_LIMIT)
    assert [audit.message for audit in outcome.audits] == ["set it, after reclaim by memory.high"]
    assert [entry.key for entry in node.writer.ledger.entries.values()] == [MEMORY.name]


def test_a_group_that_fits_is_limited_without_reclaim(node: Node) -> None:
    node.group.cache_bytes = 50 * MIB
    outcome = node.want(MEMORY, 100 * MIB)
    assert (outcome.written, node.group.cache_bytes) == (1, 50 * MIB)
    assert node.files.writes == [(f"{POD}/memory.max", str(100 * MIB))]


def test_memory_that_cannot_be_reclaimed_is_not_taken_by_killing(node: Node) -> None:
    node.group.anonymous_bytes, node.group.high_bytes = 200 * MIB, 300 * MIB
    events = [node.want(MEMORY, 100 * MIB, float(second)).problems for second in range(4)]
    assert [len(event) for event in events] == [0, 0, 1, 0]
    (trouble,) = events[BUSY_REPORTED - 1]
    assert trouble.reason == "LimitInUse"
    assert f"{200 * MIB} bytes were in use" in trouble.message
    assert "memory.high" in trouble.message
    assert node.group.processes == 1
    assert (node.group.max_bytes, node.group.high_bytes) == (NO_LIMIT, 300 * MIB)
    node.group.anonymous_bytes = 50 * MIB
    assert node.want(MEMORY, 100 * MIB, 9.0).written == 1


def test_more_than_one_cycle_can_reclaim_is_reclaimed_in_several(node: Node) -> None:
    node.group.cache_bytes = 2000 * MIB
    unwrittens = [node.want(MEMORY, 100 * MIB, float(second)).unwritten for second in range(5)]
    assert unwrittens == [1, 1, 1, 0, 0]
    assert (node.group.max_bytes, node.group.high_bytes) == (100 * MIB, NO_LIMIT)


def test_a_reclaim_that_takes_many_cycles_is_no_refused_limit(node: Node) -> None:
    node.group.cache_bytes = 100 * (MAX_NEW_VALUES * CHUNK_BYTES) + 100 * MIB
    for second in range(2 * BUSY_RETRIES):
        outcome = node.want(MEMORY, 100 * MIB, float(second))
        assert outcome.problems == ()
        if outcome.written:
            break
    assert (second, node.group.max_bytes) == (99, 100 * MIB)


def test_a_reclaim_that_the_container_undoes_is_a_refused_limit(node: Node) -> None:
    problems: list[WriteProblem] = []
    for second in range(5):
        node.group.cache_bytes = 2000 * MIB  # it reads its files again
        problems += node.want(MEMORY, 100 * MIB, float(second)).problems
    assert [one.reason for one in problems] == ["LimitInUse"]


def test_a_limit_that_stays_in_use_is_tried_less_often(node: Node) -> None:
    node.group.anonymous_bytes = 200 * MIB
    tried = []
    for second in range(BUSY_RETRIES + 2 * int(FIRST_RETRY_S)):
        if node.want(MEMORY, 100 * MIB, float(second)).audits:
            tried.append(second)
    assert tried == [*range(BUSY_RETRIES + 1), 2 * BUSY_RETRIES]


def test_killed_at_any_write_of_a_reclaim_a_restore_gives_memory_high_back(tmp_path: Path) -> None:
    for step in range(20):
        (tmp_path / str(step)).mkdir()
        node = Node(tmp_path / str(step))
        node.group.cache_bytes, node.group.high_bytes = 200 * MIB, 300 * MIB
        write = node.files.write
        remaining = [step]

        def counted(path: str, text: str) -> None:
            remaining[0] -= 1  # noqa: B023 - used within the round only
            if remaining[0] < 0:  # noqa: B023 - as above
                raise Killed
            write(path, text)  # noqa: B023 - as above

        node.files.write = counted  # type: ignore[method-assign]  # the process ends at a write
        killed = False
        try:
            node.want(MEMORY, 100 * MIB)
        except Killed:
            killed = True
        node.files.write = write  # type: ignore[method-assign]  # its own method again
        node.undo()
        assert (node.group.max_bytes, node.group.high_bytes) == (NO_LIMIT, 300 * MIB), step
        assert node.group.processes == 1
        if not killed:
            break
    assert 3 < step < 19


def test_killed_in_a_reclaim_the_next_agent_keeps_the_true_original(node: Node) -> None:
    node.group.cache_bytes, node.group.high_bytes = 200 * MIB, 300 * MIB
    node.group.anonymous_bytes = 150 * MIB
    write = node.files.write

    def killing(path: str, text: str) -> None:
        if not node.files.writes:  # after the first write the process is no more
            write(path, text)
        raise Killed

    node.files.write = killing  # type: ignore[method-assign]  # the process ends after a write
    with pytest.raises(Killed):
        node.want(MEMORY, 100 * MIB)
    node.files.write = write  # type: ignore[method-assign]  # its own method again
    assert node.group.high_bytes != 300 * MIB
    node.start()
    node.want(MEMORY, 100 * MIB)
    assert (node.group.max_bytes, node.group.high_bytes) == (NO_LIMIT, 300 * MIB)


def test_a_limit_that_the_kernel_rounded_is_not_counted_as_another_writers(node: Node) -> None:
    for limit in (10**9, 2 * 10**9, 3 * 10**9):
        assert node.want(MEMORY, limit).written == 1
        node.start()
        assert node.writer.overwrites.reverts == 0
    assert node.want(MEMORY, 4 * 10**9).written == 1
    assert node.writer.overwrites.reverts == 0


def test_a_restore_does_not_kill_either(node: Node) -> None:
    node.group.max_bytes = 100 * MIB
    node.want(MEMORY, -1)
    node.group.anonymous_bytes = 200 * MIB
    for how in ({"dry_run": True}, {}):
        ((state, detail),) = node.undo(**how)
        assert state == "refused"
        assert f"{200 * MIB} bytes in use" in detail
    assert (node.group.max_bytes, node.group.processes) == (NO_LIMIT, 1)
    node.group.anonymous_bytes = 0
    assert node.undo() == [("restored", "")]


def test_the_burst_of_another_agent_is_named_as_the_cause_of_a_refused_quota(node: Node) -> None:
    node.group.burst_us = 200_000
    outcome = node.want(QUOTA, Bandwidth(50_000))
    assert outcome.audits[0].errno == errno.EINVAL
    assert outcome.problems[0].message == (
        f"cpu.cfs_quota_us of {POD} to '50000 100000': Invalid argument: cpu.max.burst holds"
        " 200000, more than this quota: write 0 to it; another agent left it"
    )


def test_the_agents_own_burst_is_not_reported_as_another_programs(node: Node) -> None:
    node.want(BURST, 200_000)
    message = node.want(QUOTA, Bandwidth(50_000)).problems[0].message
    assert message.endswith("write 0 to it")


def test_quotas_that_single_groups_refuse_do_not_stop_those_of_others(node: Node) -> None:
    assert node.want(QUOTA, Bandwidth(90_000)).written == 1
    pods = [f"/kubepods/pod{number}" for number in range(REFUSING_GROUPS)]
    for pod in pods:
        node.kernel.make(pod)
        node.kernel.group(pod).burst_us = 200_000  # another agent left it
    desired = [
        DesiredValue(cgroup=pod, key=QUOTA, value=Bandwidth(50_000), owner="test") for pod in pods
    ]
    result = node.writer.apply(node.writer.prepare(desired, 1.0), 1.0)
    assert len(result.problems) == REFUSING_GROUPS
    assert node.want(QUOTA, Bandwidth(80_000), 2.0).written == 1


def test_a_quota_below_the_period_floor_has_no_burst_for_a_cause(node: Node) -> None:
    node.group.burst_us = 10
    message = node.want(QUOTA, Bandwidth(50_000, 10**7)).problems[0].message
    assert message.endswith("Invalid argument")


def test_a_restore_names_the_burst_too(node: Node) -> None:
    node.group.quota_us = 50_000
    node.want(QUOTA, Bandwidth(-1))
    node.group.burst_us = 200_000
    ((state, detail),) = node.undo()
    assert state == "refused"
    assert "cpu.max.burst holds 200000" in detail


def high_writes(node: Node) -> list[int]:
    """Return what was written to `memory.high`, in MiB."""
    return [int(text) // MIB for path, text in node.files.writes if path.endswith("/memory.high")]


def test_memory_high_below_the_usage_is_lowered_in_steps(node: Node) -> None:
    node.group.cache_bytes = 300 * MIB
    outcome = node.want(HIGH, 100 * MIB)
    assert outcome.written == 1
    assert high_writes(node) == [236, 172, 108, 100]
    assert node.group.cache_bytes == 100 * MIB
    assert node.undo() == [("restored", "")]
    assert node.group.high_bytes == NO_LIMIT


def test_memory_high_above_the_usage_is_one_write(node: Node) -> None:
    node.group.cache_bytes = 50 * MIB
    assert node.want(HIGH, 100 * MIB).written == 1
    assert high_writes(node) == [100]


def slow_writes(node: Node, seconds: float) -> None:
    """Let each write take so long, as a reclaim of dirty pages does."""
    write = node.files.write

    def slow(path: str, text: str) -> None:
        node.clock.advance(seconds)
        write(path, text)

    node.files.write = slow  # type: ignore[method-assign]  # a slow kernel


def test_slow_steps_end_at_the_budget_and_continue_in_the_next_cycle(node: Node) -> None:
    node.group.cache_bytes = 300 * MIB
    slow_writes(node, BUDGET_S * 0.6)
    first = node.want(HIGH, 100 * MIB)
    assert (first.written, first.unwritten, first.problems) == (0, 1, ())
    assert high_writes(node) == [236, 172]
    second = node.want(HIGH, 100 * MIB, 1.0)
    assert second.written == 1
    assert high_writes(node) == [236, 172, 108, 100]
    assert node.writer.overwrites.reverts == 0  # its own steps are no other program's


def test_a_slow_reclaim_below_a_new_limit_ends_at_the_budget_of_each_cycle(node: Node) -> None:
    node.group.cache_bytes = 500 * MIB
    slow_writes(node, BUDGET_S)
    for cycle in range(6):
        assert node.want(MEMORY, 100 * MIB, 2.0 * cycle).written == 0
        assert len(node.files.writes) == 2 * (cycle + 1)  # a step, and the old value again
    assert node.want(MEMORY, 100 * MIB, 60.0).written == 1
    assert (node.group.max_bytes, node.group.high_bytes) == (100 * MIB, NO_LIMIT)


def test_one_cycle_does_not_begin_to_reclaim_after_its_budget(node: Node) -> None:
    other = "/kubepods/pody"
    node.kernel.make(other)
    for cgroup in (POD, other):
        node.kernel.group(cgroup).cache_bytes = 80 * MIB
    slow_writes(node, BUDGET_S)
    desired = tuple(
        DesiredValue(cgroup=cgroup, key=HIGH, value=40 * MIB, owner="test")
        for cgroup in (POD, other)
    )
    for cycle in range(2):
        plan = node.writer.prepare(desired, float(cycle), "test")
        node.writer.record_in_ledger(plan)
        node.writer.apply(plan, float(cycle))
        assert len(high_writes(node)) == cycle + 1


def test_memory_that_cannot_be_reclaimed_does_not_keep_memory_high_up(node: Node) -> None:
    node.group.anonymous_bytes = 3000 * MIB
    rounds = 0
    while not node.want(HIGH, 100 * MIB, float(rounds)).written:
        rounds += 1
        assert rounds < 10
    assert node.group.high_bytes == 100 * MIB
    assert max(high_writes(node)) == 3000 - CHUNK_BYTES // MIB
    assert node.group.processes == 1


def test_killed_between_two_steps_the_original_of_memory_high_is_restored(node: Node) -> None:
    node.group.cache_bytes, node.group.high_bytes = 300 * MIB, 400 * MIB
    write, remaining = node.files.write, [2]

    def killing(path: str, text: str) -> None:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise Killed
        write(path, text)

    node.files.write = killing  # type: ignore[method-assign]  # the process ends at a write
    with pytest.raises(Killed):
        node.want(HIGH, 100 * MIB)
    node.files.write = write  # type: ignore[method-assign]  # its own method again
    assert node.group.high_bytes == 172 * MIB
    assert node.undo() == [("restored", "")]
    assert node.group.high_bytes == 400 * MIB


def test_a_reclaim_leaves_the_memory_high_of_another_strategy(node: Node) -> None:
    node.want(HIGH, 300 * MIB, owner="memory_qos")
    node.group.anonymous_bytes = 200 * MIB
    node.want(MEMORY, 100 * MIB)
    assert node.group.high_bytes == 300 * MIB
    assert node.want(HIGH, 300 * MIB, 1.0, owner="memory_qos").written == 0
    assert node.writer.overwrites.reverts == 0
    node.undo()
    assert node.group.high_bytes == NO_LIMIT


def test_a_limit_in_force_stays_the_agents_while_many_others_are_refused(node: Node) -> None:
    node.want(MEMORY, 300 * MIB + 1)
    node.group.anonymous_bytes = 250 * MIB
    for second in range(2 * MAX_OWN_VALUES):
        assert node.want(MEMORY, (100 + second) * MIB, float(second)).unwritten == 1
    assert node.group.max_bytes == 300 * MIB
    assert node.undo() == [("restored", "")]
    assert node.group.max_bytes == NO_LIMIT


def test_killed_between_two_slow_steps_the_original_of_memory_high_is_restored(node: Node) -> None:
    node.group.cache_bytes = 3000 * MIB
    slow_writes(node, BUDGET_S)
    assert node.want(HIGH, 100 * MIB).unwritten == 1
    node.group.cache_bytes -= MIB  # the steps from here are others
    write = node.files.write

    def killing(path: str, text: str) -> None:
        raise Killed(path, text)

    node.files.write = killing  # type: ignore[method-assign]  # the process ends at a write
    with pytest.raises(Killed):
        node.want(HIGH, 100 * MIB, 1.0)
    node.files.write = write  # type: ignore[method-assign]  # its own method again
    assert node.group.high_bytes == 3000 * MIB - CHUNK_BYTES
    assert node.undo() == [("restored", "")]
    assert node.group.high_bytes == NO_LIMIT
