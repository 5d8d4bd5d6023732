"""The annotation extended-resource-spec: batch CPU and memory of a pod's containers."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING

import msgspec

from agent.wire_formats.annotations import AnnotationError, parse_json_object
from agent.wire_formats.quantities import parse_amount

EXTENDED_SPEC = "node.koordinator.sh/extended-resource-spec"
BATCH_CPU = "kubernetes.io/batch-cpu"
BATCH_MEMORY = "kubernetes.io/batch-memory"
MAX_CONTAINERS = 256
MAX_CHARS = 63  # of a quantity
MAX_MILLI = 10**9  # more than any machine's CPUs
MAX_BYTES = 2**63 - 1


class BatchAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """One container's amounts; 0: not set, which as a limit means none."""

    request_milli: int = 0
    limit_milli: int = 0
    limit_bytes: int = 0


ExtendedResourceSpec = Mapping[str, BatchAmounts]  # by container


def parse_extended_resource_spec(text: str | None) -> ExtendedResourceSpec:
    """Decode the annotation; empty without one, or if it names no container.

    Raises `AnnotationError` for an invalid annotation: none of its numbers is used then.
    """
    if text is None:
        return {}
    try:
        containers = _object(parse_json_object(text).get("containers"), "containers")
        if len(containers) > MAX_CONTAINERS:
            raise AnnotationError(f"more than {MAX_CONTAINERS} containers")
        return {name: _amounts(value) for name, value in containers.items()}
    except AnnotationError as error:
        raise AnnotationError(f"{EXTENDED_SPEC}: {error}") from error


def _amounts(value: object) -> BatchAmounts:
    one = _object(value, "a container")
    requests, limits = (
        _object(one.get("requests"), "requests"),
        _object(one.get("limits"), "limits"),
    )
    return BatchAmounts(
        request_milli=_whole_number(requests, BATCH_CPU, MAX_MILLI),
        limit_milli=_whole_number(limits, BATCH_CPU, MAX_MILLI),
        limit_bytes=_whole_number(limits, BATCH_MEMORY, MAX_BYTES),
    )


def _object(value: object, name: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise AnnotationError(f"{name}: no JSON object")
    return value


def _whole_number(members: Mapping[str, object], name: str, most: int) -> int:
    """Return a quantity rounded up, as in Kubernetes; a negative one is 0."""
    value = members.get(name, 0)
    text = str(value) if type(value) in (int, float, str) else ""
    exact = parse_amount(text) if len(text) <= MAX_CHARS else None
    if exact is None:
        raise AnnotationError(f"{name} is no quantity")
    if exact > most:
        raise AnnotationError(f"{name} is more than any machine has")
    return max(0, int(exact.to_integral_value(ROUND_CEILING)))
