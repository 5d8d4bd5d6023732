"""Random nodes, answers and clocks: what evictions never do."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent.qos.eviction.decision import evict
from agent.qos.eviction.history import (
    EvictionHistory,
    advance_history,
    record_requests,
)
from agent.qos.eviction.state import CpuSample, EvictionInputs, EvictionState
from agent.qos.eviction.victims import EvictionPod
from agent.snapshot.pod import EvictionOutcome, EvictionRequest, EvictionResult
from agent.snapshot.slo import ResourceThresholds
from tests.unit.qos_eviction.evictions import CPU_RULES, GB, MEMORY_RULES, pod

SLO = ResourceThresholds(
    enable=True,
    memory_evict_threshold_percent=70,
    cpu_evict_threshold_percent=60,
    cpu_evict_satisfaction_lower_percent=50,
    cpu_evict_satisfaction_upper_percent=80,
    evict_enabled_priority_threshold=7000,
    allocatable_evict_priority_threshold=7000,
    cpu_allocatable_evict_threshold_percent=100,
    cpu_allocatable_evict_lower_percent=90,
    memory_allocatable_evict_threshold_percent=100,
    memory_allocatable_evict_lower_percent=90,
)
ALLOCATABLE = {
    f"kubernetes.io/{name}": 3000 for name in ("batch-cpu", "mid-cpu", "batch-memory", "mid-memory")
}


class Node(RuleBasedStateMachine):
    """Both loops of one node, with an API server that answers anything."""

    @initialize(kill=st.booleans())
    def start(self, kill: bool) -> None:
        change = {"kill_fallback": kill}
        self.loops = [msgspec.structs.replace(one, **change) for one in (CPU_RULES, MEMORY_RULES)]
        self.kill = kill
        self.states = [EvictionState(), EvictionState()]
        self.history = EvictionHistory()
        self.now_s = 0.0
        self.pods: dict[str, EvictionPod] = {}
        self.count = 0
        self.waiting: list[EvictionRequest] = []
        self.results: list[EvictionResult] = []
        self.used = 0
        self.cores: float | None = 0.0

    @rule(
        priority=st.sampled_from([3500, 5500, 7000, 9500]),
        protection=st.sampled_from(["", "", "", "namespace kube-system"]),
        memory=st.one_of(st.none(), st.integers(0, 40 * GB)),
        cpu=st.one_of(st.none(), st.integers(0, 20000)),
        batch_cpu=st.integers(0, 5000),
        features=st.sampled_from([None, None, frozenset(), frozenset({"MemoryEvict"})]),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def add_pod(
        self,
        priority: int,
        protection: str,
        memory: int | None,
        cpu: int | None,
        batch_cpu: int,
        features: frozenset[str] | None,
        flags: tuple[bool, bool, bool],
    ) -> None:
        self.count += 1
        is_best_effort, is_enabled, is_active = flags
        one = pod(
            f"p{self.count}",
            memory=memory,
            cpu=cpu,
            batch_cpu=batch_cpu,
            priority=priority,
            protection=protection,
            features=features,
            is_best_effort=is_best_effort,
            is_enabled=is_enabled,
            is_active=is_active,
            container_ids=(f"c{self.count}",),
        )
        self.pods[one.ref.uid] = one

    @rule(used=st.integers(0, 120 * GB), cores=st.one_of(st.none(), st.floats(0.0, 100.0)))
    def load(self, used: int, cores: float | None) -> None:
        self.used, self.cores = used, cores

    @rule(outcome=st.sampled_from(list(EvictionOutcome)), wait=st.one_of(st.none(), st.just(3.0)))
    def answer(self, outcome: EvictionOutcome, wait: float | None) -> None:
        if self.waiting:
            request = self.waiting.pop(0)
            self.results.append(
                EvictionResult(request=request, outcome=outcome, retry_after_s=wait)
            )
            uid = request.pod.uid
            if outcome is EvictionOutcome.EVICTED and uid in self.pods:
                self.pods[uid] = msgspec.structs.replace(self.pods[uid], is_terminating=True)
            if outcome is EvictionOutcome.GONE:
                self.pods.pop(uid, None)

    @rule(index=st.integers(0, 100))
    def remove_pod(self, index: int) -> None:
        if self.pods:
            del self.pods[sorted(self.pods)[index % len(self.pods)]]

    @rule(step_s=st.sampled_from([0.5, 1.0, 1.0, 5.0, 30.0]), missing=st.sampled_from(
        [None, None, None, None, "memory_used", "memory_capacity", "cpu_capacity_milli", "sample"]
    ), lists=st.sampled_from([True, True, True, False]))  # fmt: skip
    def run_round(self, step_s: float, missing: str | None, lists: bool) -> None:
        self.now_s += step_s
        pods = tuple(self.pods.values())
        terminating = frozenset(one.ref.uid for one in pods if one.is_terminating)
        self.history = advance_history(self.history, self.now_s, self.results, terminating)
        self.results = []
        for index, rules in enumerate(self.loops):
            inputs = EvictionInputs(
                now_s=self.now_s,
                slo=SLO,
                rules=rules,
                history=self.history,
                has_pods=lists,
                sample=CpuSample(
                    taken_s=self.now_s,
                    node_cores=self.cores,
                    tier_cores=9.0,
                    tier_request_milli=30000,
                    tier_limit_milli=10000,
                ),
                memory_used=self.used,
                memory_capacity=120 * GB,
                cpu_capacity_milli=100000,
                allocatable=ALLOCATABLE,
                pods=pods,
            )
            if missing is not None:
                inputs = msgspec.structs.replace(inputs, **{missing: None})
            decision = evict(inputs, self.states[index])
            self.states[index] = decision.state
            self._check(inputs, decision.requests, lists, missing)
            self.history = record_requests(self.history, decision.requests, self.now_s)
            self.waiting += decision.requests

    def _check(
        self,
        inputs: EvictionInputs,
        requests: tuple[EvictionRequest, ...],
        lists: bool,
        missing: str | None,
    ) -> None:
        if not lists or missing == "sample":
            assert not requests
        uids = [one.pod.uid for one in requests]
        assert len(uids) == len(set(uids))
        assert not inputs.history.in_flight.keys() & set(uids)
        for request in requests:
            victim = self.pods[request.pod.uid]
            assert not victim.protection
            assert victim.is_active
            assert not victim.is_terminating
            assert victim.features is None or request.feature in victim.features
            assert victim.is_best_effort or victim.priority <= 7000
            assert self.kill or not request.container_ids
            assert request.grace_s <= 10
            if request.feature in ("BEMemoryEvict", "MemoryEvict"):
                assert missing not in ("memory_used", "memory_capacity")
                assert self.used * 100 >= 120 * GB * 70
                assert victim.used.get("memory", 0) > 0

    @invariant()
    def never_more_than_the_limit_within_a_minute(self) -> None:
        assert getattr(self, "history", EvictionHistory()).spent() <= 5


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
