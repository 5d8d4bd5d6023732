"""Scores by requests: NodeResourcesFitPlus and ScarceResourceAvoidance of Koordinator."""

from __future__ import annotations

from collections.abc import Mapping

from plugins.scheduler.devices.device_table import Amounts
from plugins.scheduler.load.load_settings import (
    FitPlusSettings,
    FitResource,
    ScarceResourcesSettings,
)
from plugins.scheduler.load.pod_load import PodLoad

MAX_SCORE = 100


def scored_request(pod: PodLoad, resource: str) -> int:
    """Return what a pod adds to the requests of a node; CPU and memory are never 0."""
    return pod.nonzero.get(resource, pod.requests.get(resource, 0))


def fit_plus_score(
    pod: PodLoad, requested: Mapping[str, int], allocatable: Amounts, settings: FitPlusSettings
) -> int:
    """Return 0 to 100 by the configured resources that the pod requests.

    `requested` are the sums of the node's pods. A pod that requests none of the resources gets 100.
    """
    score = weight_sum = 0
    for name, resource in settings.resources.items():
        if pod.requests.get(name):
            used = requested.get(name, 0) + scored_request(pod, name)
            score += resource.weight * _resource_score(used, allocatable.get(name, 0), resource)
            weight_sum += resource.weight
    return score // weight_sum if weight_sum else MAX_SCORE


def _resource_score(used: int, amount: int, resource: FitResource) -> int:
    if not amount:
        return 0
    if resource.type == "MostAllocated":
        return min(used, amount) * MAX_SCORE // amount
    return (amount - used) * MAX_SCORE // amount if used <= amount else 0


def scarce_resources_score(
    pod: PodLoad, allocatable: Amounts, settings: ScarceResourcesSettings
) -> int:
    """Return 0 to 100: less for a node with scarce resources that the pod does not request."""
    unused = {name for name in allocatable if not pod.requests.get(name)}
    scarce = unused.intersection(settings.resources)
    if not scarce:
        return MAX_SCORE
    if settings.strict:
        return 0
    return (len(unused) - len(scarce)) * MAX_SCORE // len(unused)
