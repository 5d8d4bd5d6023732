"""How much CPU or memory evictions have to release, by the thresholds of the NodeSLO.

Exact integers; Koordinator (`pkg/koordlet/qosmanager/plugins`) rounds to whole percent or computes
in float64, which `Formula.UPSTREAM` does as well, for comparison.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from agent.snapshot.slo import EVICT_GAP_PERCENT, ResourceThresholds

MAX_SATISFACTION_LOWER = 60  # percent
DEFAULT_USAGE_PERCENT = 90  # of the real limit that best-effort pods use
MAX_ALLOCATABLE_PRIORITY = 7999  # from 8000 on pods are production
MIN_LIMIT_MILLI = 1000  # below one CPU the tier counts as fully used


class Formula(enum.Enum):
    """How amounts are rounded."""

    EXACT = "exact"
    UPSTREAM = "upstream"


class EvictionFeature(enum.Enum):
    """The rules of Koordinator; the value is the name of its feature gate."""

    BE_CPU = "BECPUEvict"
    CPU_ALLOCATABLE = "CPUAllocatableEvict"
    CPU = "CPUEvict"
    BE_MEMORY = "BEMemoryEvict"
    MEMORY_ALLOCATABLE = "MemoryAllocatableEvict"
    MEMORY = "MemoryEvict"


CPU_FEATURES: Final = (
    EvictionFeature.BE_CPU,
    EvictionFeature.CPU_ALLOCATABLE,
    EvictionFeature.CPU,
)
MEMORY_FEATURES: Final = (
    EvictionFeature.BE_MEMORY,
    EvictionFeature.MEMORY_ALLOCATABLE,
    EvictionFeature.MEMORY,
)


class UsageLimits(msgspec.Struct, frozen=True):
    """Percent of the node at which evictions start and to which they release."""

    threshold: int
    lower: int


def usage_limits(feature: EvictionFeature, slo: ResourceThresholds) -> UsageLimits | None:
    """Return the limits of a rule that compares usage; `None` without a threshold."""
    if feature in CPU_FEATURES:
        threshold, lower = slo.cpu_evict_threshold_percent, slo.cpu_evict_lower_percent
    else:
        threshold, lower = slo.memory_evict_threshold_percent, slo.memory_evict_lower_percent
    if threshold is None:
        return None
    return UsageLimits(threshold, threshold - EVICT_GAP_PERCENT if lower is None else lower)


def allocatable_limits(feature: EvictionFeature, slo: ResourceThresholds) -> UsageLimits | None:
    """Return the limits of a rule that compares requests; `None` unless both are set."""
    if feature in CPU_FEATURES:
        threshold = slo.cpu_allocatable_evict_threshold_percent
        lower = slo.cpu_allocatable_evict_lower_percent
    else:
        threshold = slo.memory_allocatable_evict_threshold_percent
        lower = slo.memory_allocatable_evict_lower_percent
    return None if threshold is None or lower is None else UsageLimits(threshold, lower)


def configuration_problem(feature: EvictionFeature, slo: ResourceThresholds) -> str:
    """Return why the NodeSLO does not configure a rule; empty if it does."""
    match feature:
        case EvictionFeature.BE_CPU:
            return _satisfaction_problem(slo)
        case EvictionFeature.CPU_ALLOCATABLE | EvictionFeature.MEMORY_ALLOCATABLE:
            return _allocatable_problem(feature, slo)
        case _:
            return _usage_problem(feature, slo)


def _satisfaction_problem(slo: ResourceThresholds) -> str:
    lower, upper = (
        slo.cpu_evict_satisfaction_lower_percent,
        slo.cpu_evict_satisfaction_upper_percent,
    )
    if lower is None or upper is None:
        return "cpuEvictBESatisfactionLowerPercent and …UpperPercent are not both set"
    if not 0 < lower <= MAX_SATISFACTION_LOWER:
        return f"cpuEvictBESatisfactionLowerPercent is not above 0 and at most 60: {lower}"
    if not 0 < upper < 100:
        return f"cpuEvictBESatisfactionUpperPercent is not between 0 and 100: {upper}"
    if upper < lower:
        return f"cpuEvictBESatisfactionUpperPercent {upper} is below the lower percent {lower}"
    return ""


def _allocatable_problem(feature: EvictionFeature, slo: ResourceThresholds) -> str:
    limits, priority = allocatable_limits(feature, slo), slo.allocatable_evict_priority_threshold
    if limits is None:
        return "the allocatable threshold and its lower percent are not both set"
    if limits.lower >= limits.threshold:
        return f"the lower percent {limits.lower} is not below the threshold {limits.threshold}"
    if priority is None:
        return "allocatableEvictPriorityThreshold is not set"
    if priority > MAX_ALLOCATABLE_PRIORITY:
        return f"allocatableEvictPriorityThreshold {priority} covers production pods"
    return ""


def _usage_problem(feature: EvictionFeature, slo: ResourceThresholds) -> str:
    limits = usage_limits(feature, slo)
    if limits is None:
        return "cpuEvictThresholdPercent is not set"
    if limits.threshold == 0:
        return "the threshold is 0, which every node exceeds"
    if limits.lower >= limits.threshold:
        return f"the lower percent {limits.lower} is not below the threshold {limits.threshold}"
    if feature is not EvictionFeature.BE_MEMORY and slo.evict_enabled_priority_threshold is None:
        return "evictEnabledPriorityThreshold is not set"
    return ""


def is_over(used: int, capacity: int, percent: int, formula: Formula = Formula.EXACT) -> bool:
    """Return whether the usage is at least this percentage of the capacity."""
    if formula is Formula.UPSTREAM:
        return used * 100 // capacity >= percent
    return used * 100 >= capacity * percent


def usage_release(
    used: int, capacity: int, limits: UsageLimits, formula: Formula = Formula.EXACT
) -> int:
    """Return what has to be released of the used amount; 0: the threshold is not reached."""
    if not is_over(used, capacity, limits.threshold, formula):
        return 0
    if formula is Formula.UPSTREAM:
        return max(0, capacity * (used * 100 // capacity - limits.lower) // 100)
    return max(0, used - capacity * limits.lower // 100)


def allocatable_release(
    requested: int,
    allocatable: int | None,
    limits: UsageLimits,
    formula: Formula = Formula.EXACT,
    *,
    is_memory: bool = False,
) -> int:
    """Return which part of the requests has to go; 0: they do not exceed the threshold.

    An amount that the Node does not have is unknown, and nothing is released for it; Koordinator
    releases all requests.
    """
    if formula is Formula.UPSTREAM:
        return _upstream_allocatable_release(requested, allocatable or 0, limits, is_memory)
    if allocatable is None or allocatable < 0:
        return 0
    if requested * 100 <= limits.threshold * allocatable:
        return 0
    return max(0, (requested * 100 - limits.lower * allocatable) // 100)


def _upstream_allocatable_release(
    requested: int, allocatable: int, limits: UsageLimits, is_memory: bool
) -> int:
    if not allocatable:
        return requested
    ratio = requested / allocatable
    if ratio <= limits.threshold / 100:
        return 0
    if is_memory:
        return int((ratio - limits.lower / 100) * allocatable)
    return int(requested - limits.lower / 100 * allocatable)


class BestEffortCpu(msgspec.Struct, frozen=True):
    """Usage, request and limit of the best-effort tier, in milli-cores."""

    usage: int
    request: int
    limit: int  # -1: unknown


def satisfaction_release(
    mean: BestEffortCpu,
    last: BestEffortCpu | None,
    slo: ResourceThresholds,
    formula: Formula = Formula.EXACT,
) -> int:
    """Return how much best-effort CPU request has to go, in milli-cores.

    Both the means of the window and the last values must show a tier that has too little CPU and
    uses what it has.
    """
    lower = slo.cpu_evict_satisfaction_lower_percent or 0
    upper = slo.cpu_evict_satisfaction_upper_percent or 0
    percent = slo.cpu_evict_usage_threshold_percent
    percent = DEFAULT_USAGE_PERCENT if percent is None else percent
    if not _is_tier_busy(mean, percent):
        return 0
    release = _missing_request(mean, lower, upper, formula)
    if last is None or not _is_tier_busy(last, percent):
        return 0
    if (last.request, last.limit) == (mean.request, mean.limit):
        return release
    return min(release, _missing_request(last, lower, upper, formula))


def _is_tier_busy(tier: BestEffortCpu, percent: int) -> bool:
    if tier.limit <= 0:
        return False
    return tier.limit < MIN_LIMIT_MILLI or tier.usage * 100 >= percent * tier.limit


def _missing_request(tier: BestEffortCpu, lower: int, upper: int, formula: Formula) -> int:
    if tier.request <= 0:
        return 0
    if formula is Formula.UPSTREAM:
        satisfaction = tier.limit / tier.request
        gap = upper / 100 - satisfaction
        return int(tier.request * gap) if satisfaction <= lower / 100 and gap > 0 else 0
    if tier.limit * 100 > lower * tier.request:
        return 0
    return max(0, (tier.request * upper - tier.limit * 100) // 100)
