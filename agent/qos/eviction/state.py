"""Plain types of evictions: settings, inputs, what the decision remembers, reports."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from agent.qos.eviction.amounts import CPU_FEATURES, MEMORY_FEATURES, EvictionFeature, Formula
from agent.qos.eviction.history import CPU_LOOP, EvictionHistory
from agent.qos.eviction.victims import Amounts, EvictionPod
from agent.snapshot.pod import EvictionRequest
from agent.snapshot.slo import ResourceThresholds

MAX_WINDOW_S = 3600.0  # of CPU samples, however long the NodeSLO wants the window to be


class EvictionRules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one loop."""

    loop: str  # CPU_LOOP, MEMORY_LOOP
    cool_s: float  # between two evictions of the loop
    features: frozenset[str] = frozenset(one.value for one in EvictionFeature)
    patience_s: float = 0.0  # above a threshold of memory on cgroup v2, before an eviction
    max_per_minute: int = 5  # of all loops together
    kill_fallback: bool = False
    max_kill_grace_s: int = 10
    formula: Formula = Formula.EXACT

    @property
    def loop_features(self) -> tuple[EvictionFeature, ...]:
        """Return the rules of the loop in their order."""
        return CPU_FEATURES if self.loop == CPU_LOOP else MEMORY_FEATURES


class CpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """CPU usage of one cycle; `None` was not measured."""

    taken_s: float
    node_cores: float | None = None
    tier_cores: float | None = None
    tier_request_milli: int | None = None
    tier_limit_milli: int | None = None


class EvictionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the decision depends on beside its state."""

    now_s: float
    slo: ResourceThresholds
    rules: EvictionRules
    history: EvictionHistory = EvictionHistory()
    has_pods: bool = True  # the API server has listed the pods
    collect_s: float = 1.0
    patience_s: float = 0.0  # above a threshold of memory, before an eviction
    sample: CpuSample | None = None  # the last cycle; None: none yet
    memory_used: int | None = None
    cpu_capacity_milli: int | None = None
    memory_capacity: int | None = None
    allocatable: Amounts = {}  # of the resources of classes
    metric_published_s: float | None = None  # the last NodeMetric
    pods: tuple[EvictionPod, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Return whether the last cycle is recent enough to decide by."""
        return self.sample is not None and self.now_s - self.sample.taken_s <= 2 * self.collect_s


class SampleCount(msgspec.Struct, frozen=True):
    """Consecutive samples above a threshold, and the times of the first and the last one."""

    count: int
    first_s: float
    taken_s: float


class EndedPod(msgspec.Struct, frozen=True):
    """A pod that is not active any more, as it was before, and when that was noticed."""

    pod: EvictionPod
    at_s: float


class EvictionState(msgspec.Struct, frozen=True, kw_only=True):
    """What one strategy remembers; times are monotonic."""

    started_s: float | None = None  # None: not started
    samples: tuple[CpuSample, ...] = ()
    sample_counts: Mapping[str, SampleCount] = {}  # by feature
    zero_since_s: Mapping[str, float] = {}  # by resource
    active: Mapping[str, EvictionPod] = {}  # pods of the last measured round, by uid
    ended: tuple[EndedPod, ...] = ()  # whose amounts the last sample may still have


class ReportState(enum.Enum):
    """How one rule stands in one round."""

    OFF = "off"
    INVALID = "not configured"  # in the NodeSLO
    UNMEASURED = "unmeasured"
    CALM = "calm"  # nothing has to be released
    WAITING = "waiting"  # cool-down, the limit per minute, a request in flight, or a second sample
    EVICTING = "evicting"
    NO_VICTIM = "no victim"


class EvictionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule wants to release, and from which pods."""

    feature: EvictionFeature
    state: ReportState
    reason: str = ""
    release: Amounts = {}
    victims: tuple[str, ...] = ()  # namespace/name; while it waits, those that would be next


class EvictionDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one round."""

    requests: tuple[EvictionRequest, ...] = ()
    state: EvictionState
    reports: tuple[EvictionReport, ...] = ()
