"""Counters of two cycles to usage: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agent.collect.groups import GroupTable
from agent.collect.hostapp.usage import NOTHING, ApplicationUsage
from agent.collect.node import MemInfo, NodeCounters
from agent.model.usage import NodeUsage, NumaUsage

NodeCpus = Sequence[tuple[int, frozenset[int]]]  # memory nodes with their CPUs


def told(values: Sequence[float | None]) -> float | None:
    """Return the sum of what is known; `None` if there are values and none is known.

    A pod that is new or has just gone has no value: it is left out, not the whole sum.
    """
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def rest(whole: float | None, parts: Sequence[float | None]) -> float | None:
    """Return what the parts leave of the whole, not below 0; `None` if either is unknown."""
    taken = told(parts)
    return None if whole is None or taken is None else max(0, whole - taken)


def busy_cores(
    before: NodeCounters | None, now: NodeCounters, elapsed_ticks: float
) -> dict[int | None, float]:
    """Return cores by CPU, and of all for `None`; a CPU that is new or fell is left out."""
    if before is None or before.busy is None or now.busy is None or elapsed_ticks <= 0:
        return {}
    old = before.busy
    return {
        cpu: (ticks - old[cpu]) / elapsed_ticks
        for cpu, ticks in now.busy.items()
        if cpu in old and ticks >= old[cpu]
    }


def node_usage(
    now: NodeCounters,
    busy: Mapping[int | None, float],
    ticks_per_s: int,
    pods: GroupTable | None,
    numa: tuple[NumaUsage, ...],
    applications: ApplicationUsage = NOTHING,
) -> NodeUsage:
    """Return the node's usage.

    The system's is what pods and host applications leave of it, if pods are measured.
    """
    cpu, memory = busy.get(None), _used(now.memory)
    pods_cpu = [None] if pods is None else pods.cpu_cores
    pods_memory = [None] if pods is None else [m[0] if m else None for m in pods.memory]
    ticks = now.busy[None] if now.busy else None
    return NodeUsage(
        cpu_cores=cpu,
        cpu_total_ns=None if ticks is None else ticks * 10**9 // ticks_per_s,
        memory_bytes=memory,
        memory_with_cache_bytes=now.memory.total - now.memory.free if now.memory else None,
        memory_total_bytes=now.memory.total if now.memory else None,
        system_cpu_cores=rest(rest(cpu, pods_cpu), [applications.cpu_cores]),
        system_memory_bytes=_whole(rest(rest(memory, pods_memory), [applications.memory_bytes])),
        pressure=now.pressure,
        numa=numa,
    )


def numa_usage(
    nodes: NodeCpus,
    busy: Mapping[int | None, float],
    memory: Iterable[int | None],
    pods: Mapping[int, float | None],
) -> tuple[NumaUsage, ...]:
    """Return each memory node's usage; of a single one the CPU time is that of the whole node."""
    return tuple(
        NumaUsage(
            node_id=node,
            cpu_cores=busy.get(None) if len(nodes) == 1 else _cores_of(busy, cpus),
            memory_bytes=size,
            pods_memory_bytes=_whole(pods.get(node)),
        )
        for (node, cpus), size in zip(nodes, memory, strict=True)
    )


def _cores_of(busy: Mapping[int | None, float], cpus: Iterable[int]) -> float | None:
    found = [busy[cpu] for cpu in cpus if cpu in busy]
    return sum(found) if found else None


def _used(memory: MemInfo | None) -> int | None:
    if memory is None or memory.available is None:
        return None
    return max(0, memory.total - memory.available)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
