"""What the scheduler decided for a pod's CPUs, by annotation: hostile input."""

from __future__ import annotations

import msgspec

from agent.model.cluster.annotation import BadAnnotation, cpu_list, json_object
from agent.model.cluster.pod_cpus import RESOURCE_STATUS
from agent.model.foreign.quantities import amount
from agent.topology.cpu import CpuSet

BATCH_CPU = "kubernetes.io/batch-cpu"
MAX_NODES = 1024  # of memory, as many as the kernel can have
MAX_CHARS = 63  # of a quantity


class CpuStatus(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs of its own, and the memory nodes it was placed on."""

    cpus: CpuSet = frozenset()
    nodes: frozenset[int] = frozenset()
    aware: bool = False  # some node is for CPU, not for memory or devices alone


NO_STATUS = CpuStatus()


def cpu_status(text: str | None) -> CpuStatus:
    """Decode the annotation; raise `BadAnnotation` for one that means nothing."""
    if text is None:
        return NO_STATUS
    try:
        members = json_object(text)
        cpus, nodes = members.get("cpuset"), members.get("numaNodeResources")
        own = frozenset[int]() if cpus in (None, "") else cpu_list(cpus)
        placed = [_node(item) for item in _list(nodes)]
    except BadAnnotation as error:
        raise BadAnnotation(f"{RESOURCE_STATUS}: {error}") from error
    return CpuStatus(
        cpus=own,
        nodes=frozenset(number for number, _ in placed),
        aware=any(of_cpu for _, of_cpu in placed),
    )


def _list(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_NODES:
        raise BadAnnotation(f"numaNodeResources is no list of at most {MAX_NODES}")
    return value


def _node(item: object) -> tuple[int, bool]:
    """Return a memory node's number, and whether it gives CPU."""
    if not isinstance(item, dict):
        raise BadAnnotation("a member of numaNodeResources is no object")
    number, resources = item.get("node", 0), item.get("resources")
    if type(number) is not int or not 0 <= number < MAX_NODES:
        raise BadAnnotation(f"a node is no number from 0 to {MAX_NODES - 1}")
    if resources is None:
        return number, False
    if not isinstance(resources, dict):
        raise BadAnnotation("resources of a node are no object")
    return number, _given(resources, "cpu") or _given(resources, BATCH_CPU)


def _given(resources: dict[str, object], name: str) -> bool:
    value = resources.get(name, 0)
    text = str(value) if type(value) in (int, float, str) else ""
    found = amount(text) if len(text) <= MAX_CHARS else None
    if found is None:
        raise BadAnnotation(f"{name} of a node is no quantity")
    return found > 0
