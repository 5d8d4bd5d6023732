"""`spec.resourceUsedThresholdWithBE`: when best-effort pods are squeezed, and when evicted."""

from __future__ import annotations

import msgspec
from msgspec import field

from agent.model.slo.ranges import (
    EvictablePriority,
    EvictPolicy,
    Int32,
    Percent,
    Positive,
    SuppressPolicy,
    Whole,
)

EVICT_GAP_PERCENT = 2  # of the default lower limit below its threshold


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Percent of the node unless said otherwise; `None` is a rule that is not set.

    `enable` is the switch of all of it. The allocatable ones compare requests, which may exceed
    the node; their lower limits have no default, without them nobody is evicted.
    """

    enable: bool = False
    cpu_suppress_threshold_percent: Percent = 65
    cpu_suppress_min_percent: Percent | None = None  # floor for best-effort pods
    cpu_suppress_policy: SuppressPolicy = "cpuset"
    memory_evict_threshold_percent: Percent = 70
    memory_evict_lower_percent: Percent | None = None
    memory_allocatable_evict_threshold_percent: Whole | None = None
    memory_allocatable_evict_lower_percent: Whole | None = None
    # of what best-effort pods request, what they may really have
    cpu_evict_satisfaction_upper_percent: Percent | None = field(
        default=None, name="cpuEvictBESatisfactionUpperPercent"
    )
    cpu_evict_satisfaction_lower_percent: Percent | None = field(
        default=None, name="cpuEvictBESatisfactionLowerPercent"
    )
    # of what they may have, what they use
    cpu_evict_usage_threshold_percent: Percent | None = field(
        default=None, name="cpuEvictBEUsageThresholdPercent"
    )
    cpu_evict_time_window_s: Positive | None = field(default=None, name="cpuEvictTimeWindowSeconds")
    cpu_evict_threshold_percent: Percent | None = None
    cpu_evict_lower_percent: Percent | None = None
    cpu_allocatable_evict_threshold_percent: Whole | None = None
    cpu_allocatable_evict_lower_percent: Whole | None = None
    cpu_evict_policy: EvictPolicy = "evictByRealLimit"
    evict_enabled_priority_threshold: Int32 | None = None  # the highest that may be evicted
    allocatable_evict_priority_threshold: EvictablePriority | None = None

    @property
    def memory_evict_until_percent(self) -> int | None:
        """Return the use at which eviction for memory stops; `None`: nobody is evicted for it."""
        return _until(self.memory_evict_threshold_percent, self.memory_evict_lower_percent)

    @property
    def cpu_evict_until_percent(self) -> int | None:
        """Return the use at which eviction for CPU stops; `None`: nobody is evicted for it."""
        return _until(self.cpu_evict_threshold_percent, self.cpu_evict_lower_percent)


def _until(threshold: int | None, lower: int | None) -> int | None:
    """Return the lower limit, unless there is no threshold or the two contradict each other."""
    if threshold is None:
        return None
    if lower is None:
        return threshold - EVICT_GAP_PERCENT
    return lower if lower < threshold else None
