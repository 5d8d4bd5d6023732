"""Pods, samples and rounds of evictions for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from agent.qos.eviction.decision import evict
from agent.qos.eviction.history import (
    CPU_LOOP,
    MEMORY_LOOP,
    EvictionHistory,
    advance_history,
    record_requests,
)
from agent.qos.eviction.state import (
    CpuSample,
    EvictionDecision,
    EvictionInputs,
    EvictionRules,
    EvictionState,
)
from agent.qos.eviction.victims import BATCH_CPU, CPU, MEMORY, MID_CPU, MID_MEMORY, EvictionPod
from agent.snapshot.pod import EvictionOutcome, EvictionRequest, EvictionResult, PodRef
from agent.snapshot.slo import ResourceThresholds

GB = 10**9
GI = 1 << 30
MEMORY_RULES = EvictionRules(loop=MEMORY_LOOP, cool_s=4.0)
CPU_RULES = EvictionRules(loop=CPU_LOOP, cool_s=20.0)


def pod(
    name: str,
    *,
    memory: int | None = None,
    cpu: int | None = None,
    batch_cpu: int = 0,
    mid_cpu: int = 0,
    mid_memory: int = 0,
    **changes: Any,
) -> EvictionPod:
    """A best-effort pod; an amount of `None` was not measured."""
    used = {CPU: cpu, MEMORY: memory}
    requests = {BATCH_CPU: batch_cpu, MID_CPU: mid_cpu, MID_MEMORY: mid_memory}
    one = EvictionPod(
        ref=PodRef(namespace="batch", name=name, uid=f"uid-{name}"),
        is_best_effort=True,
        priority=5500,
        used={key: amount for key, amount in used.items() if amount is not None},
        requests={key: amount for key, amount in requests.items() if amount},
    )
    return msgspec.structs.replace(one, **changes)


def names(pods: tuple[EvictionPod, ...] | tuple[EvictionRequest, ...]) -> list[str]:
    """The names of pods or requests, in their order."""
    return [one.ref.name if isinstance(one, EvictionPod) else one.pod.name for one in pods]


class Rounds:
    """One loop of evictions, a round a second; what a test leaves out stays as it was."""

    def __init__(self, inputs: EvictionInputs, history: EvictionHistory | None = None) -> None:
        self.inputs = inputs
        self.state = EvictionState()
        self.history = history or EvictionHistory()
        self.results: list[EvictionResult] = []
        self.last: EvictionDecision | None = None

    def run(self, now_s: float, **changes: Any) -> list[str]:
        """Run one round with a sample of this second; return who is requested."""
        changes.setdefault("now_s", now_s)
        if "sample" not in changes:
            last = self.inputs.sample or CpuSample(taken_s=now_s)
            changes["sample"] = msgspec.structs.replace(last, taken_s=now_s)
        self.inputs = msgspec.structs.replace(self.inputs, **changes)
        terminating = frozenset(one.ref.uid for one in self.inputs.pods if one.is_terminating)
        self.history = advance_history(self.history, now_s, self.results, terminating)
        self.results = []
        self.last = evict(msgspec.structs.replace(self.inputs, history=self.history), self.state)
        self.state = self.last.state
        self.history = record_requests(self.history, self.last.requests, now_s)
        return names(self.last.requests)

    def answer(self, outcome: EvictionOutcome, **changes: Any) -> None:
        """Give every request of the last round this outcome."""
        assert self.last is not None
        self.results += [
            msgspec.structs.replace(EvictionResult(request=request, outcome=outcome), **changes)
            for request in self.last.requests
        ]

    def state_of(self, feature: str) -> tuple[str, str]:
        """The state of one rule in the last round, and its reason."""
        assert self.last is not None
        report = next(one for one in self.last.reports if one.feature.value == feature)
        return report.state.value, report.reason


def memory_rounds(
    *pods: EvictionPod,
    used: int = 115 * GB,
    threshold: int = 82,
    lower: int | None = None,
    rules: EvictionRules = MEMORY_RULES,
    **changes: Any,
) -> Rounds:
    """Memory evictions of a node with 120 GB."""
    slo = ResourceThresholds(
        enable=True, memory_evict_threshold_percent=threshold, memory_evict_lower_percent=lower
    )
    inputs = EvictionInputs(
        now_s=0.0,
        slo=msgspec.structs.replace(slo, **changes),
        rules=rules,
        memory_used=used,
        memory_capacity=120 * GB,
        cpu_capacity_milli=100000,
        pods=pods,
    )
    return Rounds(inputs)


def cpu_rounds(*pods: EvictionPod, rules: EvictionRules = CPU_RULES, **changes: Any) -> Rounds:
    """CPU evictions of a node with 100 cores, of which 81 are used."""
    slo = ResourceThresholds(
        enable=True, cpu_evict_threshold_percent=80, evict_enabled_priority_threshold=5999
    )
    inputs = EvictionInputs(
        now_s=0.0,
        slo=msgspec.structs.replace(slo, **changes),
        rules=rules,
        cpu_capacity_milli=100000,
        sample=CpuSample(taken_s=0.0, node_cores=81.0),
        pods=pods,
    )
    return Rounds(inputs)
