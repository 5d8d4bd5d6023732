"""Memory that is taken back from best-effort pods before any is evicted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent.cgroup.enforcement import MemoryReclaim
from agent.cgroup.keys import HIGH, MIN
from agent.cgroup.reclaim import MemoryReclaimer
from agent.config.containers import EnforceSettings, EnforceStrategiesSettings
from agent.host.files import LiveHostFiles
from agent.qos.eviction.memory_reclaim import HOLD_S, MemoryReclaimStrategy
from agent.qos.eviction.strategies import EvictionStrategy
from agent.qos.strategies import strategies
from agent.qos.strategy import NodeCapacity, QosInputs, StrategyPlan
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSlo, ResourceThresholds
from agent.snapshot.usage import BestEffortUsage, CgroupUsage, NodeUsage, UsageSample
from tests.patience import PATIENCE_S
from tests.unit.qos.qos_node import V1, V2, DictFiles
from tests.unit.qos_eviction.evictions import GB, MEMORY_RULES, memory_rounds, pod

GIB, MIB = 1 << 30, 1 << 20
BE = "/kubepods/besteffort"
ON = ResourceThresholds(enable=True, memory_evict_threshold_percent=90)


class Node:
    """A node of 100 GiB."""

    def __init__(self) -> None:
        self.strategy = MemoryReclaimStrategy()
        self.state = self.strategy.start()
        self.files = DictFiles()
        self.now_s = 100.0
        self.inputs = QosInputs(
            now_s=0.0,
            slo=NodeSlo(thresholds=ON),
            node=NodeCapacity(memory_bytes=100 * GIB),
            layout=V2,
            current=self.files,
        )

    def run(
        self, used: int | None, current: int | None = 30 * GIB, *, seconds: float = 1.0, **more: Any
    ) -> StrategyPlan:
        self.now_s += seconds
        tier = BestEffortUsage(use=CgroupUsage(memory_with_cache_bytes=current))
        usage = UsageSample(node=NodeUsage(memory_bytes=used), best_effort=tier)
        inputs = {"now_s": self.now_s, "usage_taken_s": self.now_s, "usage": usage, **more}
        plan, self.state = self.strategy.plan(
            msgspec.structs.replace(self.inputs, **inputs), self.state
        )
        return plan


def high(plan: StrategyPlan) -> int:
    (value,) = plan.values
    assert (value.cgroup, value.key) == (BE, HIGH)
    assert isinstance(value.value, int)
    return value.value


def test_z5_five_points_below_the_threshold_memory_is_reclaimed_and_limited() -> None:
    plan = Node().run(88 * GIB)
    assert plan.reclaims == (MemoryReclaim(cgroup=BE, size_bytes=268435456),)
    assert high(plan) == 28991029248


def test_at_a_threshold_of_zero_nothing_is_limited() -> None:
    node = Node()
    slo = NodeSlo(thresholds=replace(ON, memory_evict_threshold_percent=0))
    plan = node.run(88 * GIB, slo=slo)
    assert (plan.values, plan.reclaims, plan.state) == ((), (), StrategyState.IDLE)


def test_below_that_nothing_is_limited() -> None:
    plan = Node().run(85 * GIB)
    assert (plan.values, plan.reclaims, plan.state) == ((), (), StrategyState.ACTIVE)


def test_a_small_deficit_is_reclaimed_as_it_is() -> None:
    plan = Node().run(85 * GIB + 10 * MIB)
    assert [one.size_bytes for one in plan.reclaims] == [10 * MIB]


def test_the_limit_is_never_below_what_is_protected() -> None:
    node = Node()
    node.files.put(BE, MIN, 29 * GIB)
    assert high(node.run(88 * GIB)) == 29 * GIB


def test_the_limit_is_never_below_half_of_the_usage_at_the_start() -> None:
    node = Node()
    assert high(node.run(99 * GIB, 20 * GIB)) == 10 * GIB
    assert high(node.run(99 * GIB, 12 * GIB)) == 10 * GIB
    assert high(node.run(99 * GIB, 4 * GIB)) == 10 * GIB


def test_the_limit_is_a_whole_number_of_pages() -> None:
    assert high(Node().run(86 * GIB + 12345)) % 65536 == 0


def test_the_limit_stays_for_a_while_after_the_usage_has_fallen_and_is_restored_then() -> None:
    node = Node()
    first = node.run(88 * GIB)
    entries = node.run(80 * GIB, seconds=HOLD_S - 0.1)
    assert (entries.values, entries.reclaims) == (first.values, ())
    assert node.run(80 * GIB, seconds=0.1).values == ()


def test_a_cycle_between_two_samples_reclaims_nothing_again() -> None:
    node = Node()
    first = node.run(88 * GIB)
    again = node.run(88 * GIB, seconds=0.0)
    assert (again.values, again.reclaims) == (first.values, ())


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": None},
        {"usage": UsageSample(node=NodeUsage(memory_bytes=88 * GIB))},
        {"usage": UsageSample(best_effort=BestEffortUsage())},
        {"node": NodeCapacity()},
    ],
)
def test_without_a_measurement_the_last_limit_stays(changes: dict[str, Any]) -> None:
    node = Node()
    first = node.run(88 * GIB)
    plan = node.run(88 * GIB, **changes)
    assert (plan.state, plan.values, plan.reclaims) == (StrategyState.WAITING, first.values, ())


def test_without_the_node_slo_or_on_cgroup_v1_nothing_is_limited() -> None:
    node = Node()
    node.run(88 * GIB)
    plan = node.run(88 * GIB, slo=NodeSlo())
    assert (plan.state, plan.values) == (StrategyState.IDLE, ())
    plan = node.run(88 * GIB, layout=V1)
    assert (plan.state, plan.values) == (StrategyState.UNSUPPORTED, ())


def test_with_reclaiming_on_an_eviction_follows_after_ten_seconds() -> None:
    rounds = memory_rounds(pod("p", memory=20 * GB), used=99 * GB, threshold=82)
    evicted = [rounds.run(float(second), patience_s=10.0) for second in range(12)]
    assert evicted.index(["p"]) == 10


def test_with_reclaiming_on_ten_points_above_the_threshold_are_enough() -> None:
    rounds = memory_rounds(pod("p", memory=20 * GB), used=115 * GB, threshold=82)
    assert rounds.run(1.0, patience_s=10.0) == ["p"]


def patience_s(**modes: str) -> float:
    """How long evictions for memory wait with these modes."""
    enforce = EnforceSettings(
        mode=modes.pop("mode", "on"), strategies=EnforceStrategiesSettings(**modes)
    )
    strategy = next(one for one in strategies(enforce, "") if one.name == "memory_eviction")
    assert isinstance(strategy, EvictionStrategy)
    return strategy._rules.patience_s


def test_evictions_wait_only_if_reclaiming_is_on() -> None:
    assert patience_s() == MEMORY_RULES.patience_s == 0.0
    assert patience_s(memory_reclaim="plan") == 0.0
    assert patience_s(memory_reclaim="on") == 10.0
    assert patience_s(memory_reclaim="on", mode="plan") == 0.0


def reclaim(folder: Path, size: int = 4096) -> MemoryReclaimer:
    reclaimer = MemoryReclaimer(LiveHostFiles())
    assert reclaimer.reclaim(str(folder), size)
    reclaimer.wait(PATIENCE_S)
    return reclaimer


def test_the_number_of_bytes_is_written(tmp_path: Path) -> None:
    (tmp_path / "memory.reclaim").write_text("")
    assert reclaim(tmp_path, 268435456).problem == ""
    assert (tmp_path / "memory.reclaim").read_text() == "268435456"


def test_a_kernel_without_the_file_is_no_problem(tmp_path: Path) -> None:
    assert reclaim(tmp_path).problem == ""


def test_another_refusal_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "memory.reclaim").mkdir()
    assert reclaim(tmp_path).problem.endswith(os.strerror(errno.EISDIR))


def test_while_the_kernel_works_the_next_request_is_skipped(tmp_path: Path) -> None:
    fifo = tmp_path / "memory.reclaim"
    os.mkfifo(fifo)  # opening it for writing waits for a reader
    reclaimer = MemoryReclaimer(LiveHostFiles())
    assert reclaimer.reclaim(str(tmp_path), 1)
    assert not reclaimer.reclaim(str(tmp_path), 2)
    assert fifo.read_bytes() == b"1"
    reclaimer.wait(PATIENCE_S)
    (tmp_path / "other").mkdir()
    assert reclaimer.reclaim(str(tmp_path / "other"), 3)
    reclaimer.wait(PATIENCE_S)
