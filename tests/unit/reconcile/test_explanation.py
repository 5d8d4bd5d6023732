"""Why files have their values, on real groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import CPUS, QUOTA
from agent.cgroup.ledger import SYSCTL_HIERARCHY, LedgerEntry
from agent.cgroup.write_plan import DesiredValue
from agent.qos.strategy import StrategyPlan
from agent.reconcile.explanation import FileExplainer
from agent.snapshot.container import Adjustment, LinuxResources
from agent.snapshot.self_check import FileExplanation
from tests.realgroups import RealGroups, needs_v1, real_groups
from tests.unit.reconcile.scene import CannedHook, Scene
from tests.unit.reconcile.test_strategies import CannedStrategy, scene_with

pytestmark = [needs_v1, pytest.mark.root]
SOURCE = "NodeSLO spec.cpuBurstStrategy.policy"


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def burst_plan(scene: Scene, quota_us: int) -> StrategyPlan:
    desired = DesiredValue(
        cgroup=scene.pod,
        key=QUOTA,
        value=Bandwidth(quota_us),
        owner="cpu_burst",
        message=f"update quota to {quota_us}",
        source=SOURCE,
    )
    return StrategyPlan(values=(desired,))


def explainer(scene: Scene) -> FileExplainer:
    created = scene.reconciler.explainer()
    assert created is not None
    return created


def explained(scene: Scene, groups: RealGroups, name: str) -> FileExplanation:
    directory = groups.layout.directory("cpu", scene.pod)
    file = explainer(scene).explain_file(f"{directory}/{name}")
    assert file is not None
    return file


def test_winner_and_losers_are_named_with_original_and_writes(groups: RealGroups) -> None:
    strategy, hook = CannedStrategy(), CannedHook("batch_resources")
    hook.answers = {None: Adjustment(resources=LinuxResources(quota_us=80000, period_us=100000))}
    scene = scene_with(groups, strategy, hook)
    strategy.answer = burst_plan(scene, 50000)
    scene.cycle()
    result = explained(scene, groups, "cpu.cfs_quota_us")
    assert result.current == "50000"
    assert [(request.owner, request.value, request.wins) for request in result.requests] == [
        ("cpu_burst", "50000 100000", True),
        ("batch_resources", "80000 100000", False),
    ]
    assert result.requests[0].source == SOURCE
    assert (result.original, result.owner) == ("-1 100000", "cpu_burst")
    assert result.own_values == ("50000 100000",)
    assert [(change.old, change.new, change.source) for change in result.changes] == [
        ("-1 100000", "50000 100000", SOURCE)
    ]
    assert (result.refusal, result.is_contested) == ("", False)


def test_a_refusal_says_when_it_is_tried_again(groups: RealGroups) -> None:
    strategy = CannedStrategy()
    scene = scene_with(groups, strategy)
    desired = DesiredValue(
        cgroup=scene.container, key=CPUS, value=frozenset({4000}), owner="cpu_burst"
    )
    strategy.answer = StrategyPlan(values=(desired,))
    scene.cycle()
    directory = groups.layout.directory("cpuset", scene.container)
    file = explainer(scene).explain_file(f"{directory}/cpuset.cpus")
    assert file is not None
    assert "the next attempt is in" in file.refusal
    assert file.changes[-1].errno


def test_what_is_planned_only_does_not_win(groups: RealGroups) -> None:
    strategy = CannedStrategy()
    scene = scene_with(groups, strategy)
    scene.modes["cpu_burst"] = "plan"
    scene.again()
    strategy.answer = burst_plan(scene, 50000)
    scene.cycle()
    result = explained(scene, groups, "cpu.cfs_quota_us")
    assert [(request.mode, request.wins) for request in result.requests] == [("plan", False)]
    assert (result.current, result.original) == ("-1", None)


def test_a_file_without_desired_values_has_only_its_value(groups: RealGroups) -> None:
    scene = scene_with(groups, CannedStrategy())
    scene.cycle()
    result = explained(scene, groups, "cpu.shares")
    assert (result.current, result.requests, result.original) == ("1024", (), None)


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/sys/fs/cgroup/../../../etc/shadow", "", "/", "/proc/self/mem"]
)
def test_files_that_the_agent_never_writes_are_not_read(groups: RealGroups, path: str) -> None:
    scene = scene_with(groups, CannedStrategy())
    scene.cycle()
    assert explainer(scene).explain_file(path) is None
    directory = groups.layout.directory("cpu", scene.pod)
    assert explainer(scene).explain_file(f"{directory}/../../cpu.none") is None


def test_all_files_of_a_pod_are_explained_with_those_of_its_containers(groups: RealGroups) -> None:
    strategy, hook = CannedStrategy(), CannedHook()
    hook.answers = {"app": Adjustment(resources=LinuxResources(cpus="1"))}
    scene = scene_with(groups, strategy, hook)
    strategy.answer = burst_plan(scene, 50000)
    scene.cycle()
    group = explainer(scene).explain_group(scene.pod)
    assert [(one.path.rpartition("/")[2], one.current) for one in group] == [
        ("cpu.cfs_quota_us", "50000"),
        ("cpuset.cpus", "1"),
    ]
    assert explainer(scene).explain_group("/kubepods/none") == ()


def test_a_switch_of_the_kernel_that_a_hook_needs_is_explained_from_the_ledger(
    groups: RealGroups,
) -> None:
    scene = scene_with(groups, CannedStrategy())
    path = "/proc/sys/kernel/ostype"
    entry = LedgerEntry(
        hierarchy=SYSCTL_HIERARCHY,
        path=path,
        inode=0,
        key="value",
        owner="core_scheduling",
        original="0",
        own_values=("1",),
    )
    scene.ledger.set(entry)
    scene.cycle()
    scene.ledger.set(entry)  # its hook is off, so that the cycle has restored it
    file = explainer(scene).explain_file(path)
    assert file is not None
    assert (file.current, file.original, file.owner) == (
        "Linux",
        "0",
        "core_scheduling",
    )
    assert file.own_values == ("1",)


def test_an_unchanged_cycle_does_not_build_the_desired_files_again(groups: RealGroups) -> None:
    strategy, hook = CannedStrategy(), CannedHook()
    hook.answers = {"app": Adjustment(resources=LinuxResources(cpus="1"))}
    scene = scene_with(groups, strategy, hook)
    strategy.answer = burst_plan(scene, 50000)
    scene.cycle()
    files = scene.reconciler.desired_files
    scene.cycle()
    assert scene.reconciler.desired_files is files
    strategy.answer = burst_plan(scene, 60000)
    scene.cycle()
    assert scene.reconciler.desired_files is not files


def test_before_the_first_cycle_nothing_can_be_explained(groups: RealGroups) -> None:
    assert scene_with(groups, CannedStrategy()).reconciler.explainer() is None
