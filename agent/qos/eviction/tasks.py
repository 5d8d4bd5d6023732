"""What each rule of evictions has to release in this round, or why it releases nothing."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Final

import msgspec

from agent.qos.eviction.amounts import (
    BestEffortCpu,
    EvictionFeature,
    Formula,
    UsageLimits,
    allocatable_limits,
    allocatable_release,
    configuration_problem,
    is_over,
    satisfaction_release,
    usage_limits,
    usage_release,
)
from agent.qos.eviction.state import (
    MAX_WINDOW_S,
    CpuSample,
    EvictionInputs,
    EvictionReport,
    EvictionState,
    ReportState,
    SampleCount,
)
from agent.qos.eviction.victims import (
    BATCH_CPU,
    MEMORY,
    REQUEST_FEATURES,
    Amounts,
    EvictionPod,
    priority_threshold,
    requested_resources,
    used_resource,
    victims,
)

SAMPLES_BEFORE_MEMORY = 2  # consecutive ones above the threshold
URGENT_PERCENT = 10  # above the threshold: one sample is enough, and the runtime may kill
ZERO_LASTS_S = 300.0  # an allocatable amount of 0 is believed after that

_taken_s = attrgetter("taken_s")

ReleaseTarget = str
USAGE: Final[ReleaseTarget] = "usage"
REQUESTS: Final[ReleaseTarget] = "requests"


class EvictionTask(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that has something to release in this round."""

    feature: EvictionFeature
    release: Amounts
    victims: tuple[EvictionPod, ...]
    is_confirmed: bool = True  # else the next sample has to confirm it
    may_kill: bool = False

    @property
    def target(self) -> ReleaseTarget:
        """Return which amounts of pods count as released."""
        return REQUESTS if self.feature in REQUEST_FEATURES else USAGE


class TaskBuilder:
    """Computes what each rule of one loop has to release."""

    def __init__(self, inputs: EvictionInputs, state: EvictionState) -> None:
        self.tasks: list[EvictionTask] = []
        self.sample_counts: dict[str, SampleCount] = dict(state.sample_counts)
        self._inputs = inputs
        self._state = state

    def add(self, feature: EvictionFeature) -> EvictionReport:
        """Add the task of a rule if it has one; return how the rule stands."""
        inputs = self._inputs
        state, reason = _state_without_evaluation(feature, inputs)
        if state is not None:  # the next sample above the threshold is the first one again
            self.sample_counts.pop(feature.value, None)
            return EvictionReport(feature=feature, state=state, reason=reason)
        release, missing = self._release(feature)
        if missing:
            self.sample_counts.pop(feature.value, None)
            return EvictionReport(feature=feature, state=ReportState.UNMEASURED, reason=missing)
        if not release:
            self.sample_counts.pop(feature.value, None)
            return EvictionReport(feature=feature, state=ReportState.CALM)
        is_urgent, is_confirmed = self._is_urgent(feature), self._is_confirmed(feature)
        self.tasks.append(
            EvictionTask(
                feature=feature,
                release=release,
                victims=victims(feature, inputs.pods, inputs.slo),
                is_confirmed=is_urgent or is_confirmed,
                may_kill=is_urgent and inputs.rules.kill_fallback,
            )
        )
        return EvictionReport(feature=feature, state=ReportState.EVICTING, release=release)

    def _release(self, feature: EvictionFeature) -> tuple[Amounts, str]:
        """Return what has to be released by resource, and why that is not known."""
        match feature:
            case EvictionFeature.BE_CPU:
                return self._satisfaction()
            case EvictionFeature.CPU_ALLOCATABLE | EvictionFeature.MEMORY_ALLOCATABLE:
                return self._allocatable(feature)
            case _:
                return self._usage(feature)

    def _usage(self, feature: EvictionFeature) -> tuple[Amounts, str]:
        inputs, limits = self._inputs, usage_limits(feature, self._inputs.slo)
        resource = used_resource(feature)
        used, capacity = self.used(resource), self.capacity(resource)
        if used is None:
            return {}, f"no {resource} usage of the node"
        if capacity is None or capacity <= 0:
            return {}, f"the Node has no capacity of {resource}"
        release = usage_release(used, capacity, limits or UsageLimits(100, 0), inputs.rules.formula)
        return ({resource: release} if release > 0 else {}), ""

    def used(self, resource: str) -> int | None:
        """Return the node's memory usage, or its CPU usage; `None`: it is not measured.

        That of CPU is the mean of the window, or the last sample's if that is less: the mean still
        has what was released meanwhile. Koordinator takes the mean.
        """
        if resource == MEMORY:
            return self._inputs.memory_used
        samples = window(self._inputs, self._state)
        cores = [sample.node_cores for sample in samples if sample.node_cores is not None]
        if not _has_enough(len(cores), self._inputs):
            return None
        mean = sum(cores) / len(cores)
        is_exact = self._inputs.rules.formula is Formula.EXACT
        return int(1000 * (min(mean, cores[-1]) if is_exact else mean))

    def capacity(self, resource: str) -> int | None:
        """Return what the node has of a resource; `None`: it is not known."""
        inputs = self._inputs
        return inputs.memory_capacity if resource == MEMORY else inputs.cpu_capacity_milli

    def _is_urgent(self, feature: EvictionFeature) -> bool:
        """Return whether memory is so short that one sample is enough."""
        if feature not in (EvictionFeature.BE_MEMORY, EvictionFeature.MEMORY):
            return False
        used, capacity = self._inputs.memory_used, self._inputs.memory_capacity
        limits = usage_limits(feature, self._inputs.slo)
        if used is None or not capacity or limits is None:
            return False
        return is_over(used, capacity, limits.threshold + URGENT_PERCENT)

    def _is_confirmed(self, feature: EvictionFeature) -> bool:
        """Count this sample; return whether enough consecutive ones were above the threshold."""
        sample = self._inputs.sample
        if feature not in (EvictionFeature.BE_MEMORY, EvictionFeature.MEMORY) or sample is None:
            return True
        last = self.sample_counts.get(feature.value, SampleCount(0, sample.taken_s, 0.0))
        if last.count == 0 or sample.taken_s > last.taken_s:
            count = min(last.count + 1, SAMPLES_BEFORE_MEMORY)
            last = SampleCount(count, last.first_s, sample.taken_s)
        self.sample_counts[feature.value] = last
        is_lasting = last.taken_s - last.first_s >= self._inputs.patience_s
        return last.count >= SAMPLES_BEFORE_MEMORY and is_lasting

    def _satisfaction(self) -> tuple[Amounts, str]:
        inputs = self._inputs
        if inputs.slo.cpu_evict_policy == "evictByAllocatable":
            limit = self._allocatable_amount(BATCH_CPU)
            if limit is None:
                return {}, f"the Node's {BATCH_CPU} is missing, or 0 for a short time only"
            limit = max(limit, 1) if limit >= 0 else -1
        else:
            limit = None
        mean = _mean_tier(window(inputs, self._state), inputs, limit)
        if mean is None:
            return {}, "too few samples of best-effort usage, request and limit"
        last = None if inputs.sample is None else _tier(inputs.sample, limit)
        release = satisfaction_release(mean, last, inputs.slo, inputs.rules.formula)
        return ({BATCH_CPU: release} if release > 0 else {}), ""

    def _allocatable(self, feature: EvictionFeature) -> tuple[Amounts, str]:
        inputs = self._inputs
        limits = allocatable_limits(feature, inputs.slo)
        threshold = priority_threshold(feature, inputs.slo)
        if limits is None or threshold is None:
            return {}, "the NodeSLO does not configure it"
        release: dict[str, int] = {}
        missing_names: list[str] = []
        for resource in requested_resources(feature):
            request_sum = sum(
                pod.requests.get(resource, 0)
                for pod in inputs.pods
                if pod.is_active and pod.priority <= threshold
            )
            amount = self._allocatable_amount(resource)
            if request_sum and amount is None:
                missing_names.append(resource)
            is_memory = feature is EvictionFeature.MEMORY_ALLOCATABLE
            formula = inputs.rules.formula
            excess = allocatable_release(request_sum, amount, limits, formula, is_memory=is_memory)
            if excess > 0:
                release[resource] = excess
        if missing_names and not release:
            names = ", ".join(missing_names)
            return {}, f"missing at the Node, or 0 for a short time only: {names}"
        return release, ""

    def _allocatable_amount(self, resource: str) -> int | None:
        """Return the Node's amount; `None` if it is missing, or 0 and not confirmed.

        It is 0 for a while whenever koord-manager misses reports of the node.
        """
        inputs, amount = self._inputs, self._inputs.allocatable.get(resource)
        if amount != 0 or inputs.rules.formula is Formula.UPSTREAM:
            return amount
        since_s, published_s = self._state.zero_since_s.get(resource), inputs.metric_published_s
        if since_s is None or published_s is None or published_s < since_s:
            return None
        return 0 if inputs.now_s - since_s >= ZERO_LASTS_S else None


def _state_without_evaluation(
    feature: EvictionFeature, inputs: EvictionInputs
) -> tuple[ReportState | None, str]:
    """Return why a rule is not evaluated; `None` if it is."""
    if feature.value not in inputs.rules.features:
        return ReportState.OFF, "switched off in the settings"
    if not inputs.slo.enable:
        return ReportState.OFF, "resourceUsedThresholdWithBE.enable is false"
    if problem := configuration_problem(feature, inputs.slo):
        return ReportState.INVALID, problem
    if not inputs.has_pods:
        return ReportState.UNMEASURED, "the API server has not listed the pods"
    if not inputs.is_measured:
        return ReportState.UNMEASURED, "the last sample of usage is too old"
    return None, ""


def averaging_window_s(inputs: EvictionInputs) -> float:
    """Return the length of the window of CPU samples."""
    return min(max(inputs.collect_s, inputs.slo.cpu_evict_time_window_s or 0), MAX_WINDOW_S)


def samples_since(samples: tuple[CpuSample, ...], oldest_s: float) -> tuple[CpuSample, ...]:
    """Return the samples that are not older, in their order; a window may have thousands."""
    return samples[bisect_left(samples, oldest_s, key=_taken_s) :]


def window(inputs: EvictionInputs, state: EvictionState) -> tuple[CpuSample, ...]:
    """Return the samples of the averaging window."""
    window_s = averaging_window_s(inputs)
    oldest_s = inputs.now_s - window_s
    samples = samples_since(state.samples, oldest_s)
    return samples or state.samples[-1:]  # the last cycle began before a window of one interval


def _has_enough(count: int, inputs: EvictionInputs) -> bool:
    window_s = averaging_window_s(inputs)
    return count > 0 and count * inputs.collect_s >= int(window_s) // 3


def _tier(sample: CpuSample, limit: int | None) -> BestEffortCpu | None:
    limit = sample.tier_limit_milli if limit is None else limit
    cores, request = sample.tier_cores, sample.tier_request_milli
    if cores is None or request is None or limit is None:
        return None
    return BestEffortCpu(usage=int(cores * 1000), request=request, limit=limit)


def _mean_tier(
    samples: tuple[CpuSample, ...], inputs: EvictionInputs, limit: int | None
) -> BestEffortCpu | None:
    """Return the means; `None` for too few samples of one of them."""
    tiers = [
        (sample.tier_cores, sample.tier_request_milli, sample.tier_limit_milli)
        for sample in samples
        if sample.tier_cores is not None
        and sample.tier_request_milli is not None
        and (limit is not None or sample.tier_limit_milli is not None)
    ]
    if not _has_enough(len(tiers), inputs):
        return None
    count = len(tiers)
    cores, requests, limits = zip(*tiers, strict=True)
    return BestEffortCpu(
        usage=int(sum(cores) * 1000 / count),
        request=sum(requests) // count,
        limit=sum(limits) // count if limit is None else limit,
    )
