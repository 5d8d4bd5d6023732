"""Bytes of cgroup files to values. No I/O here; `ParseError` for what no kernel prints.

A number counts only with the newline or blank behind it: a cut file never gives a shorter one.
Formulas are Koordinator's, less its page arithmetic on version 2, whose files are in bytes.
"""

from __future__ import annotations

import os
import re

from agent.errors import ParseError
from agent.model.usage import Pressure

Memory = tuple[int, int]  # bytes without page cache, and with it; all groups below included
Throttling = tuple[int, int]  # periods and throttled periods since the group was made
CpuStat = tuple[int, Throttling | None]  # nanoseconds; None: no cpu controller at this level

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_LRU = (b"inactive_anon", b"active_anon", b"inactive_file", b"active_file", b"unevictable")
_LRU_V1 = re.compile(b"".join(b"total_%b ([0-9]{1,20})\n" % key for key in _LRU))
_LRU_V2 = re.compile(b"".join(b"%b ([0-9]{1,20})\n" % key for key in _LRU))
_NUMA_V1 = re.compile(
    rb"\nhierarchical_total=([0-9]{1,20})[^\n]*\nhierarchical_file=[^\n]*\n"
    rb"hierarchical_anon=([0-9]{1,20})[^\n]*\nhierarchical_unevictable=([0-9]{1,20})[ \n]"
)
_NUMA_TOTAL_V1 = re.compile(rb"\nhierarchical_total=[0-9]+((?: N[0-9]{1,5}=[0-9]{1,20})*)\n")
_NUMA_V2 = re.compile(rb"^(?:anon|file)((?: N[0-9]{1,5}=[0-9]{1,20})+)$", re.MULTILINE)
_NODE = re.compile(rb" N([0-9]{1,5})=([0-9]{1,20})")
_USAGE_V2 = re.compile(rb"usage_usec ([0-9]{1,20})\n")
_THROTTLING = re.compile(rb"nr_periods ([0-9]{1,20})\nnr_throttled ([0-9]{1,20})\n")
_THROTTLING_V2 = re.compile(rb"\n%b" % _THROTTLING.pattern)
_PRESSURE = re.compile(
    rb"(some|full) avg10=([0-9]{1,3}\.[0-9]{2}) avg60=[0-9.]+ avg300=[0-9.]+ total=([0-9]{1,20})\n"
)


def _refused(what: str, data: bytes) -> ParseError:
    return ParseError(what, data[:200].decode("utf-8", "replace"))


def counter(data: bytes) -> int:
    """Return the one number of `cpuacct.usage`."""
    if not data.endswith(b"\n") or not data[:-1].isdigit() or len(data) > 21:
        raise _refused("counter", data)
    return int(data)


def cpu_stat_v2(data: bytes) -> CpuStat:
    """Return CPU time in nanoseconds, and throttling where this level has the cpu controller."""
    usage = _USAGE_V2.match(data)
    if usage is None:
        raise _refused("cpu.stat", data)
    found = _THROTTLING_V2.search(data, usage.end() - 1)
    return int(usage[1]) * 1000, None if found is None else (int(found[1]), int(found[2]))


def throttling_v1(data: bytes) -> Throttling:
    """Return `nr_periods` and `nr_throttled` from the start of version 1's `cpu.stat`."""
    match = _THROTTLING.match(data)
    if match is None:
        raise _refused("cpu.stat", data)
    return int(match[1]), int(match[2])


def _lru(match: re.Match[bytes] | None, data: bytes) -> Memory:
    if match is None:
        raise _refused("memory.stat", data)
    inactive_anon, active_anon, inactive_file, active_file, fixed = match.groups()
    used = int(inactive_anon) + int(active_anon) + int(fixed)
    return used, used + int(inactive_file) + int(active_file)


def memory_stat_v1(data: bytes) -> Memory:
    """Return memory by the `total_` keys of `memory.stat`, which count the groups below too."""
    start = data.rfind(b"total_inactive_anon ")  # the keys end the file
    return _lru(_LRU_V1.match(data, max(start, 0)), data)


def memory_stat_v2(data: bytes) -> Memory:
    """Return memory by `memory.stat`, whose keys count the groups below already."""
    start = data.find(b"inactive_anon ")
    return _lru(_LRU_V2.match(data, max(start, 0)), data)


def memory_numa_v1(data: bytes) -> Memory:
    """Return what `memory_stat_v1` does from `memory.numa_stat`, at less than half the cost.

    Both print the same lists of pages. The lines without `hierarchical_` count the group alone.
    """
    match = _NUMA_V1.match(data, max(data.find(b"\nhierarchical_total="), 0))
    if match is None:
        raise _refused("memory.numa_stat", data)
    total, anon, fixed = map(int, match.groups())
    return (anon + fixed) * PAGE_BYTES, total * PAGE_BYTES


def nodes_v1(data: bytes) -> dict[int, int]:
    """Return bytes by memory node, page cache included, groups below included."""
    match = _NUMA_TOTAL_V1.search(data)
    if match is None:
        raise _refused("memory.numa_stat", data)
    return {int(node): int(pages) * PAGE_BYTES for node, pages in _NODE.findall(match[1])}


def nodes_v2(data: bytes) -> dict[int, int]:
    """Return bytes by memory node: anonymous and file memory. The file is in bytes, not pages."""
    lines = _NUMA_V2.findall(data[: data.rfind(b"\n") + 1])
    if len(lines) != 2:
        raise _refused("memory.numa_stat", data)
    nodes: dict[int, int] = {}
    for line in lines:
        for node, size in _NODE.findall(line):
            nodes[int(node)] = nodes.get(int(node), 0) + int(size)
    return nodes


def pressure(data: bytes) -> Pressure:
    """Return PSI of one resource; kernels before 5.13 have no `full` line for the CPU."""
    lines = {kind: (float(avg10), int(total)) for kind, avg10, total in _PRESSURE.findall(data)}
    some, full = lines.get(b"some"), lines.get(b"full")
    if some is None:
        raise _refused("pressure", data)
    return Pressure(
        some_avg10=some[0],
        some_total_us=some[1],
        full_avg10=None if full is None else full[0],
        full_total_us=None if full is None else full[1],
    )
