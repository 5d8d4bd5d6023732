"""Rounds of evictions: how many pods, how often, and when nobody."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.qos.eviction.amounts import Formula
from agent.qos.eviction.state import CpuSample, EvictionInputs, EvictionRules
from agent.qos.eviction.victims import BATCH_CPU, MID_MEMORY, EvictionPod
from agent.snapshot.pod import EvictionOutcome
from agent.snapshot.slo import ResourceThresholds
from tests.unit.qos_eviction.evictions import (
    CPU_RULES,
    GB,
    GI,
    MEMORY_RULES,
    Rounds,
    cpu_rounds,
    memory_rounds,
    pod,
)

P1, P2, P3 = (
    pod("p1", memory=5 * GB, priority=100),
    pod("p2", memory=20 * GB, priority=100),
    pod("p3", memory=10 * GB, priority=120),
)
UPSTREAM = msgspec.structs.replace(MEMORY_RULES, formula=Formula.UPSTREAM)


def by_priority(name: str, memory: int, priority: int = 5500, **changes: Any) -> EvictionPod:
    return pod(name, memory=memory, priority=priority, is_enabled=True, **changes)


@pytest.mark.parametrize("rules", [MEMORY_RULES, UPSTREAM])
@pytest.mark.parametrize(
    ("threshold", "lower", "evicted"),
    [
        pytest.param(82, None, ["p2"], id="K1"),
        pytest.param(80, None, ["p2", "p1"], id="K2"),
        pytest.param(82, 78, ["p2", "p1"], id="K2-lower"),
        pytest.param(82, 74, ["p2", "p1", "p3"], id="K3"),
    ],
)
def test_as_many_pods_are_evicted_as_the_release_takes(
    threshold: int, lower: int | None, evicted: list[str], rules: EvictionRules
) -> None:
    rounds = memory_rounds(P1, P2, P3, threshold=threshold, lower=lower, rules=rules)
    assert rounds.run(1.0) == evicted  # more than ten points above the threshold


def test_k4_what_a_pod_releases_of_one_amount_counts_for_the_next_rule() -> None:
    slo = ResourceThresholds(
        enable=True,
        memory_evict_threshold_percent=50,
        memory_allocatable_evict_threshold_percent=100,
        memory_allocatable_evict_lower_percent=50,
        allocatable_evict_priority_threshold=7999,
    )
    batch = {"kubernetes.io/batch-memory": 1000}
    pods = (
        pod("b1", memory=3 * GI // 2, requests=batch, is_enabled=True),
        pod(
            "b2", memory=3 * GI // 4, requests={"kubernetes.io/batch-memory": 500}, is_enabled=True
        ),
        by_priority("m", 3 * GI, priority=7000, is_best_effort=False, requests={MID_MEMORY: 2000}),
    )
    rounds = Rounds(
        EvictionInputs(
            now_s=0.0,
            slo=slo,
            rules=MEMORY_RULES,
            memory_used=6 * GI,
            memory_capacity=8 * GI + GI // 3,  # 2 Gi have to go
            allocatable={"kubernetes.io/batch-memory": 600, MID_MEMORY: 1000},
            pods=pods,
        )
    )
    assert rounds.run(1.0) == ["b1", "b2", "m"]


def test_k5_nobody_else_is_evicted_while_a_pod_that_ends_releases_enough() -> None:
    marked, other = pod("marked", memory=2 * GI), pod("other", memory=GI)
    rounds = memory_rounds(marked, used=102 * GB, threshold=82)
    assert rounds.run(1.0) == []  # the next sample has to confirm it
    assert rounds.run(2.0) == ["marked"]
    rounds.answer(EvictionOutcome.EVICTED)
    before = rounds.history.last_s
    assert rounds.run(8.0, pods=(marked, other), memory_used=98 * GB + 1) == []
    assert rounds.run(30.0) == []
    assert rounds.history.last_s != before  # by the first eviction
    assert rounds.history.last_s == {"memory": 8.0}


def test_k6_another_pod_is_evicted_when_the_pods_that_end_release_too_little() -> None:
    marked, other = pod("marked", memory=GB, is_terminating=True), pod("other", memory=2 * GB)
    rounds = memory_rounds(marked, other, used=98 * GB, threshold=81, lower=80)  # 2 GB have to go
    rounds.run(1.0)
    assert rounds.run(2.0) == ["other"]


def test_k7_a_pod_that_releases_nothing_of_what_is_short_stays() -> None:
    slo = ResourceThresholds(
        enable=True,
        memory_evict_threshold_percent=99,
        memory_allocatable_evict_threshold_percent=100,
        memory_allocatable_evict_lower_percent=50,
        allocatable_evict_priority_threshold=7999,
    )
    free = by_priority("f", GI, priority=3500)
    mid = by_priority("m", GI, priority=7000, requests={MID_MEMORY: 6 * GI})
    inputs = EvictionInputs(
        now_s=0.0,
        slo=slo,
        rules=MEMORY_RULES,
        memory_used=0,
        memory_capacity=64 * GI,
        allocatable={MID_MEMORY: 2 * GI},
        pods=(free, mid),
    )
    assert Rounds(inputs).run(1.0) == ["m"]


def test_k8_used_bytes_count_as_bytes() -> None:
    x, y = by_priority("x", GB // 10, priority=100), by_priority("y", 12 * GB, priority=200)
    pods = tuple(msgspec.structs.replace(one, is_best_effort=False) for one in (x, y))
    rounds = memory_rounds(
        *pods, used=108 * GB, threshold=83, lower=82, evict_enabled_priority_threshold=5999
    )
    rounds.run(1.0)
    assert rounds.run(2.0) == ["x", "y"]


def test_k9_after_an_eviction_for_memory_the_loop_waits_four_seconds() -> None:
    rounds = memory_rounds(P1, P2, P3, threshold=70)
    rounds.run(10.0)
    rounds.answer(EvictionOutcome.EVICTED)
    more = tuple(pod(f"new{n}", memory=9 * GB) for n in range(3))
    assert rounds.run(11.0, pods=more) == []
    assert rounds.run(14.9) == []
    assert rounds.run(15.0) != []


def test_k10_after_its_start_the_loop_for_cpu_waits_twenty_seconds() -> None:
    rounds = cpu_rounds(by_priority("p", GB, used={"cpu": 5000}))
    assert rounds.run(100.0) == []
    assert rounds.run(119.9) == []
    assert rounds.run(120.0) == ["p"]


def test_the_cpu_usage_is_the_mean_of_the_window_of_the_node_slo() -> None:
    rounds = cpu_rounds(by_priority("p", GB, used={"cpu": 5000}), cpu_evict_time_window_s=30)
    for second in range(100):
        cores = 100.0 if second >= 95 else 10.0
        assert rounds.run(float(second), sample=CpuSample(taken_s=second, node_cores=cores)) == []


def test_a_high_mean_evicts_nobody_once_the_last_sample_shows_what_was_released() -> None:
    busy, other = (by_priority(name, GB, used={"cpu": 12000}) for name in ("busy", "other"))
    rounds = cpu_rounds(busy, other, cpu_evict_time_window_s=60)
    for second in range(20):
        rounds.run(float(second), sample=CpuSample(taken_s=second, node_cores=90.0))
    assert rounds.run(20.0) == ["other"]
    rounds.answer(EvictionOutcome.EVICTED)
    for second in range(21, 80):
        after = CpuSample(taken_s=second, node_cores=78.0)
        assert rounds.run(float(second), sample=after, pods=(busy,)) == []
    for second in range(80, 180):
        again = CpuSample(taken_s=second, node_cores=90.0)
        if rounds.run(float(second), sample=again):
            break
    assert 80 < second < 140  # when the mean has reached the threshold


@pytest.mark.parametrize("end", ["is gone", "has completed"])
def test_what_a_pod_used_that_ended_after_the_last_sample_counts_as_released(end: str) -> None:
    rounds = memory_rounds(P1, P2, P3)
    assert rounds.run(1.0) == ["p2"]
    rounds.answer(EvictionOutcome.EVICTED)
    ending = msgspec.structs.replace(P2, is_terminating=True)
    assert rounds.run(2.0, pods=(P1, ending, P3)) == []
    assert rounds.run(12.0) == []
    completed = msgspec.structs.replace(P2, is_active=False)
    rest = (P1, P3) if end == "is gone" else (P1, completed, P3)
    last = CpuSample(taken_s=12.0)  # it has the memory of p2
    assert rounds.run(12.4, pods=rest, sample=last) == []
    assert rounds.run(13.0, memory_used=95 * GB) == []
    assert rounds.run(17.0, memory_used=115 * GB) == ["p1", "p3"]


def test_while_pods_are_not_measured_none_of_them_counts_as_ended() -> None:
    rounds = memory_rounds(P1, P2, P3)
    assert rounds.run(1.0, memory_used=90 * GB) == []
    sample = rounds.inputs.sample
    assert rounds.run(1.5, pods=(), sample=None) == []
    assert rounds.run(1.9, pods=(P1, P2, P3), sample=sample, memory_used=115 * GB) == ["p2"]


def test_a_window_with_too_few_samples_evicts_nobody() -> None:
    rounds = cpu_rounds(by_priority("p", GB, used={"cpu": 5000}), cpu_evict_time_window_s=60)
    rounds.run(0.0)
    assert rounds.run(100.0) == []
    assert rounds.state_of("CPUEvict") == ("unmeasured", "no cpu usage of the node")


def tier_rounds(**changes: Any) -> Rounds:
    slo = ResourceThresholds(
        enable=True,
        cpu_evict_satisfaction_lower_percent=30,
        cpu_evict_satisfaction_upper_percent=40,
    )
    inputs = EvictionInputs(
        now_s=0.0,
        slo=msgspec.structs.replace(slo, **changes),
        rules=CPU_RULES,
        sample=CpuSample(
            taken_s=0.0, tier_cores=9.5, tier_request_milli=50000, tier_limit_milli=10000
        ),
        pods=tuple(pod(f"p{n}", batch_cpu=6000, cpu=n) for n in range(4)),
    )
    return Rounds(inputs)


def test_best_effort_pods_are_evicted_until_their_requests_are_satisfied() -> None:
    rounds = tier_rounds()
    rounds.run(0.0)
    assert rounds.run(20.0) == ["p3", "p2"]  # 10000 milli of batch CPU


def test_an_allocatable_amount_of_zero_counts_after_five_minutes_and_a_new_node_metric() -> None:
    rounds = tier_rounds(cpu_evict_policy="evictByAllocatable")
    assert rounds.run(0.0, allocatable={BATCH_CPU: 0}) == []
    assert rounds.run(299.0, metric_published_s=200.0) == []
    assert rounds.run(300.0, metric_published_s=-1.0) == []
    assert rounds.run(301.0, metric_published_s=None) == []
    assert rounds.run(302.0, allocatable={}) == []
    assert rounds.run(303.0, allocatable={BATCH_CPU: 0}, metric_published_s=303.0) == []
    assert len(rounds.run(603.0)) == 4


def test_two_consecutive_samples_confirm_that_memory_is_short() -> None:
    rounds = memory_rounds(P2, used=99 * GB)
    assert rounds.run(1.0) == []
    assert rounds.run(2.0, sample=CpuSample(taken_s=1.0)) == []  # the same sample again
    assert rounds.run(3.0, memory_used=90 * GB) == []
    assert rounds.run(4.0, memory_used=99 * GB) == []
    assert rounds.run(5.0, memory_used=None) == []
    assert rounds.run(6.0, memory_used=99 * GB) == []
    assert rounds.run(7.0) == ["p2"]


def test_a_rule_that_waits_names_the_pods_that_would_be_next() -> None:
    rounds = memory_rounds(P1, P2, P3, used=99 * GB)
    assert rounds.run(1.0) == []
    assert rounds.last is not None
    (report,) = (one for one in rounds.last.reports if one.feature.value == "BEMemoryEvict")
    assert (report.state.value, report.victims) == ("waiting", ("batch/p2",))
    assert report.reason == "the next sample has to confirm it"


def test_ten_points_above_the_threshold_one_sample_is_enough() -> None:
    assert memory_rounds(P2, used=111 * GB, threshold=82).run(1.0) == ["p2"]


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"memory_used": None}, "unmeasured", "no memory usage of the node"),
        ({"memory_capacity": None}, "unmeasured", "the Node has no capacity of memory"),
        ({"memory_capacity": 0}, "unmeasured", "the Node has no capacity of memory"),
        ({"has_pods": False}, "unmeasured", "the API server has not listed the pods"),
        ({"sample": None}, "unmeasured", "the last sample of usage is too old"),
        ({"sample": CpuSample(taken_s=7.9)}, "unmeasured", "the last sample of usage is too old"),
        ({"slo": ResourceThresholds()}, "off", "resourceUsedThresholdWithBE.enable is false"),
    ],
)
def test_an_input_that_is_missing_evicts_nobody(
    changes: dict[str, object], state: str, reason: str
) -> None:
    rounds = memory_rounds(P1, P2, P3)
    assert rounds.run(10.0, **changes) == []
    assert rounds.state_of("BEMemoryEvict") == (state, reason)


def test_at_most_five_pods_a_minute_are_evicted() -> None:
    rounds = memory_rounds(*(pod(f"p{n:02}", memory=GB // 2) for n in range(20)))
    evicted: list[float] = []
    for second in range(200):
        requested = rounds.run(float(second))
        rounds.answer(EvictionOutcome.EVICTED)
        removed = {f"uid-{name}" for name in requested}
        pods = tuple(one for one in rounds.inputs.pods if one.ref.uid not in removed)
        rounds.inputs = msgspec.structs.replace(rounds.inputs, pods=pods)
        evicted += [float(second)] * len(requested)
        assert sum(second - at_s < 60 for at_s in evicted) <= 5
    assert len(evicted) == 20


def test_after_a_budget_s_refusal_the_next_candidate_follows_at_once() -> None:
    rounds = memory_rounds(P1, P2, P3)
    assert rounds.run(1.0) == ["p2"]
    assert rounds.run(2.0) == []
    assert rounds.state_of("BEMemoryEvict") == ("waiting", "a request is in flight")
    rounds = memory_rounds(P1, P2, P3)
    rounds.run(1.0)
    rounds.answer(EvictionOutcome.BLOCKED)
    assert rounds.run(2.0) == ["p1", "p3"]
    rounds.answer(EvictionOutcome.EVICTED)
    assert rounds.run(3.0, memory_used=120 * GB) == []
    assert rounds.run(32.0) == ["p2"]  # its budget may allow it by now


def test_a_pod_that_was_gone_already_starts_no_cool_down() -> None:
    rounds = memory_rounds(P1, P2, P3)
    rounds.run(1.0)
    rounds.answer(EvictionOutcome.GONE)
    assert rounds.run(2.0, pods=(P1, P3)) == ["p1", "p3"]


def test_a_busy_api_server_gets_no_request_for_the_requested_time() -> None:
    rounds = memory_rounds(P1, P2, P3)
    rounds.run(1.0)
    rounds.answer(EvictionOutcome.THROTTLED, retry_after_s=7.0)
    assert rounds.run(2.0) == []
    assert rounds.state_of("BEMemoryEvict") == (
        "waiting",
        "the API server takes no requests, or does not permit them",
    )
    assert rounds.run(8.9) == []
    assert rounds.run(9.0) == ["p2"]


def test_without_the_right_to_evict_nothing_is_requested_for_a_while() -> None:
    rounds = memory_rounds(*(pod(f"p{n:02}", memory=10 * GB) for n in range(50)))
    requested: list[str] = []
    for second in range(120):
        requested += rounds.run(float(second))
        rounds.answer(EvictionOutcome.REFUSED, retry_after_s=60.0)
    assert len(requested) <= 6  # of two rounds, or three
    rounds.results.clear()
    assert rounds.state_of("BEMemoryEvict")[0] == "waiting"


def test_a_pod_whose_eviction_is_refused_alone_holds_up_no_other() -> None:
    rounds = memory_rounds(P1, P2, P3)
    assert rounds.run(1.0) == ["p2"]
    rounds.answer(EvictionOutcome.REFUSED)
    assert rounds.run(2.0) == ["p1", "p3"]


def test_a_request_without_an_answer_counts_as_an_eviction() -> None:
    rounds = memory_rounds(P2, P3)
    rounds.run(1.0)
    assert rounds.run(61.0) == []
    assert rounds.run(61.1) == []
    assert len(rounds.history.times_s) == 1


def test_a_pod_whose_end_is_stuck_counts_as_released_for_two_minutes() -> None:
    stuck = pod("stuck", memory=30 * GB, is_terminating=True)
    rounds = memory_rounds(stuck, P2)
    assert rounds.run(0.0) == []
    assert rounds.run(119.0) == []
    assert rounds.run(120.0) == ["p2"]


KILL = msgspec.structs.replace(MEMORY_RULES, kill_fallback=True)


def killable(name: str, **changes: Any) -> EvictionPod:
    return pod(name, memory=30 * GB, container_ids=(f"id-{name}",), **changes)


def test_the_runtime_stops_containers_only_far_above_the_threshold_and_after_the_budgets() -> None:
    rounds = memory_rounds(killable("a", grace_s=60), rules=KILL, used=100 * GB)
    rounds.run(0.0)
    assert rounds.run(1.0) == ["a"]
    rounds.answer(EvictionOutcome.BLOCKED)
    assert rounds.run(2.0) == []  # the budget protects it, and memory is not that short
    assert rounds.run(3.0, memory_used=112 * GB) == ["a"]
    assert rounds.last is not None
    (request,) = rounds.last.requests
    assert (request.container_ids, request.grace_s) == (("id-a",), 10)
    rounds.answer(EvictionOutcome.KILLED)
    assert rounds.run(4.0) == []
    assert rounds.run(33.9) == []
    assert rounds.run(34.0) == ["a"]  # started again by its owner


def test_without_the_setting_the_runtime_stops_nothing() -> None:
    rounds = memory_rounds(killable("a"), used=119 * GB)
    rounds.run(0.0)
    rounds.answer(EvictionOutcome.BLOCKED)
    assert [rounds.run(float(second)) for second in range(1, 30)] == [[]] * 29


def test_the_grace_of_a_kill_is_not_longer_than_the_pod_s() -> None:
    rounds = memory_rounds(killable("a", grace_s=3), rules=KILL, used=119 * GB)
    rounds.run(0.0)
    rounds.answer(EvictionOutcome.BLOCKED)
    rounds.run(1.0)
    assert rounds.last is not None
    assert [request.grace_s for request in rounds.last.requests] == [3]


def test_a_rule_that_is_switched_off_evicts_nobody() -> None:
    rules = msgspec.structs.replace(MEMORY_RULES, features=frozenset({"MemoryEvict"}))
    rounds = memory_rounds(P2, rules=rules)
    assert rounds.run(1.0) == []
    assert rounds.state_of("BEMemoryEvict") == ("off", "switched off in the settings")
