"""The capacity of nodes, the requests and usage of their pods, and scores by both. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

import msgspec

from agent.clock import Clock
from plugins.scheduler.devices.device_table import Amounts
from plugins.scheduler.load.load_score import (
    EXPIRED,
    MAX_SCORE,
    LoadThresholds,
    UsageView,
    estimated_usage,
    exceeded_threshold,
    filter_view,
    is_expired,
    load_score,
    node_thresholds,
    pod_estimate,
    score_view,
)
from plugins.scheduler.load.load_settings import (
    FitPlusSettings,
    FitResource,
    LoadScoreSettings,
    ScarceResourcesSettings,
)
from plugins.scheduler.load.pod_load import PodLoad
from plugins.scheduler.load.reported_usage import ReportedUsage


class LoadCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a Node that are read: allocatable amounts, and its own thresholds."""

    allocatable: Amounts = {}
    raw_allocatable: Amounts = {}  # CPU and memory without what is resold to other pods
    thresholds: str | None = None  # the annotation


class _NodeLoad:
    """One node. Sums over its pods are computed once after a change."""

    __slots__ = ("capacity", "pods", "requested", "thresholds", "usage", "usages")

    def __init__(self) -> None:
        self.capacity = LoadCapacity()
        self.thresholds: LoadThresholds | None = None
        self.usage: ReportedUsage | None = None
        self.pods: dict[str, PodLoad] = {}  # by uid
        self.requested: Mapping[str, int] | None = None
        self.usages: dict[UsageView, Amounts] = {}


_NO_LOAD = _NodeLoad()


class NodeLoads:
    """All nodes by name. For one thread."""

    def __init__(
        self,
        load: LoadScoreSettings,
        fit_plus: FitPlusSettings,
        scarce: ScarceResourcesSettings,
        clock: Clock,
    ) -> None:
        self._load = load
        self._fit_plus = fit_plus
        self._scarce = scarce
        self._clock = clock
        self._nodes: dict[str, _NodeLoad] = {}
        self._node_of: dict[str, str] = {}  # by uid of a pod

    def set_capacity(self, name: str, capacity: LoadCapacity | None) -> None:
        """Add or replace a Node object; `None`: it was deleted."""
        node = self._node(name)
        node.capacity = capacity or LoadCapacity()
        node.thresholds = None
        self._drop_if_empty(name)

    def set_usage(self, name: str, usage: ReportedUsage | None) -> None:
        """Add or replace a NodeMetric; `None`: it was deleted."""
        node = self._node(name)
        node.usage = usage
        node.usages.clear()
        self._drop_if_empty(name)

    def set_pod(self, pod: PodLoad) -> None:
        """Add or replace a pod; one without a node, or that has ended, does not count."""
        self.remove_pod(pod.uid)
        if pod.node:
            node = self._node(pod.node)
            node.pods[pod.uid] = pod
            self._node_of[pod.uid] = pod.node
            node.requested = None
            node.usages.clear()

    def remove_pod(self, uid: str) -> None:
        """Remove a pod."""
        name = self._node_of.pop(uid, None)
        if name is not None:
            node = self._node(name)
            del node.pods[uid]
            node.requested = None
            node.usages.clear()
            self._drop_if_empty(name)

    def refusals(self, pod: PodLoad, names: Iterable[str]) -> dict[str, str]:
        """Return the nodes that are too busy for a pod, and why."""
        if not self._load.enabled or pod.is_of_daemon_set:
            return {}
        now_s, estimate = self._clock.wall(), pod_estimate(pod, self._load)
        reasons = ((name, self._refusal(pod, estimate, self._of(name), now_s)) for name in names)
        return {name: reason for name, reason in reasons if reason}

    def weighted_scores(self, pod: PodLoad, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return for each node the sum of its weighted scores, and the sum of the weights."""
        now_s = self._clock.wall()
        parts: list[tuple[int, Callable[[_NodeLoad], int]]] = []
        if self._load.enabled:
            estimate, view = pod_estimate(pod, self._load), score_view(pod, self._load)
            parts.append(
                (self._load.weight, lambda node: self._load_score(estimate, view, node, now_s))
            )
        if self._fit_plus.enabled:
            parts.append((self._fit_plus.weight, lambda node: self._fit_score(pod, node)))
        if self._scarce.enabled:
            of_resources = cache(partial(_scarce_resources_score, pod, settings=self._scarce))
            parts.append(
                (self._scarce.weight, lambda node: of_resources(tuple(node.capacity.allocatable)))
            )
        weight_sum = sum(weight for weight, _ in parts)
        names = list(names)
        nodes = [self._of(name) for name in names]
        totals = [0] * len(nodes)
        for weight, score in parts:  # a loop for each score: cheaper than a sum for each node
            totals = [
                total + weight * score(node) for total, node in zip(totals, nodes, strict=True)
            ]
        return {name: (total, weight_sum) for name, total in zip(names, totals, strict=True)}

    def combined_scores(
        self, pod: PodLoad, device_scores: Mapping[str, int], device_weight: int
    ) -> dict[str, int]:
        """Return for each node the weighted mean of the devices' score and the others."""
        others = self.weighted_scores(pod, device_scores)
        return {
            name: (device_weight * device_scores[name] + score) // (device_weight + weight_sum)
            if device_weight + weight_sum
            else 0
            for name, (score, weight_sum) in others.items()
        }

    def _refusal(self, pod: PodLoad, estimate: Amounts, node: _NodeLoad, now_s: float) -> str:
        settings, usage = self._load, node.usage
        if usage is None:
            return ""
        if settings.filter_expired and is_expired(usage, settings, now_s):
            return "" if settings.schedules_when_expired else EXPIRED
        if node.thresholds is None:
            node.thresholds = node_thresholds(settings, node.capacity.thresholds)
        view, thresholds = filter_view(pod, node.thresholds)
        used = self._usage(node, usage, view)
        allocatable = node.capacity.raw_allocatable
        return exceeded_threshold(used, estimate, allocatable, thresholds, view)

    def _load_score(self, estimate: Amounts, view: UsageView, node: _NodeLoad, now_s: float) -> int:
        settings, usage = self._load, node.usage
        if usage is None or is_expired(usage, settings, now_s):
            return 0
        used = self._usage(node, usage, view)
        return load_score(used, estimate, node.capacity.raw_allocatable, settings)

    def _usage(self, node: _NodeLoad, usage: ReportedUsage, view: UsageView) -> Amounts:
        used = node.usages.get(view)
        if used is None:
            pods = node.pods.values()
            used = node.usages[view] = estimated_usage(usage, pods, self._load, view)
        return used

    def _fit_score(self, pod: PodLoad, node: _NodeLoad) -> int:
        if node.requested is None:
            requested = Counter[str]()
            for one in node.pods.values():
                for name in self._fit_plus.resources:
                    requested[name] += _scored_request(one, name)
            node.requested = requested
        return _fit_plus_score(pod, node.requested, node.capacity.allocatable, self._fit_plus)

    def _of(self, name: str) -> _NodeLoad:
        return self._nodes.get(name, _NO_LOAD)

    def _node(self, name: str) -> _NodeLoad:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _NodeLoad()
        return node

    def _drop_if_empty(self, name: str) -> None:
        node = self._nodes[name]
        if node.usage is None and not node.pods and not node.capacity.allocatable:
            del self._nodes[name]


def _scored_request(pod: PodLoad, resource: str) -> int:
    """Return what a pod adds to the requests of a node; CPU and memory are never 0."""
    return pod.nonzero.get(resource, pod.requests.get(resource, 0))


def _fit_plus_score(
    pod: PodLoad, requested: Mapping[str, int], allocatable: Amounts, settings: FitPlusSettings
) -> int:
    """Return Koordinator's NodeResourcesFitPlus: 0 to 100 by the configured resources.

    `requested` are the sums of the node's pods. A pod that requests none of the resources gets 100.
    """
    score = weight_sum = 0
    for name, resource in settings.resources.items():
        if pod.requests.get(name):
            used = requested.get(name, 0) + _scored_request(pod, name)
            score += resource.weight * _resource_score(used, allocatable.get(name, 0), resource)
            weight_sum += resource.weight
    return score // weight_sum if weight_sum else MAX_SCORE


def _resource_score(used: int, amount: int, resource: FitResource) -> int:
    if not amount:
        return 0
    if resource.type == "MostAllocated":
        return min(used, amount) * MAX_SCORE // amount
    return (amount - used) * MAX_SCORE // amount if used <= amount else 0


def _scarce_resources_score(
    pod: PodLoad, resources: tuple[str, ...], settings: ScarceResourcesSettings
) -> int:
    """Return ScarceResourceAvoidance: less on nodes with scarce resources that a pod leaves."""
    unused = {name for name in resources if not pod.requests.get(name)}
    scarce = unused.intersection(settings.resources)
    if not scarce:
        return MAX_SCORE
    if settings.strict:
        return 0
    return (len(unused) - len(scarce)) * MAX_SCORE // len(unused)
