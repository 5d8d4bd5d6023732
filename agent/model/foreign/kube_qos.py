"""Kubernetes' QoS class of a pod from its containers' resources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from agent.model.pod import KubeQos

RESOURCES = ("cpu", "memory")
MAX_EXPONENT = 30

_QUANTITY = re.compile(
    r"([+-]?[0-9]{1,40}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?"
)
_FACTORS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** (i + 1) for i, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Decimal(1024) ** (i + 1) for i, suffix in enumerate("KMGTPE")},
}


class ResourceSpec(msgspec.Struct, frozen=True):
    """One container's quantities by resource; requests are those given or else the limits."""

    requests: Mapping[str, str]
    limits: Mapping[str, str]


def amount(text: str) -> Decimal | None:
    """Return a quantity's value; `None` for what is none."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _FACTORS or not suffix:
        return number * _FACTORS.get(suffix, Decimal(1))
    exponent = int(suffix[1:])
    return number.scaleb(exponent) if abs(exponent) <= MAX_EXPONENT else None


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
