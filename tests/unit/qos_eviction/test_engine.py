"""Modes, frozen NodeSLOs and the brake: what becomes of evictions and files of strategies."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.enforcement import EnforcementPlan
from agent.cgroup.keys import QUOTA
from agent.cgroup.write_plan import DesiredValue
from agent.config.containers import BrakeSettings
from agent.qos.engine import QosEngine
from agent.qos.strategy import QosInputs, StrategyPlan
from agent.snapshot.cluster import ClusterView
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import (
    EvictionFeedback,
    EvictionOutcome,
    EvictionRequest,
    EvictionResult,
    PodRef,
)
from agent.snapshot.slo import NodeSlo, NodeSloView, ResourceThresholds
from tests.unit.qos.qos_node import V2, DictFiles

VALUE = DesiredValue(cgroup="/kubepods", key=QUOTA, value=Bandwidth(1000), owner="cpu_eviction")


def request(name: str, feature: str = "CPUEvict") -> EvictionRequest:
    return EvictionRequest(pod=PodRef(namespace="n", name=name, uid=name), feature=feature)


class Greedy:
    """Requests a pod unless the history has it."""

    def __init__(self, name: str, pod: str = "p") -> None:
        self.name = name
        self.pod = pod
        self.inputs: list[QosInputs] = []

    def start(self) -> int:
        return 0

    def plan(self, inputs: QosInputs, state: int) -> tuple[StrategyPlan, int]:
        self.inputs.append(inputs)
        is_known = self.pod in inputs.evictions.ending(inputs.now_s)
        evictions = () if is_known else (request(self.pod),)
        return StrategyPlan(values=(VALUE,), evictions=evictions), state + 1


class Cycles:
    """An engine whose NodeSLO is fresh."""

    def __init__(
        self, *strategies: Greedy, modes: Mapping[str, str] | None = None, brake: int = 100
    ) -> None:
        names = {strategy.name: "on" for strategy in strategies}
        settings = BrakeSettings(max_refusals=brake, max_evictions=brake, window_s=600, hold_s=60)
        self.engine = QosEngine(strategies, {**names, **(modes or {})}, 1.0, 1800.0, settings)
        self.now_s = 0.0
        self.feedback = EvictionFeedback()
        self.slo = NodeSlo()

    def run(self, seconds: float = 1.0, *, age_s: float = 0.0) -> EnforcementPlan:
        self.now_s += seconds
        slo = SnapshotPart(NodeSloView(slo=self.slo), self.now_s - age_s)
        snapshot = NodeSnapshot(node=NodeIdentity(name="n"), cluster=ClusterView(slo=slo))
        feedback, self.feedback = self.feedback, EvictionFeedback()
        return self.engine.plan(snapshot, V2, DictFiles(), self.now_s, feedback)

    def answer(self, outcome: EvictionOutcome, *names: str) -> None:
        results = tuple(EvictionResult(request=request(name), outcome=outcome) for name in names)
        self.feedback = EvictionFeedback(results=results)


def test_the_second_strategy_knows_what_the_first_one_requested_in_the_same_cycle() -> None:
    cycles = Cycles(Greedy("cpu_eviction"), Greedy("memory_eviction"))
    assert len(cycles.run().evictions) == 1
    assert cycles.run().evictions == ()


def test_in_plan_mode_requests_are_marked_as_planned() -> None:
    cycles = Cycles(Greedy("cpu_eviction"), modes={"cpu_eviction": "plan"})
    assert [eviction.is_planned for eviction in cycles.run().evictions] == [True]
    cycles = Cycles(Greedy("cpu_eviction"))
    assert [eviction.is_planned for eviction in cycles.run().evictions] == [False]


def test_what_is_only_planned_keeps_no_other_strategy_from_evicting() -> None:
    cpu, memory = Greedy("cpu_eviction"), Greedy("memory_eviction")
    cycles = Cycles(cpu, memory, modes={"cpu_eviction": "plan"})
    assert [one.is_planned for one in cycles.run().evictions] == [True, False]
    planned = EvictionResult(
        request=msgspec.structs.replace(request("p"), is_planned=True),
        outcome=EvictionOutcome.PLANNED,
    )
    cycles.feedback = EvictionFeedback(results=(planned,))
    assert cycles.run().evictions == ()
    history = memory.inputs[-1].evictions
    assert (list(history.in_flight), history.times_s) == (["p"], ())


def test_a_pod_that_was_planned_while_the_brake_held_is_evicted_afterwards() -> None:
    cycles = Cycles(Greedy("cpu_eviction"), brake=2)
    cycles.engine.record_refusals(3, cycles.now_s)
    assert [one.is_planned for one in cycles.run().evictions] == [True]
    assert [one.is_planned for one in cycles.run(60.0).evictions] == [False]


def test_while_the_node_slo_is_frozen_nobody_is_evicted() -> None:
    strategy = Greedy("cpu_eviction")
    cycles = Cycles(strategy)
    assert cycles.run(age_s=1801.0).evictions == ()
    assert strategy.inputs == []


def test_with_the_mode_off_nobody_is_evicted() -> None:
    cycles = Cycles(Greedy("cpu_eviction"), modes={"cpu_eviction": "off"})
    assert cycles.run().evictions == ()


def test_a_strategy_that_is_off_says_so_only_if_the_node_slo_asks_for_it() -> None:
    cycles = Cycles(Greedy("cpu_eviction"), modes={"cpu_eviction": "off"})
    assert [strategy.message for strategy in cycles.run().view.strategies] == [""]
    thresholds = ResourceThresholds(enable=True, cpu_evict_threshold_percent=80)
    cycles.slo = NodeSlo(thresholds=thresholds)
    assert [strategy.message for strategy in cycles.run().view.strategies] == [
        "NodeSLO spec.resourceUsedThresholdWithBE.cpuEvictThresholdPercent asks for it;"
        " enforce.strategies.cpu_eviction or enforce.mode is off"
    ]


def test_while_the_brake_holds_files_and_pods_stay_as_they_are() -> None:
    cycles = Cycles(Greedy("cpu_eviction"), brake=2)
    plan = cycles.run()
    assert (len(plan.enforced), len(plan.planned), plan.decided) == (
        1,
        0,
        frozenset({"cpu_eviction"}),
    )
    cycles.engine.record_refusals(3, cycles.now_s)
    plan = cycles.run(2.0)
    assert (len(plan.enforced), len(plan.planned), plan.decided) == (0, 1, frozenset())
    assert plan.view.brake == "3 writes were refused within 10 minutes"
    assert [strategy.mode for strategy in plan.view.strategies] == ["plan"]
    plan = cycles.run(58.0)
    assert (len(plan.enforced), plan.view.brake) == (1, "")


def test_evictions_count_for_the_brake() -> None:
    cycles = Cycles(Greedy("cpu_eviction"), brake=1)
    cycles.run()
    cycles.answer(EvictionOutcome.EVICTED, "p", "q")
    assert cycles.run().view.brake == "2 pods were evicted within 10 minutes"


def test_planned_and_blocked_evictions_do_not_count_for_the_brake() -> None:
    cycles = Cycles(Greedy("cpu_eviction"), brake=1)
    cycles.run()
    cycles.answer(EvictionOutcome.BLOCKED, "p", "q", "r")
    assert cycles.run().view.brake == ""
    cycles.answer(EvictionOutcome.PLANNED, "p", "q", "r")
    assert cycles.run().view.brake == ""
