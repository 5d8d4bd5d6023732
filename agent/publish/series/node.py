"""Samples of the node as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from agent.model.snapshot import NodeSnapshot
from agent.model.usage import NodeUsage
from agent.publish.series.groups import pressure_series
from agent.publish.series.text import Series, line


def node_series(snapshot: NodeSnapshot, opened: str, *, usage_is_fresh: bool) -> Series:
    """Yield the families of the node; `opened` are the labels that every sample has."""
    if snapshot.node.boot_time_s > 0:
        name = "xpu_node_boot_time_seconds"
        yield name, [line(name, opened, snapshot.node.boot_time_s)]
    if snapshot.cpus.value.usable:
        yield "xpu_node_cpus", [line("xpu_node_cpus", opened, len(snapshot.cpus.value.usable))]
    if not usage_is_fresh:
        return
    usage = snapshot.usage.value.node
    for column, value in _totals(usage):
        if value is not None:
            name = f"xpu_node_{column}"
            yield name, [line(name, opened, value)]
    yield from _numa_series(usage, opened)
    yield from pressure_series("xpu_node", [(opened, usage.pressure)])


def _totals(usage: NodeUsage) -> Iterator[tuple[str, float | None]]:
    cpu_seconds = usage.cpu_total_ns / 1e9 if usage.cpu_total_ns is not None else None
    yield "cpu_usage_cores", usage.cpu_cores
    yield "cpu_seconds_total", cpu_seconds
    yield "memory_bytes", usage.memory_total_bytes
    yield "memory_used_bytes", usage.memory_bytes
    yield "memory_used_with_cache_bytes", usage.memory_with_cache_bytes
    yield "system_cpu_usage_cores", usage.system_cpu_cores
    yield "system_memory_used_bytes", usage.system_memory_bytes


def _numa_series(usage: NodeUsage, opened: str) -> Series:
    for column, values in (
        ("cpu_usage_cores", [(n.node_id, n.cpu_cores) for n in usage.numa]),
        ("memory_used_bytes", [(n.node_id, n.memory_bytes) for n in usage.numa]),
        ("pods_memory_used_bytes", [(n.node_id, n.pods_memory_bytes) for n in usage.numa]),
    ):
        name = f"xpu_node_numa_{column}"
        yield (
            name,
            [
                line(name, opened, value, f'numa_node="{node_id}"')
                for node_id, value in values
                if value is not None
            ],
        )
