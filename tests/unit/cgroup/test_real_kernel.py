from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import CPUS, IDLE, MEMORY, QUOTA, SHARES, CgroupKey, CgroupValue
from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.cgroup.write_plan import DesiredValue, WriteResult, plan_writes
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from tests.realgroups import UID, RealGroups, needs_v1, real_groups

pytestmark = [needs_v1, pytest.mark.root]


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def wish(cgroup: str, key: CgroupKey, value: CgroupValue) -> DesiredValue:
    return DesiredValue(cgroup=cgroup, key=key, value=value, owner="test")


def writer_of(groups: RealGroups) -> CgroupWriter:
    values = CgroupValues(KernelFiles(LiveHostFiles()), groups.layout)
    return CgroupWriter(values, ChangeLedger(None, ""), ManualClock())


def applied(writer: CgroupWriter, *wishes: DesiredValue, now_s: float = 0.0) -> WriteResult:
    prepared = writer.prepare(wishes, now_s)
    writer.record_in_ledger(prepared)
    return writer.apply(prepared, now_s)


def refused(groups: RealGroups, cgroup: str, name: str, text: str) -> int:
    try:
        groups.put(cgroup, name, text)
    except OSError as error:
        return error.errno or 0
    return 0


def test_what_this_kernel_says_to_quotas_that_do_not_fit(groups: RealGroups) -> None:  # V25
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(pod, "cpu.cfs_quota_us", "100000")
    assert refused(groups, child, "cpu.cfs_quota_us", "150000") == errno.EINVAL
    groups.put(child, "cpu.cfs_quota_us", "-1")
    groups.put(child, "cpu.cfs_quota_us", "100000")
    assert refused(groups, pod, "cpu.cfs_quota_us", "50000") == errno.EINVAL
    assert refused(groups, child, "cpu.cfs_quota_us", "667") == errno.EINVAL
    assert refused(groups, child, "cpu.cfs_quota_us", "max") == errno.EINVAL


def test_what_this_kernel_says_to_cpus_that_do_not_fit(groups: RealGroups) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(child, "cpuset.cpus", "0-1")
    assert refused(groups, pod, "cpuset.cpus", "0") == errno.EBUSY
    groups.put(child, "cpuset.cpus", "0")
    groups.put(pod, "cpuset.cpus", "0")
    assert refused(groups, child, "cpuset.cpus", "0-1") == errno.EACCES
    assert refused(groups, child, "cpuset.cpus", "1-0") == errno.EINVAL
    groups.sleeper(child)
    assert refused(groups, child, "cpuset.cpus", "\n") == errno.ENOSPC


def test_what_this_kernel_says_to_the_weight_of_an_idle_group(groups: RealGroups) -> None:
    pod = groups.pod()
    groups.put(pod, "cpu.shares", "512")
    groups.put(pod, "cpu.idle", "1")
    assert groups.get(pod, "cpu.shares") == "3"
    assert refused(groups, pod, "cpu.shares", "1024") == errno.EINVAL
    groups.put(pod, "cpu.idle", "0")
    assert groups.get(pod, "cpu.shares") == "1024"


SETS = [("0-1", "0"), ("0", "0-1"), ("0", "1"), ("1", "0")]
QUOTAS = [
    ((200000, 100000), (50000, 100000)),
    ((50000, 100000), (200000, 100000)),
    ((-1, 100000), (50000, 100000)),
    ((50000, 100000), (-1, 100000)),
    ((50000, 50000), (100000, 100000)),
    ((50000, 50000), (300000, 100000)),
    ((300000, 100000), (20000, 50000)),
    ((-1, 100000), (20000, 50000)),
    ((20000, 50000), (-1, 100000)),
]


@pytest.mark.parametrize(("old", "new"), SETS)
def test_the_kernel_takes_every_write_of_a_plan_for_cpus(
    groups: RealGroups, old: str, new: str
) -> None:
    pod = groups.pod()
    containers = [groups.container(pod, 1), groups.container(pod, 2)]
    for cgroup in (*containers, pod):  # narrowing goes inside out
        groups.put(cgroup, "cpuset.cpus", old)
    groups.sleeper(containers[0])
    writer = writer_of(groups)
    value = CPUS.parse(1, (new.encode(),))
    outcome = applied(writer, *(wish(cgroup, CPUS, value) for cgroup in (pod, *containers)))
    assert (outcome.written, outcome.unwritten) == (3, 0)
    assert all(audit.errno == 0 for audit in outcome.audits)
    assert [groups.get(cgroup, "cpuset.cpus") for cgroup in (pod, *containers)] == [new] * 3


@pytest.mark.parametrize(("old", "new"), QUOTAS)
def test_the_kernel_takes_every_write_of_a_plan_for_quotas(
    groups: RealGroups, old: tuple[int, int], new: tuple[int, int]
) -> None:
    pod = groups.pod()
    containers = [groups.container(pod, 1), groups.container(pod, 2)]
    for cgroup in (pod, *containers):
        groups.put(cgroup, "cpu.cfs_period_us", str(old[1]))
        groups.put(cgroup, "cpu.cfs_quota_us", str(old[0]))
    values = CgroupValues(KernelFiles(LiveHostFiles()), groups.layout)
    wishes = [wish(cgroup, QUOTA, Bandwidth(*new)) for cgroup in (*containers, pod)]
    result = {one.target: Bandwidth(*old) for one in wishes}
    for step in plan_writes(wishes, result, 1):
        values.write(step)  # raises if the kernel refuses any of them
    for cgroup in (pod, *containers):
        assert values.read_value(cgroup, QUOTA) == Bandwidth(*new)


def test_a_second_comparison_writes_nothing(groups: RealGroups) -> None:
    pod = groups.pod()
    writer, desired = writer_of(groups), wish(pod, SHARES, 512)
    assert applied(writer, desired).written == 1
    again = writer.prepare((desired,), 1.0)
    assert (again.compared, again.steps, again.unwritten) == (1, (), 0)


def test_bytes_are_as_desired_when_the_kernel_cut_them_to_pages(groups: RealGroups) -> None:
    pod = groups.pod()
    writer, desired = writer_of(groups), wish(pod, MEMORY, 100_000_000)
    assert applied(writer, desired).written == 1
    assert groups.get(pod, "memory.limit_in_bytes") == "99999744"
    assert writer.prepare((desired,), 1.0).steps == ()


def test_a_limit_below_the_usage_is_tried_each_round_and_reported_after_three(
    groups: RealGroups,
) -> None:
    pod = groups.pod()
    groups.hog(pod)
    writer, desired = writer_of(groups), wish(pod, MEMORY, 4096)
    rounds = [applied(writer, desired, now_s=float(i)) for i in range(4)]
    assert [[t.reason for t in one.problems] for one in rounds] == [[], [], ["LimitInUse"], []]


def test_a_neighbour_that_changed_between_comparison_and_write_is_planned_around(
    groups: RealGroups,
) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(child, "cpuset.cpus", "0")
    writer = writer_of(groups)
    prepared = writer.prepare(
        (wish(pod, CPUS, frozenset({0})), wish(child, CPUS, frozenset({0}))), 0
    )
    groups.put(child, "cpuset.cpus", "0-1")  # by the kubelet, say
    outcome = writer.apply(prepared, 0.0)
    assert (outcome.written, outcome.unwritten) == (
        0,
        1,
    )  # it wrote a file that was as wanted: left alone
    both = (wish(pod, CPUS, frozenset({0})), wish(child, CPUS, frozenset({0})))
    assert applied(writer, *both, now_s=100.0).written == 2


def test_cpus_outside_the_pods_own_are_refused_once_and_then_left_for_a_minute(
    groups: RealGroups,
) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(child, "cpuset.cpus", "0")
    groups.put(pod, "cpuset.cpus", "0")
    writer, desired = writer_of(groups), wish(child, CPUS, frozenset({1}))
    first = applied(writer, desired)
    assert (first.unwritten, [audit.errno for audit in first.audits]) == (1, [errno.EACCES])
    assert [trouble.reason for trouble in first.problems] == ["ValueRefused"]
    assert writer.prepare((desired,), 59.0).steps == ()
    assert writer.prepare((desired,), 60.0).steps
    assert writer.prepare((wish(child, CPUS, frozenset({0, 1})),), 1.0).steps


def test_a_group_that_is_gone_is_no_trouble(groups: RealGroups) -> None:
    pod = groups.pod()
    writer, desired = writer_of(groups), wish(pod, SHARES, 512)
    prepared = writer.prepare((desired,), 0.0)
    groups.path("cpu", pod).rmdir()
    outcome = writer.apply(prepared, 0.0)
    assert (outcome.written, outcome.unwritten, outcome.audits, outcome.problems) == (0, 1, (), ())
    assert writer.prepare((desired,), 1.0).compared == 0


def test_a_group_that_ends_being_idle_has_its_weight_again(groups: RealGroups) -> None:  # Z10
    pod = groups.pod()
    groups.put(pod, "cpu.idle", "1")
    outcome = applied(writer_of(groups), wish(pod, SHARES, 3), wish(pod, IDLE, 0))
    assert (outcome.written, groups.get(pod, "cpu.shares")) == (2, "3")


def test_another_programs_value_is_overwritten_three_times_then_once_a_minute(
    groups: RealGroups,
) -> None:  # Z7
    pod = groups.pod()
    writer, desired = writer_of(groups), wish(pod, SHARES, 512)
    applied(writer, desired)
    written = []
    for second in range(1, 130):
        if groups.get(pod, "cpu.shares") == "512":
            groups.put(pod, "cpu.shares", "100")
        if applied(writer, desired, now_s=float(second)).written:
            written.append(second)
    assert written == [1, 2, 3, 63, 123]
    assert writer.overwrites.contested_targets(124.0) == ((pod, "cpu.shares"),)


def test_an_absent_file_costs_nothing_and_is_checked_again_after_a_minute(
    groups: RealGroups,
) -> None:
    from agent.cgroup.keys import BVT

    pod = groups.pod()
    writer, desired = writer_of(groups), wish(pod, BVT, 2)
    for second in (0.0, 1.0, 61.0):
        prepared = writer.prepare((desired,), second)
        assert (prepared.compared, prepared.unwritten, prepared.steps) == (0, 0, ())


def test_an_error_says_the_file_and_the_errno(groups: RealGroups) -> None:
    pod = groups.pod()
    path = str(groups.path("cpu", pod) / "cpu.cfs_quota_us")
    with pytest.raises(HostFileError, match=r"cpu\.cfs_quota_us: EINVAL"):
        KernelFiles(LiveHostFiles()).write(path, "667")


def test_the_group_above_is_named_where_it_has_values_refused(groups: RealGroups) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(child, "cpuset.cpus", "0")
    groups.put(pod, "cpuset.cpus", "0")
    groups.put(pod, "cpu.cfs_quota_us", "20000")
    writer = writer_of(groups)
    wishes = (wish(child, CPUS, frozenset({0, 1})), wish(child, QUOTA, Bandwidth(50000)))
    causes = [problem.message for problem in applied(writer, *wishes).problems]
    assert f"cpuset.cpus of {child} to '0-1': Permission denied: {pod} above it has 0" in causes
    quota = f"cpu.cfs_quota_us of {child} to '50000 100000': Invalid argument"
    assert f"{quota}: {pod} above it has 20000 100000" in causes
    groups.put(pod, "cpu.cfs_quota_us", "-1")
    groups.put(groups.root, "cpu.cfs_quota_us", "30000")
    (problem,) = applied(writer, wish(child, QUOTA, Bandwidth(60000))).problems
    assert problem.message.endswith(f"{groups.root} above it has 30000 100000")
    explanation = writer.refusals.explain(wishes[0], 1.0)
    assert f"it was refused once (Permission denied: {pod} above it has 0); the next" in explanation


def test_groups_below_are_the_cause_where_no_group_above_is(groups: RealGroups) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(child, "cpu.cfs_quota_us", "50000")
    wishes = (wish(pod, CPUS, frozenset({0})), wish(pod, QUOTA, Bandwidth(20000)))
    writer = writer_of(groups)
    assert applied(writer, *wishes).problems == (), "it may be a group that was removed just now"
    assert applied(writer, *wishes, now_s=0.5).audits == ()
    problems = applied(writer, *wishes, now_s=1.0).problems
    assert [problem.message.endswith(": a group below it has more") for problem in problems] == [
        True
    ] * 2
    assert applied(writer, *wishes, now_s=2.0).audits == ()


def test_a_group_below_that_soon_has_less_is_no_refusal_to_report(groups: RealGroups) -> None:
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(child, "cpu.cfs_quota_us", "50000")
    writer = writer_of(groups)
    assert applied(writer, wish(pod, QUOTA, Bandwidth(20000))).unwritten == 1
    groups.put(child, "cpu.cfs_quota_us", "10000")
    outcome = applied(writer, wish(pod, QUOTA, Bandwidth(20000)), now_s=1.0)
    assert (outcome.written, outcome.problems) == (1, ())


def test_the_burst_of_another_agent_is_named_where_it_has_a_quota_refused(
    groups: RealGroups,
) -> None:
    pod = groups.pod()
    groups.put(pod, "cpu.cfs_burst_us", "200000")
    outcome = applied(writer_of(groups), wish(pod, QUOTA, Bandwidth(50000)))
    assert outcome.written == 0
    assert "cpu.cfs_burst_us holds 200000" in outcome.problems[0].message
    assert outcome.problems[0].message.endswith("another agent left it")


def descriptor_flags(path: str) -> list[int]:
    """Return the flags of each descriptor that this process has of a file."""
    flags = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") == path:
                flags.append(fcntl.fcntl(int(fd), fcntl.F_GETFL))
    return flags


def open_for_writing(path: str) -> list[bool]:
    """Return of each descriptor that this process has of a file whether it may write."""
    return [flags & os.O_ACCMODE == os.O_RDWR for flags in descriptor_flags(path)]


def test_a_file_has_one_descriptor_which_may_write_only_after_a_write(groups: RealGroups) -> None:
    path = str(groups.path("cpu", groups.pod()) / "cpu.shares")
    files = KernelFiles(LiveHostFiles())
    files.write(path, "100")
    assert open_for_writing(path) == []  # nobody reads it
    assert files.read(path, 64) == b"100\n"
    assert open_for_writing(path) == [False]
    for text in ("512", "77"):
        files.write(path, text)
        assert open_for_writing(path) == [True]
        assert files.read(path, 64) == f"{text}\n".encode()
    with pytest.raises(HostFileError, match="EINVAL"):
        files.write(path, "many")
    files.close(path)
    assert open_for_writing(path) == []
    files.write(path, "78")
    assert groups.get(groups.pod_path(UID), "cpu.shares") == "78"


def test_a_write_of_a_limit_waits_for_the_memory_that_the_kernel_reclaims(
    groups: RealGroups,
) -> None:
    path = str(groups.path("memory", groups.pod()) / "memory.limit_in_bytes")
    files = KernelFiles(LiveHostFiles())
    files.read(path, 64)
    files.write(path, "1048576")
    assert [flags & os.O_NONBLOCK for flags in descriptor_flags(path)] == [0]


def test_a_new_group_of_the_same_name_is_not_written_before_it_was_read(
    groups: RealGroups,
) -> None:
    pod = groups.pod()
    path = str(groups.path("cpu", pod) / "cpu.shares")
    files = KernelFiles(LiveHostFiles())
    for text in ("512", "513"):
        files.read(path, 64)
        files.write(path, text)
    groups.path("cpu", pod).rmdir()
    groups.path("cpu", pod).mkdir()
    with pytest.raises(HostFileError, match="ENODEV"):
        files.write(path, "514")
    assert groups.get(pod, "cpu.shares") == "1024"
    assert files.read(path, 64) == b"1024\n"
    files.write(path, "514")
    assert groups.get(pod, "cpu.shares") == "514"
