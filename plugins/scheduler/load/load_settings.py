"""Settings of the scores by load and by requests; each is off unless it is enabled."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Weight = Annotated[int, Meta(ge=0, le=1000)]
Percent = Annotated[int, Meta(ge=0, le=1000)]  # of thresholds; 0: none
Seconds = Annotated[int, Meta(ge=0, le=10 * 365 * 86400)]
AggregationType = Literal["avg", "p50", "p90", "p95", "p99"]


class CpuMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number for CPU and one for memory."""

    cpu: Weight = 0
    memory: Weight = 0

    def of(self, resource: str) -> int:
        """Return the number of a resource; 0 for others than these two."""
        if resource == "cpu":
            return self.cpu
        return self.memory if resource == "memory" else 0


class AggregatedUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Percentiles that replace the average usage; a duration of 0 is the longest reported one."""

    usage_thresholds: CpuMemory = CpuMemory()
    usage_aggregation_type: AggregationType | None = None
    usage_duration_s: Seconds = 0
    score_aggregation_type: AggregationType | None = None
    score_duration_s: Seconds = 0


class LoadScoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LoadAware: by the usage in NodeMetric. Defaults are those of Koordinator's scheduler."""

    enabled: bool = False
    weight: Weight = 1  # of this score beside the others
    filter_expired: bool = True
    expiration_s: Seconds = 180
    schedules_when_expired: bool = False
    resource_weights: CpuMemory | None = None  # None: 1 each, unless the dominant one has a weight
    dominant_resource_weight: Weight = 0
    usage_thresholds: CpuMemory = CpuMemory(65, 95)
    prod_usage_thresholds: CpuMemory = CpuMemory()
    scores_prod_usage: bool = False
    prod_usage_includes_system: bool = False
    scaling_factors: CpuMemory = CpuMemory(85, 70)
    estimated_s_after_scheduled: Seconds = 0
    estimated_s_after_initialized: Seconds = 0
    allows_pod_estimates: bool = False  # that pods ask for in annotations
    aggregated: AggregatedUsage | None = None

    @property
    def weights(self) -> CpuMemory:
        """Return the weights of CPU and memory."""
        if self.resource_weights is not None:
            return self.resource_weights
        return CpuMemory() if self.dominant_resource_weight else CpuMemory(1, 1)


class FitResource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether nodes with much or with little of a resource requested are preferred."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    weight: Weight = 1


class FitPlusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """NodeResourcesFitPlus: by requests, with a strategy of its own for each resource."""

    enabled: bool = False
    weight: Weight = 1
    resources: dict[str, FitResource] = msgspec.field(
        default_factory=lambda: {"cpu": FitResource(), "memory": FitResource()}
    )


class ScarceResourcesSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """ScarceResourceAvoidance: against nodes with scarce resources that the pod does not request.

    `strict`: such a node has the score 0, whatever else it offers.
    """

    enabled: bool = False
    weight: Weight = 1
    resources: list[str] = msgspec.field(default_factory=list)
    strict: bool = False
