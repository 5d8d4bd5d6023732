"""The suppression of best-effort CPU on this machine's own kernel, cgroup version 1."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.restore import restore_all
from agent.config.containers import CpuSuppressionSettings
from agent.host.files import LiveHostFiles
from agent.snapshot.self_check import StrategyState
from agent.snapshot.usage import PressureWatch
from agent.wire_formats.kernel_text import format_cpu_list
from tests.kill_steps import killed_at
from tests.realgroups import RealGroups, needs_v1, real_groups
from tests.unit.reconcile.suppressed_node import PROTECTED, QUOTA_POLICY, SuppressedNode

pytestmark = [
    needs_v1,
    pytest.mark.root,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs"),
]

CPUS, QUOTA = "cpuset.cpus", "cpu.cfs_quota_us"
ALL = format_cpu_list(frozenset(range(os.cpu_count() or 1)))
ALL_BUT_LAST = format_cpu_list(frozenset(range((os.cpu_count() or 1) - 1)))
LAST = str((os.cpu_count() or 1) - 1)


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def busy_node(groups: RealGroups, settings: CpuSuppressionSettings | None = None) -> SuppressedNode:
    """A node of which best-effort pods get all CPUs but the last."""
    node = SuppressedNode(groups, settings or CpuSuppressionSettings())
    node.thresholds = replace(node.thresholds, cpu_suppress_threshold_percent=100)
    node.reserve(LAST)
    return node


def test_lists_of_cpus_shrink_from_containers_up_and_are_restored(groups: RealGroups) -> None:
    node = busy_node(groups)
    pod = node.add_pod()
    groups.sleeper(pod.containers[0].cgroup)
    report = node.cycle()
    assert (report.written, report.unwritten) == (3, 0)
    assert node.values(CPUS, pod) == [ALL_BUT_LAST] * 3
    assert node.cycle().written == 0
    node.reserve("")
    node.cycle()
    assert node.values(CPUS, pod) == [ALL] * 3
    node.reserve(LAST)
    node.cycle()
    node.switch_off()
    assert node.values(CPUS, pod) == [ALL] * 3
    assert not node.scene.ledger.entries


def test_a_container_that_was_created_meanwhile_is_widened_with_its_class(
    groups: RealGroups,
) -> None:
    node = busy_node(groups)
    node.cycle()
    pod = node.add_pod()  # with a copy of the narrow list, as runtimes make it
    assert node.values(CPUS, pod) == [ALL_BUT_LAST] * 3
    assert node.cycle().written == 0
    node.switch_off()
    assert node.values(CPUS, pod) == [ALL] * 3
    assert not node.scene.ledger.entries


def test_an_agent_that_was_killed_gives_back_what_the_one_before_wrote(groups: RealGroups) -> None:
    node = busy_node(groups)
    pod = node.add_pod()
    node.cycle()
    node.scene.again()
    node.cycle()
    assert node.values(CPUS, pod) == [ALL_BUT_LAST] * 3
    node.switch_off()
    assert node.values(CPUS, pod) == [ALL] * 3


def test_a_quota_of_the_class_is_accepted_although_pods_have_quotas(groups: RealGroups) -> None:
    node = SuppressedNode(groups)
    node.thresholds = QUOTA_POLICY
    node.protected_cores = float(node.cpu_count)
    pod = node.add_pod()
    groups.put(pod.cgroup, QUOTA, "50000")
    groups.put(pod.containers[0].cgroup, QUOTA, "50000")
    report = node.cycle()
    assert report.unwritten == 0
    assert node.values(QUOTA, pod) == ["2000", "-1", "-1"]
    node.switch_off()
    assert node.values(QUOTA, pod) == ["-1", "50000", "50000"]


def test_the_own_quota_of_a_protected_pod_ends_only_while_it_exceeds_that_of_its_class(
    groups: RealGroups,
) -> None:
    node = SuppressedNode(groups)
    node.thresholds = QUOTA_POLICY
    pod = node.add_pod(PROTECTED)
    for cgroup in (pod.cgroup, pod.containers[0].cgroup):
        groups.put(cgroup, QUOTA, "50000")
    node.cycle()
    quota, *own = node.values(QUOTA, pod)
    assert int(quota) > 50000
    assert own == ["50000"] * 2
    node.protected_cores = float(node.cpu_count)
    report = node.cycle()
    assert (report.unwritten, report.conditions) == (0, ())
    assert node.values(QUOTA, pod) == ["2000", "-1", "-1"]
    node.protected_cores = 0.0
    for _ in range(30):
        node.cycle()
    assert node.values(QUOTA, pod) == [quota, "50000", "50000"]


def test_a_quota_that_another_writer_removed_is_written_again(groups: RealGroups) -> None:
    node = SuppressedNode(groups)
    node.thresholds, node.protected_cores = QUOTA_POLICY, float(node.cpu_count)
    node.cycle()
    groups.put(node.best_effort, QUOTA, "-1")  # as the kubelet does each minute
    node.cycle()
    assert node.values(QUOTA) == ["2000"]


def test_idle_groups_have_their_weight_again_afterwards(groups: RealGroups) -> None:  # Z10
    node = SuppressedNode(groups, CpuSuppressionSettings(idle="class"))
    pod = node.add_pod()
    groups.put(node.best_effort, "cpu.shares", "2")
    groups.put(pod.cgroup, "cpu.shares", "512")
    node.cycle()
    assert node.values("cpu.idle", pod) == ["1", "1", "0"]
    assert node.cycle().written == 0
    node.switch_off()
    assert node.values("cpu.idle", pod) == ["0", "0", "0"]
    assert node.values("cpu.shares", pod) == ["2", "512", "1024"]
    assert not node.scene.ledger.entries


def test_a_stall_cuts_the_quota_in_the_cycle_that_it_wakes(groups: RealGroups) -> None:
    node = SuppressedNode(groups, CpuSuppressionSettings(pressure=True))
    pod = node.add_pod()
    groups.put(pod.cgroup, QUOTA, "50000")
    node.cycle()
    node.pressure = PressureWatch(method="triggers", groups=1, stalls=1)
    node.cycle(0.05)
    half = str(node.cpu_count * 50000)
    assert node.values(QUOTA, pod) == [half, "-1", "-1"]
    for _ in range(20):
        node.cycle()
    assert node.values(QUOTA, pod) == ["-1", "50000", "-1"]


@pytest.mark.parametrize("by", ["cpus", "quota"])
def test_killed_at_any_step_a_restore_gives_all_back(
    groups: RealGroups, by: str, tmp_path: Path
) -> None:
    path, killed, step = str(tmp_path / "ledger.log"), True, 0

    def ledger() -> ChangeLedger:
        read = ChangeLedger(path, "boot")
        read.load()
        return read

    node = SuppressedNode(groups, CpuSuppressionSettings(idle="class"), ledger())
    pod = node.add_pod()
    groups.put(node.best_effort, "cpu.shares", "2")
    groups.put(pod.cgroup, QUOTA, "50000")
    files = (CPUS, QUOTA, "cpu.idle", "cpu.shares")
    before = [node.values(name, pod) for name in files]
    node.thresholds = replace(node.thresholds, cpu_suppress_threshold_percent=100)
    if by == "cpus":
        node.reserve(LAST)
    else:
        node.thresholds, node.protected_cores = QUOTA_POLICY, float(node.cpu_count)
    while killed:
        node.scene.ledger = ledger()
        node.scene.again()
        killed = killed_at(step, node.cycle)
        restore_all(ledger(), groups.layout, LiveHostFiles(), monotonic=time.monotonic)
        assert [node.values(name, pod) for name in files] == before, step
        step += 1
    assert step > 5


def test_what_a_kernel_refuses_is_reported_and_tried_again(groups: RealGroups) -> None:
    node = busy_node(groups)
    pod = node.add_pod()
    below = groups.make(f"{pod.containers[0].cgroup}/nested")  # of a container runtime in a pod
    report = node.cycle()
    assert report.unwritten > 0
    assert groups.get(below, CPUS) == ALL
    assert node.scene.view_of_strategies.strategies[0].state is StrategyState.ACTIVE
    groups.put(below, CPUS, ALL_BUT_LAST)
    node.cycle(120.0)
    assert node.values(CPUS, pod) == [ALL_BUT_LAST] * 3


def test_a_limit_that_changes_each_second_and_is_always_refused_is_tried_seldom(
    groups: RealGroups,
) -> None:
    node = SuppressedNode(groups)
    node.thresholds = QUOTA_POLICY
    unlisted = groups.make(f"{node.best_effort}/unlisted")  # no pod: nobody ends its quota
    groups.put(unlisted, QUOTA, "190000")
    reports = []
    for second in range(300):
        node.protected_cores = 0.5 + second % 20 * 0.05
        reports.append(node.cycle())
    assert sum(report.refused for report in reports) <= 10
    assert all(report.conditions for report in reports[1:])  # the first may be a removed group
    explainer = node.scene.reconciler.explainer()
    assert explainer is not None
    path = f"{groups.path('cpu', node.best_effort)}/{QUOTA}"
    explanation = explainer.explain_file(path)
    assert explanation is not None
    assert "refused" in explanation.refusal
    groups.put(unlisted, QUOTA, "-1")
    node.cycle(3600.0)
    assert node.values(QUOTA) != ["-1"]


def test_a_limit_that_cannot_be_lowered_is_raised_at_once(groups: RealGroups) -> None:
    node = SuppressedNode(groups)
    node.thresholds, node.protected_cores = QUOTA_POLICY, 0.6
    node.cycle()
    (limit,) = node.values(QUOTA)
    unlisted = groups.make(f"{node.best_effort}/unlisted")
    groups.put(unlisted, QUOTA, limit)
    for second in range(20):
        node.protected_cores = 0.65 + second * 0.02
        node.cycle()
    assert node.values(QUOTA) == [limit]
    node.protected_cores = 0.1
    node.cycle()
    assert int(node.values(QUOTA)[0]) > int(limit)
