"""The annotation resource-status: CPUs and NUMA nodes that the scheduler allocated to a pod."""

from __future__ import annotations

import msgspec

from agent.snapshot.cpu import CpuSet
from agent.wire_formats.annotations import (
    AnnotationError,
    parse_cpus,
    parse_json_object,
)
from agent.wire_formats.quantities import parse_amount

RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
BATCH_CPU = "kubernetes.io/batch-cpu"
MAX_NODES = 1024  # of memory, as many as the kernel can have
MAX_CHARS = 63  # of a quantity


class ResourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs of a pod, and the NUMA nodes that it was placed on."""

    cpus: CpuSet = frozenset()
    numa_nodes: frozenset[int] = frozenset()
    is_numa_aware: bool = False  # some node is for CPU, not for memory or devices alone


NO_STATUS = ResourceStatus()


def parse_resource_status(text: str | None) -> ResourceStatus:
    """Decode the annotation; raises `AnnotationError` for an invalid one."""
    if text is None:
        return NO_STATUS
    try:
        members = parse_json_object(text)
        cpus, nodes = members.get("cpuset"), members.get("numaNodeResources")
        own = frozenset[int]() if cpus in (None, "") else parse_cpus(cpus)
        placed = [_node(item) for item in _list(nodes)]
    except AnnotationError as error:
        raise AnnotationError(f"{RESOURCE_STATUS}: {error}") from error
    return ResourceStatus(
        cpus=own,
        numa_nodes=frozenset(number for number, _ in placed),
        is_numa_aware=any(of_cpu for _, of_cpu in placed),
    )


def _list(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_NODES:
        raise AnnotationError(f"numaNodeResources is no list of at most {MAX_NODES}")
    return value


def _node(item: object) -> tuple[int, bool]:
    """Return the number of a NUMA node, and whether CPUs of it are allocated."""
    if not isinstance(item, dict):
        raise AnnotationError("a member of numaNodeResources is no object")
    number, resources = item.get("node", 0), item.get("resources")
    if type(number) is not int or not 0 <= number < MAX_NODES:
        raise AnnotationError(f"a node is no number from 0 to {MAX_NODES - 1}")
    if resources is None:
        return number, False
    if not isinstance(resources, dict):
        raise AnnotationError("resources of a node are no object")
    return number, _has_amount(resources, "cpu") or _has_amount(resources, BATCH_CPU)


def _has_amount(resources: dict[str, object], name: str) -> bool:
    value = resources.get(name, 0)
    text = str(value) if type(value) in (int, float, str) else ""
    amount = parse_amount(text) if len(text) <= MAX_CHARS else None
    if amount is None:
        raise AnnotationError(f"{name} of a node is no quantity")
    return amount > 0
