"""Which pods an eviction may take, and in which order. The order is total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from agent.qos.eviction.amounts import CPU_FEATURES, EvictionFeature
from agent.snapshot.pod import PodRef
from agent.snapshot.slo import ResourceThresholds
from agent.wire_formats.annotations import QOS_LABEL

EVICTION_POLICY = "koordinator.sh/eviction-policy"  # annotation: names of the rules that may
EVICTION_ENABLED = "koordinator.sh/eviction-enabled"  # label
NOT_MEASURED = "its usage is not measured"
BATCH_CPU, MID_CPU = "kubernetes.io/batch-cpu", "kubernetes.io/mid-cpu"
BATCH_MEMORY, MID_MEMORY = "kubernetes.io/batch-memory", "kubernetes.io/mid-memory"
CPU, MEMORY = "cpu", "memory"  # used amounts: milli-cores, bytes
CLASS_RESOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "koord-batch": (BATCH_CPU, BATCH_MEMORY),
    "koord-mid": (MID_CPU, MID_MEMORY),
}
BE_FEATURES: Final = (EvictionFeature.BE_CPU, EvictionFeature.BE_MEMORY)
ALLOCATABLE_FEATURES: Final = (EvictionFeature.CPU_ALLOCATABLE, EvictionFeature.MEMORY_ALLOCATABLE)
REQUEST_FEATURES: Final = (EvictionFeature.BE_CPU, *ALLOCATABLE_FEATURES)  # the others: usage

Amounts = Mapping[str, int]


class EvictionPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, as far as evictions depend on it."""

    ref: PodRef
    is_best_effort: bool = False  # by its label
    is_active: bool = True  # Pending or Running
    is_terminating: bool = False
    protection: str = ""  # why it is never evicted
    priority: int = 0  # `spec.priority`, or that of the pod's class
    eviction_priority: int = 0
    label_priority: int | None = None  # None: as `priority`
    is_enabled: bool = False  # by its label
    features: frozenset[str] | None = None  # those that may evict it; None: all
    used: Amounts = {}  # of CPU and MEMORY; an amount that was not measured is missing
    requests: Amounts = {}  # of the resources of its class
    created: str = ""  # as the API server writes times: compared as text
    container_ids: tuple[str, ...] = ()  # running ones, without the sandbox
    grace_s: int = 30

    def allows(self, feature: EvictionFeature) -> bool:
        """Return whether the pod's annotation allows an eviction for this reason."""
        return self.features is None or feature.value in self.features


def victims(
    feature: EvictionFeature, pods: Iterable[EvictionPod], slo: ResourceThresholds
) -> tuple[EvictionPod, ...]:
    """Return the pods that a rule may evict, the first victim first."""
    candidates = [pod for pod in pods if not exclusion(feature, pod, slo)]
    # stable sorts, the most important key last: of equal pods, the youngest goes first
    candidates.sort(key=lambda pod: pod.ref.uid)
    candidates.sort(key=lambda pod: (pod.created, pod.ref.name), reverse=True)
    candidates.sort(key=lambda pod: _order(feature, pod))
    return tuple(candidates)


def _order(feature: EvictionFeature, pod: EvictionPod) -> tuple[int, int, int, Fraction]:
    resource = used_resource(feature)
    if feature is EvictionFeature.BE_CPU:
        request = pod.requests.get(BATCH_CPU, 0)
        share = Fraction(pod.used.get(CPU, 0), request) if request > 0 else Fraction(0)
        return pod.eviction_priority, pod.priority, 0, -share
    if feature is EvictionFeature.BE_MEMORY:
        return pod.eviction_priority, pod.priority, 0, Fraction(-pod.used.get(MEMORY, 0))
    label = pod.priority if pod.label_priority is None else pod.label_priority
    if feature in ALLOCATABLE_FEATURES:
        amount = sum(pod.requests.get(name, 0) for name in requested_resources(feature))
    else:
        amount = pod.used.get(resource, 0)
    return pod.eviction_priority, pod.priority, label, Fraction(-amount)


def requested_resources(feature: EvictionFeature) -> tuple[str, ...]:
    """Return the extended resources whose requests a rule releases."""
    if feature is EvictionFeature.BE_CPU:
        return (BATCH_CPU,)
    position = 0 if feature in CPU_FEATURES else 1
    return tuple(names[position] for names in CLASS_RESOURCES.values())


def priority_threshold(feature: EvictionFeature, slo: ResourceThresholds) -> int | None:
    """Return the highest priority that a rule may evict; `None` if it does not go by priority."""
    match feature:
        case EvictionFeature.CPU_ALLOCATABLE | EvictionFeature.MEMORY_ALLOCATABLE:
            return slo.allocatable_evict_priority_threshold
        case EvictionFeature.CPU | EvictionFeature.MEMORY:
            return slo.evict_enabled_priority_threshold
        case _:
            return None


def exclusion(feature: EvictionFeature, pod: EvictionPod, slo: ResourceThresholds) -> str:
    """Return why a rule may not evict a pod; empty for a candidate."""
    if pod.protection:
        return f"protected: {pod.protection}"
    if not pod.is_active:
        return "it is neither pending nor running"
    if pod.is_terminating:
        return "it terminates already"
    if not pod.allows(feature):
        return f"its annotation {EVICTION_POLICY} does not list this rule"
    if feature in BE_FEATURES:
        return _class_exclusion(feature, pod)
    return _priority_exclusion(feature, pod, priority_threshold(feature, slo))


def _class_exclusion(feature: EvictionFeature, pod: EvictionPod) -> str:
    if not pod.is_best_effort:
        return f"it has no label {QOS_LABEL}: BE"
    if feature is EvictionFeature.BE_MEMORY and MEMORY not in pod.used:
        return NOT_MEASURED
    return ""


def _priority_exclusion(feature: EvictionFeature, pod: EvictionPod, threshold: int | None) -> str:
    if threshold is None:
        return "the NodeSLO has no priority up to which it evicts"
    if pod.priority > threshold:
        return f"its priority {pod.priority} is above {threshold}"
    if not pod.is_enabled:
        return f'it has no label {EVICTION_ENABLED}: "true"'
    return "" if used_resource(feature) in pod.used else NOT_MEASURED


def used_resource(feature: EvictionFeature) -> str:
    """Return the resource whose usage or requests a rule compares."""
    return CPU if feature in CPU_FEATURES else MEMORY
