"""What becomes of the values that strategies want, on real groups."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import CPUS, QUOTA
from agent.cgroup.write_plan import DesiredValue
from agent.config.containers import BrakeSettings
from agent.qos.strategy import QosInputs, StrategyPlan
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import Adjustment, LinuxResources
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSloView
from tests.realgroups import RealGroups, needs_v1, real_groups
from tests.unit.reconcile.scene import CannedHook, Scene

pytestmark = [needs_v1, pytest.mark.root]


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


class CannedStrategy:
    """Wants what a test puts into `answer`; an exception is raised."""

    name = "cpu_burst"

    def __init__(self) -> None:
        self.answer: StrategyPlan | Exception = StrategyPlan()
        self.calls = 0

    def start(self) -> int:
        return 0

    def plan(self, inputs: QosInputs, state: int) -> tuple[StrategyPlan, int]:  # noqa: ARG002 - as its Protocol
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer, state + 1


def quota(scene: Scene, quota_us: int) -> StrategyPlan:
    value = Bandwidth(quota_us=quota_us, period_us=100000)
    desired = DesiredValue(cgroup=scene.pod, key=QUOTA, value=value, owner="cpu_burst")
    return StrategyPlan(values=(desired,))


def scene_with(groups: RealGroups, strategy: CannedStrategy, *hooks: CannedHook) -> Scene:
    scene = Scene(groups, *hooks, strategies=(strategy,))
    cluster = ClusterView(slo=SnapshotPart(NodeSloView(), scene.clock.monotonic()))
    scene.snapshot = msgspec.structs.replace(scene.snapshot, cluster=cluster)
    return scene


def quota_of(groups: RealGroups, scene: Scene) -> str:
    return groups.get(scene.pod, "cpu.cfs_quota_us")


def test_a_value_that_a_strategy_does_not_desire_any_more_is_restored_in_the_same_cycle(
    groups: RealGroups,
) -> None:
    strategy = CannedStrategy()
    scene = scene_with(groups, strategy)
    strategy.answer = quota(scene, 50000)
    assert scene.cycle().written == 1
    assert quota_of(groups, scene) == "50000"
    strategy.answer = StrategyPlan(state=StrategyState.IDLE)
    scene.cycle()
    assert quota_of(groups, scene) == "-1"
    assert not scene.ledger.entries


def test_a_strategy_wins_over_a_hook_and_the_hook_gets_its_value_back_afterwards(
    groups: RealGroups,
) -> None:
    strategy, hook = CannedStrategy(), CannedHook("batch_resources")
    hook.answers = {None: Adjustment(resources=LinuxResources(quota_us=80000, period_us=100000))}
    scene = scene_with(groups, strategy, hook)
    strategy.answer = quota(scene, 50000)
    scene.cycle()
    assert quota_of(groups, scene) == "50000"
    assert scene.cycle().written == 0
    strategy.answer = StrategyPlan(state=StrategyState.IDLE)
    scene.cycle()
    assert quota_of(groups, scene) == "80000"


def test_while_the_brake_holds_a_hook_does_not_write_over_the_value_of_a_strategy(
    groups: RealGroups,
) -> None:
    strategy, hook = CannedStrategy(), CannedHook("batch_resources")
    hook.answers = {None: Adjustment(resources=LinuxResources(quota_us=80000, period_us=100000))}
    scene = scene_with(groups, strategy, hook)
    strategy.answer = quota(scene, 50000)
    scene.cycle()
    scene.engine.record_refusals(BrakeSettings().max_refusals + 1, scene.clock.monotonic())
    hook.answers["app"] = Adjustment(resources=LinuxResources(cpus="1"))
    scene.renew()
    assert scene.cycle().written == 1
    assert scene.view_of_strategies.brake
    assert groups.get(scene.container, CPUS.name) == "1"
    assert quota_of(groups, scene) == "50000"


@pytest.mark.parametrize("state", [StrategyState.WAITING, StrategyState.FROZEN])
def test_a_strategy_that_cannot_decide_leaves_its_earlier_values(
    groups: RealGroups, state: StrategyState
) -> None:
    strategy = CannedStrategy()
    scene = scene_with(groups, strategy)
    strategy.answer = quota(scene, 50000)
    scene.cycle()
    strategy.answer = StrategyPlan(state=state)
    scene.again()  # a new agent, which has no plan of its own yet
    scene.cycle(100.0)
    assert quota_of(groups, scene) == "50000"
    assert scene.view_of_strategies.strategies[0].state is state


def test_a_stale_slo_freezes_values_and_strategies_are_not_called(groups: RealGroups) -> None:
    strategy = CannedStrategy()
    scene = scene_with(groups, strategy)
    strategy.answer = quota(scene, 50000)
    scene.cycle()
    strategy.answer, calls = StrategyPlan(state=StrategyState.IDLE), strategy.calls
    scene.cycle(7200.0)
    assert quota_of(groups, scene) == "50000"
    assert strategy.calls == calls
    assert scene.view_of_strategies.strategies[0].state is StrategyState.FROZEN


def test_a_bug_of_a_strategy_leaves_its_values_and_does_not_stop_hooks(groups: RealGroups) -> None:
    strategy, hook = CannedStrategy(), CannedHook()
    scene = scene_with(groups, strategy, hook)
    strategy.answer = quota(scene, 50000)
    scene.cycle()
    strategy.answer = ValueError("oops")
    hook.answers = {"app": Adjustment(resources=LinuxResources(cpus="1"))}
    scene.renew()
    scene.cycle()
    assert quota_of(groups, scene) == "50000"
    assert groups.get(scene.container, CPUS.name) == "1"
    assert scene.view_of_strategies.strategies[0].state is StrategyState.FAILED


def test_in_plan_mode_nothing_is_written_and_the_value_is_recorded_once(groups: RealGroups) -> None:
    strategy = CannedStrategy()
    scene = scene_with(groups, strategy)
    scene.modes["cpu_burst"] = "plan"
    scene.again()
    strategy.answer = quota(scene, 50000)
    assert scene.cycle().planned == 1
    scene.cycle()
    assert quota_of(groups, scene) == "-1"
    assert [(audit.new, audit.planned) for audit in scene.reconciler.audits] == [
        ("50000 100000", True)
    ]


def test_a_strategy_that_is_switched_off_has_its_values_restored(groups: RealGroups) -> None:
    strategy = CannedStrategy()
    scene = scene_with(groups, strategy)
    strategy.answer = quota(scene, 50000)
    scene.cycle()
    scene.modes["cpu_burst"] = "off"
    scene.again()
    scene.cycle()
    assert quota_of(groups, scene) == "-1"


def test_a_value_of_a_strategy_that_the_kernel_refuses_is_a_condition_until_it_is_taken(
    groups: RealGroups,
) -> None:
    strategy = CannedStrategy()
    scene = scene_with(groups, strategy)
    groups.put(groups.root, "cpu.cfs_quota_us", "20000")
    strategy.answer = quota(scene, 50000)
    (condition,) = scene.cycle().conditions
    assert condition.reason == "ValueRefused"
    assert f"cpu.cfs_quota_us of {scene.pod} to '50000 100000'" in condition.message
    assert scene.cycle().conditions == (condition,)
    groups.put(groups.root, "cpu.cfs_quota_us", "-1")
    assert scene.cycle(61.0).conditions == ()
    assert quota_of(groups, scene) == "50000"
