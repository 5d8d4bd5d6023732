"""Kubernetes' QoS class of a pod from its containers' resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.model.foreign.quantities import amount
from agent.model.pod import KubeQos

RESOURCES = ("cpu", "memory")


class ResourceSpec(msgspec.Struct, frozen=True):
    """One container's quantities by resource; requests are those given or else the limits."""

    requests: Mapping[str, str]
    limits: Mapping[str, str]


def computed_qos(containers: Sequence[ResourceSpec]) -> KubeQos:
    """Return the class that the kubelet gives; a quantity of zero counts as not given.

    Guaranteed: every container has CPU and memory limits, equal to its requests. BestEffort: none
    has any. All else is Burstable.
    """
    pairs = [
        (amount(c.requests.get(name, "0")) or None, amount(c.limits.get(name, "0")) or None)
        for c in containers
        for name in RESOURCES
    ]
    if all(request is None and limit is None for request, limit in pairs):
        return KubeQos.BEST_EFFORT
    if all(limit is not None and request == limit for request, limit in pairs):
        return KubeQos.GUARANTEED
    return KubeQos.BURSTABLE
