"""What batch containers ask for, as the cluster's webhook notes it on the pod: hostile input."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING

import msgspec

from agent.model.cluster.annotation import BadAnnotation, json_object
from agent.model.foreign.quantities import amount

EXTENDED_SPEC = "node.koordinator.sh/extended-resource-spec"
BATCH_CPU = "kubernetes.io/batch-cpu"
BATCH_MEMORY = "kubernetes.io/batch-memory"
MAX_CONTAINERS = 256
MAX_CHARS = 63  # of a quantity
MAX_MILLI = 10**9  # more than any machine's CPUs
MAX_BYTES = 2**63 - 1


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One container's amounts; 0 is what it does not say, which as a limit means none."""

    request_milli: int = 0
    limit_milli: int = 0
    limit_bytes: int = 0


Spec = Mapping[str, Batch]  # by container


def extended_spec(text: str | None) -> Spec:
    """Decode the annotation; empty without one, or when it names no container.

    Raise `BadAnnotation` for one that means nothing: none of its numbers is used then.
    """
    if text is None:
        return {}
    try:
        containers = _object(json_object(text).get("containers"), "containers")
        if len(containers) > MAX_CONTAINERS:
            raise BadAnnotation(f"more than {MAX_CONTAINERS} containers")
        return {name: _batch(value) for name, value in containers.items()}
    except BadAnnotation as error:
        raise BadAnnotation(f"{EXTENDED_SPEC}: {error}") from error


def _batch(value: object) -> Batch:
    one = _object(value, "a container")
    requests, limits = (
        _object(one.get("requests"), "requests"),
        _object(one.get("limits"), "limits"),
    )
    return Batch(
        request_milli=_whole(requests, BATCH_CPU, MAX_MILLI),
        limit_milli=_whole(limits, BATCH_CPU, MAX_MILLI),
        limit_bytes=_whole(limits, BATCH_MEMORY, MAX_BYTES),
    )


def _object(value: object, what: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadAnnotation(f"{what}: no JSON object")
    return value


def _whole(found: Mapping[str, object], name: str, most: int) -> int:
    """Return a quantity rounded up, as Kubernetes does; what is below 0 is 0."""
    value = found.get(name, 0)
    text = str(value) if type(value) in (int, float, str) else ""
    exact = amount(text) if len(text) <= MAX_CHARS else None
    if exact is None:
        raise BadAnnotation(f"{name} is no quantity")
    if exact > most:
        raise BadAnnotation(f"{name} is more than any machine has")
    return max(0, int(exact.to_integral_value(ROUND_CEILING)))
