"""The node's counters of CPU time and memory, per NUMA node too, and usage from two cycles."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.cgroup.usage_files import LIMIT, MEMORY_LIMIT
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles, read_text
from agent.snapshot.host_files import HostFiles
from agent.snapshot.usage import NodeUsage, NumaUsage
from agent.usage.cgroup_usage import CgroupUsageTable, possible_cpus
from agent.usage.file_reader import (
    NODE_PRESSURE,
    DescriptorCache,
    FileBatchReader,
    PressureByResource,
    ReadSchedule,
    pressure_reader,
    read_pressure,
)
from agent.usage.host_applications import NO_APPLICATION_USAGE, HostApplicationUsage
from agent.wire_formats.kernel_text import MAX_CPUS, parse_cpu_list

NUMA_NODES_FOLDER = "/sys/devices/system/node"
DEFAULT_TICKS_PER_S = 100  # a second; of every kernel that distributions build
STAT_BYTES = 4096
MEMINFO_BYTES = 256  # the needed lines are the first three
NODE_MEMINFO_BYTES = 4096
_NUMBER = rb"([0-9]{1,20})"

_CPU_LINE = re.compile(
    rb"^cpu([0-9]{0,9}) +%b %b %b [0-9]+ [0-9]+ %b %b[ \n]" % ((_NUMBER,) * 5), re.MULTILINE
)

_MEMINFO_LINES = re.compile(
    rb"MemTotal: +%b kB\nMemFree: +%b kB\n(?:MemAvailable: +%b kB\n)?" % ((_NUMBER,) * 3)
)

_NUMA_MEMINFO_LINE = re.compile(
    rb" (MemTotal|MemFree|Active\(file\)|Inactive\(file\)|SReclaimable): +%b kB\n" % _NUMBER
)

_NUMA_RECLAIMABLE = (b"MemFree", b"Active(file)", b"Inactive(file)", b"SReclaimable")

_NUMA_NODE_NAME = re.compile(r"node([0-9]{1,5})")


class NodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The node's memory in bytes; `available` is absent on kernels before 3.14."""

    total: int
    free: int
    available: int | None


def parse_busy_ticks(data: bytes) -> dict[int | None, int]:
    """Return busy ticks by CPU, and of all CPUs for `None`, from `/proc/stat`.

    Busy is user + nice + system + irq + softirq: user time includes guest time, and steal, idle and
    iowait are not work of this node.
    """
    busy: dict[int | None, int] = {}
    for cpu, user, nice, system, irq, softirq in _CPU_LINE.findall(data):
        ticks = int(user) + int(nice) + int(system) + int(irq) + int(softirq)
        busy[int(cpu) if cpu else None] = ticks
    if None not in busy or max(busy.values()) >= LIMIT:
        raise ParseError("/proc/stat", data[:80].decode("utf-8", "replace"))
    return busy


def parse_total_busy_ticks(data: bytes) -> dict[int | None, int]:
    """Return the result of `parse_busy_ticks` for `None` only."""
    return parse_busy_ticks(data[: data.find(b"\n") + 1])


def parse_meminfo(data: bytes) -> NodeMemory:
    """Return the first lines of `/proc/meminfo`, in bytes."""
    match = _MEMINFO_LINES.match(data)
    if match is None:
        raise ParseError("/proc/meminfo", data[:80].decode("utf-8", "replace"))
    total, free, available = (None if kb is None else int(kb) * 1024 for kb in match.groups())
    # more free than there is would look like a node that uses nothing
    if not total or free is None or total >= MEMORY_LIMIT or max(free, available or 0) > total:
        raise ParseError("/proc/meminfo", data[:80].decode("utf-8", "replace"))
    return NodeMemory(total=total, free=free, available=available)


def parse_numa_meminfo(data: bytes) -> int:
    """Return a NUMA node's usage without page cache, in bytes, from its `meminfo`."""
    kb = {key: int(value) for key, value in _NUMA_MEMINFO_LINE.findall(data)}
    total = kb.get(b"MemTotal", 0)
    if not all(key in kb for key in (b"MemTotal", *_NUMA_RECLAIMABLE)) or not (
        kb[b"MemFree"] <= total and max(kb.values()) * 1024 < MEMORY_LIMIT
    ):
        raise ParseError("node meminfo", data[:80].decode("utf-8", "replace"))
    # the kernel counts pages of an almost empty node inexactly: their sum may be above the total
    return max(0, total - sum(kb[key] for key in _NUMA_RECLAIMABLE)) * 1024


class NodeCounters(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the node's files; `None` for unreadable ones."""

    busy: dict[int | None, int] | None  # ticks, from `parse_busy_ticks`
    memory: NodeMemory | None
    node_memory: tuple[int | None, ...]  # bytes, in the order of `NodeCounterReader.nodes`
    pressure: PressureByResource | None


class NodeCounterReader:
    """Reads the node's files with open descriptors. NUMA nodes are those at its start."""

    def __init__(
        self, host: HostFiles, descriptors: DescriptorCache, schedule: ReadSchedule
    ) -> None:
        live = isinstance(host, LiveHostFiles)
        self.ticks_per_s = os.sysconf("SC_CLK_TCK") if live else DEFAULT_TICKS_PER_S
        self.cpus = possible_cpus(host)
        self.nodes = _read_numa_nodes(host)  # (node, its CPUs), by node
        has_one_node = len(self.nodes) < 2
        self._stat = FileBatchReader(
            descriptors, parse_total_busy_ticks if has_one_node else parse_busy_ticks, STAT_BYTES
        )
        self._meminfo = FileBatchReader(descriptors, parse_meminfo, MEMINFO_BYTES, cut=True)
        self._node_meminfo = FileBatchReader(descriptors, parse_numa_meminfo, NODE_MEMINFO_BYTES)
        self._pressure = pressure_reader(
            lambda _: read_pressure(descriptors, NODE_PRESSURE), schedule
        )
        self._stat.set_paths(["/proc/stat"])
        self._meminfo.set_paths(["/proc/meminfo"])
        self._node_meminfo.set_paths(
            [f"{NUMA_NODES_FOLDER}/node{node}/meminfo" for node, _ in self.nodes]
        )
        self._pressure.set_keys(["node"])

    def read(self) -> NodeCounters:
        """Read all files once."""
        return NodeCounters(
            busy=self._stat.read()[0],
            memory=self._meminfo.read()[0],
            node_memory=tuple(self._node_meminfo.read()),
            pressure=self._pressure.read()[0],
        )

    def close(self) -> None:
        """Close all descriptors."""
        for column in (self._stat, self._meminfo, self._node_meminfo):
            column.close()


def _read_numa_nodes(host: HostFiles) -> tuple[tuple[int, frozenset[int]], ...]:
    try:
        names = host.names(NUMA_NODES_FOLDER)
    except HostFileError:
        return ()
    nodes = []
    for match in filter(None, map(_NUMA_NODE_NAME.fullmatch, names)):
        cpus = read_text(host, f"{NUMA_NODES_FOLDER}/{match[0]}/cpulist") or ""
        try:
            nodes.append((int(match[1]), parse_cpu_list(cpus)))
        except ParseError:  # without its CPUs the node still has memory
            nodes.append((int(match[1]), frozenset()))
    return tuple(sorted(nodes, key=lambda item: item[0]))


CpusByNumaNode = Sequence[tuple[int, frozenset[int]]]  # memory nodes with their CPUs


def sum_values(values: Sequence[float | None]) -> float | None:
    """Return the sum of the known values; `None` if there are values and all are unknown.

    A pod that is new or was just removed has no value and is left out.
    """
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers or not values else None


def subtract_values(whole: float | None, parts: Sequence[float | None]) -> float | None:
    """Return the whole minus its parts, at least 0; `None` if either is unknown."""
    total = sum_values(parts)
    return None if whole is None or total is None else max(0, whole - total)


def busy_cores(
    previous: NodeCounters | None,
    now: NodeCounters,
    elapsed_ticks: float,
    cpus: int = MAX_CPUS,
) -> dict[int | None, float]:
    """Return cores by CPU, and of all for `None`.

    A new CPU is left out, and a counter that decreased or grew by more than `cpus` can work.
    """
    if previous is None or previous.busy is None or now.busy is None or elapsed_ticks <= 0:
        return {}
    previous_ticks = previous.busy
    # twice as much, because ticks are coarse and cycles may be short
    most = 2 * (elapsed_ticks + DEFAULT_TICKS_PER_S)
    return {
        cpu: (ticks - previous_ticks[cpu]) / elapsed_ticks
        for cpu, ticks in now.busy.items()
        if cpu in previous_ticks
        and 0 <= ticks - previous_ticks[cpu] <= most * (cpus if cpu is None else 1)
    }


def node_usage(
    now: NodeCounters,
    busy: Mapping[int | None, float],
    ticks_per_s: int,
    pods: CgroupUsageTable | None,
    numa: tuple[NumaUsage, ...],
    applications: HostApplicationUsage = NO_APPLICATION_USAGE,
) -> NodeUsage:
    """Return the node's usage.

    The system's usage is the node's minus pods and host applications, if pods are measured.
    """
    cpu, memory = busy.get(None), _used_bytes(now.memory)
    pods_cpu = [None] if pods is None else pods.cpu_cores
    pods_memory = [None] if pods is None else [m[0] if m else None for m in pods.memory]
    ticks = now.busy[None] if now.busy else None
    return NodeUsage(
        cpu_cores=cpu,
        cpu_total_ns=None if ticks is None else ticks * 10**9 // ticks_per_s,
        memory_bytes=memory,
        memory_with_cache_bytes=now.memory.total - now.memory.free if now.memory else None,
        memory_total_bytes=now.memory.total if now.memory else None,
        system_cpu_cores=subtract_values(subtract_values(cpu, pods_cpu), [applications.cpu_cores]),
        system_memory_bytes=_as_int(
            subtract_values(subtract_values(memory, pods_memory), [applications.memory_bytes])
        ),
        pressure=now.pressure,
        numa=numa,
    )


def numa_usage(
    nodes: CpusByNumaNode,
    busy: Mapping[int | None, float],
    memory: Iterable[int | None],
    pods: Mapping[int, float | None],
) -> tuple[NumaUsage, ...]:
    """Return each NUMA node's usage; the only node has the CPU time of the whole node."""
    return tuple(
        NumaUsage(
            node_id=node,
            cpu_cores=busy.get(None) if len(nodes) == 1 else _cores_of_cpus(busy, cpus),
            memory_bytes=size,
            pods_memory_bytes=_as_int(pods.get(node)),
        )
        for (node, cpus), size in zip(nodes, memory, strict=True)
    )


def _cores_of_cpus(busy: Mapping[int | None, float], cpus: Iterable[int]) -> float | None:
    busy_cpus = [busy[cpu] for cpu in cpus if cpu in busy]
    return sum(busy_cpus) if busy_cpus else None


def _used_bytes(memory: NodeMemory | None) -> int | None:
    if memory is None or memory.available is None:
        return None
    return max(0, memory.total - memory.available)


def _as_int(value: float | None) -> int | None:
    return None if value is None else int(value)
