"""Names and parsers of the cgroup files with usage, on both versions. Pure.

A parser raises `ParseError` for text that no kernel prints. A number needs the newline or blank
after it, so that a cut file never gives a shorter number. Formulas are Koordinator's, except for
its page arithmetic on version 2, whose files are in bytes.

A batch parser handles many files with equal keys at once, which halves the cost of a file. If they
differ in more than numbers, it raises `ParseError` and the caller parses them one by one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from operator import add

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.errors import HostFileError, ParseError
from agent.snapshot.host_files import HostFiles
from agent.snapshot.usage import PRESSURE_RESOURCES, Pressure

# first attempt; a longer file is read again with more room (many NUMA nodes)
SMALL, MIDDLE, LARGE = 64, 448, 2048  # bytes; Python keeps pools of objects up to 512

LIMIT = 1 << 64  # the first number that no kernel counter has
# the first size that no memory has: x86-64 and arm64 have at most 52 bits of a physical address
MEMORY_LIMIT = 1 << 52
MAX_PRESSURE = 100.0  # percent


class CgroupFile(msgspec.Struct, frozen=True):
    """A file in every cgroup of one controller; `size` is enough on ordinary machines."""

    controller: str
    name: str
    size: int

    def path(self, layout: CgroupLayout, cgroup: str) -> str | None:
        """Return the path for one cgroup; `None` if the controller is not mounted."""
        directory = layout.directory(self.controller, cgroup)
        return None if directory is None else f"{directory}/{self.name}"


CPU_V1 = CgroupFile("cpuacct", "cpuacct.usage", SMALL)
THROTTLING_V1 = CgroupFile("cpu", "cpu.stat", MIDDLE)
CPU_V2 = CgroupFile("cpu", "cpu.stat", MIDDLE)  # throttling is in it as well
MEMORY_STAT = CgroupFile("memory", "memory.stat", LARGE)
MEMORY_STAT_V2 = CgroupFile("memory", "memory.stat", MIDDLE)  # the start is enough
MEMORY_NUMA = CgroupFile("memory", "memory.numa_stat", MIDDLE)


def pressure_paths(layout: CgroupLayout, cgroup: str) -> tuple[tuple[str, ...], ...]:
    """Return the candidate paths of PSI of a group: cpu, memory and io for each place, best first.

    Version 1 has it below cpuacct on Anolis kernels only; on hybrid hosts the systemd driver
    creates the same groups in cgroup2, which has it on every kernel.
    """
    directories = [layout.directory("cpuacct", cgroup) if layout.version == 1 else None]
    if layout.unified is not None:
        directories.append(layout.unified + cgroup)
    return tuple(
        tuple(f"{directory}/{resource}.pressure" for resource in PRESSURE_RESOURCES)
        for directory in directories
        if directory is not None
    )


def memory_source(
    host: HostFiles, layout: CgroupLayout
) -> tuple[CgroupFile, Callable[[bytes], MemoryBytes]]:
    """Return the cheapest file with a group's memory, and its parser.

    On version 1 that is `memory.numa_stat`, which kernels without NUMA do not have.
    """
    if layout.version == 2:
        return MEMORY_STAT_V2, parse_memory_stat_v2
    path = MEMORY_NUMA.path(layout, layout.root or "")
    try:
        parse_memory_numa_v1(host.read(path) if path else b"")
    except (HostFileError, ParseError):
        return MEMORY_STAT, parse_memory_stat_v1
    return MEMORY_NUMA, parse_memory_numa_v1


MemoryBytes = tuple[int, int]  # bytes without page cache, and with it; including groups below

ThrottledPeriods = tuple[int, int]  # periods and throttled periods since the group was created

CpuTime = tuple[int, ThrottledPeriods | None]  # nanoseconds; None: no cpu controller at this level

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LRU = (b"inactive_anon", b"active_anon", b"inactive_file", b"active_file", b"unevictable")
_LRU_V1 = re.compile(b"".join(b"total_%b ([0-9]{1,20})\n" % key for key in _LRU))
_LRU_V2 = re.compile(b"".join(b"%b ([0-9]{1,20})\n" % key for key in _LRU))

_NUMA_V1 = re.compile(
    rb"\nhierarchical_total=([0-9]{1,20})(?: [^\n]*)?\nhierarchical_file=[^\n]*\n"
    rb"hierarchical_anon=([0-9]{1,20})(?: [^\n]*)?\nhierarchical_unevictable=([0-9]{1,20})[ \n]"
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


def _parse_error(name: str, data: bytes) -> ParseError:
    return ParseError(name, data[:200].decode("utf-8", "replace"))


def parse_counter(data: bytes) -> int:
    """Return the number in `cpuacct.usage`."""
    if not data.endswith(b"\n") or not data[:-1].isdigit() or len(data) > 21:
        raise _parse_error("counter", data)
    value = int(data)
    if value >= LIMIT:
        raise _parse_error("counter", data)
    return value


def parse_cpu_stat_v2(data: bytes) -> CpuTime:
    """Return CPU time in nanoseconds, and throttling if this level has the cpu controller."""
    usage = _USAGE_V2.match(data)
    if usage is None:
        raise _parse_error("cpu.stat", data)
    match = _THROTTLING_V2.search(data, usage.end() - 1)
    usec = int(usage[1])
    throttling = None if match is None else (int(match[1]), int(match[2]))
    _check_counters("cpu.stat", (usec, *(throttling or ())))
    return usec * 1000, throttling


def parse_throttling_v1(data: bytes) -> ThrottledPeriods:
    """Return `nr_periods` and `nr_throttled` from the start of version 1's `cpu.stat`."""
    match = _THROTTLING.match(data)
    if match is None:
        raise _parse_error("cpu.stat", data)
    periods, throttled = int(match[1]), int(match[2])
    _check_counters("cpu.stat", (periods, throttled))
    return periods, throttled


def _memory_from_lru(match: re.Match[bytes] | None, data: bytes) -> MemoryBytes:
    if match is None:
        raise _parse_error("memory.stat", data)
    inactive_anon, active_anon, inactive_file, active_file, fixed = match.groups()
    used = int(inactive_anon) + int(active_anon) + int(fixed)
    with_cache = used + int(inactive_file) + int(active_file)
    _check_counters("memory.stat", (with_cache,), MEMORY_LIMIT)
    return used, with_cache


def parse_memory_stat_v1(data: bytes) -> MemoryBytes:
    """Return memory by the `total_` keys of `memory.stat`, which include the groups below."""
    start = data.rfind(b"total_inactive_anon ")  # these keys are the last in the file
    return _memory_from_lru(_LRU_V1.match(data, max(start, 0)), data)


def parse_memory_stat_v2(data: bytes) -> MemoryBytes:
    """Return memory by `memory.stat`, whose keys include the groups below."""
    start = data.find(b"inactive_anon ")
    return _memory_from_lru(_LRU_V2.match(data, max(start, 0)), data)


def parse_memory_numa_v1(data: bytes) -> MemoryBytes:
    """Return the result of `parse_memory_stat_v1` from `memory.numa_stat`, at half the cost.

    Both files have the same lists of pages. Lines without `hierarchical_` count the group alone.
    """
    match = _NUMA_V1.match(data, max(data.find(b"\nhierarchical_total="), 0))
    if match is None:
        raise _parse_error("memory.numa_stat", data)
    total, anon, fixed = map(int, match.groups())
    used, with_cache = (anon + fixed) * PAGE_BYTES, total * PAGE_BYTES
    _check_counters("memory.numa_stat", (used, with_cache), MEMORY_LIMIT)
    return used, with_cache


def parse_numa_nodes_v1(data: bytes) -> dict[int, int]:
    """Return bytes by NUMA node, including page cache and groups below."""
    match = _NUMA_TOTAL_V1.search(data)
    if match is None:
        raise _parse_error("memory.numa_stat", data)
    nodes = {int(node): int(pages) * PAGE_BYTES for node, pages in _NODE.findall(match[1])}
    _check_counters("memory.numa_stat", tuple(nodes.values()), MEMORY_LIMIT)
    return nodes


def parse_numa_nodes_v2(data: bytes) -> dict[int, int]:
    """Return bytes by NUMA node: anonymous and file memory. The file is in bytes, not pages."""
    lines = _NUMA_V2.findall(data[: data.rfind(b"\n") + 1])
    if len(lines) != 2:
        raise _parse_error("memory.numa_stat", data)
    nodes: dict[int, int] = {}
    for line in lines:
        for node, size in _NODE.findall(line):
            nodes[int(node)] = nodes.get(int(node), 0) + int(size)
    _check_counters("memory.numa_stat", tuple(nodes.values()), MEMORY_LIMIT)
    return nodes


def parse_pressure(data: bytes) -> Pressure:
    """Return PSI of one resource; kernels before 5.13 have no `full` line for the CPU."""
    lines = {kind: (float(avg10), int(total)) for kind, avg10, total in _PRESSURE.findall(data)}
    some, full = lines.get(b"some"), lines.get(b"full")
    if some is None or any(avg10 > MAX_PRESSURE for avg10, _ in lines.values()):
        raise _parse_error("pressure", data)
    _check_counters("pressure", [total for _, total in lines.values()])
    return Pressure(
        some_avg10=some[0],
        some_total_us=some[1],
        full_avg10=None if full is None else full[0],
        full_total_us=None if full is None else full[1],
    )


_DIGITS = b"0123456789"
_BETWEEN = b"\0"  # in no kernel file, so that keys cannot shift from one file into the next
_COMMA = bytes.maketrans(b"\n", b",")
_NO_NUMBERS = bytes(set(range(256)) - set(_DIGITS + b"\n "))
_LRU_KEYS = b"inactive_anon \nactive_anon \ninactive_file \nactive_file \nunevictable \n"
_LRU_LEAST = len(_LRU_KEYS) + 4  # without the last newline
_PERIODS = b"\nnr_periods \nnr_throttled \n"
_list = msgspec.json.Decoder(list[int])


def parse_memory_stats_v2(files: Sequence[bytes]) -> list[MemoryBytes]:
    """Return the result of `parse_memory_stat_v2` for each file."""
    head, key, _ = files[0].partition(b"inactive_anon")
    min_start = len(head.translate(None, _DIGITS)) + head.count(b"\n")  # one digit per line
    end = _line_after(files[0], b"unevictable")
    lines = [
        data[(start := data.find(key, min_start)) : data.find(end, start + _LRU_LEAST) + 1]
        for data in files
    ]
    numbers = _numbers("memory.stat", lines, _LRU_KEYS)
    used = list(map(add, map(add, numbers[0::5], numbers[1::5]), numbers[4::5]))
    with_cache = list(map(add, map(add, used, numbers[2::5]), numbers[3::5]))
    _check_counters("memory.stat", with_cache, MEMORY_LIMIT)
    return list(zip(used, with_cache, strict=True))


def parse_cpu_stats_v2(files: Sequence[bytes]) -> list[CpuTime]:
    """Return the result of `parse_cpu_stat_v2` for each file."""
    keys = files[0].translate(None, _DIGITS)
    if not keys.startswith(b"usage_usec \n"):
        raise ParseError("cpu.stat", "its first key is not usage_usec")
    numbers = _numbers("cpu.stat", files, keys)
    width, at = keys.count(b"\n"), keys.find(_PERIODS)
    usage = numbers[0::width]
    _check_counters("cpu.stat", usage)
    usage_ns = [value * 1000 for value in usage]
    if at < 0:
        return [(value, None) for value in usage_ns]
    first = keys.count(b"\n", 0, at + 1)
    periods = numbers[first::width]
    _check_counters("cpu.stat", periods)
    throttled = numbers[first + 1 :: width]
    _check_counters("cpu.stat", throttled)
    throttling = zip(periods, throttled, strict=True)
    return list(zip(usage_ns, throttling, strict=True))


def _line_after(data: bytes, key: bytes) -> bytes:
    """Return the end of the key's line and the first letter of the next line."""
    end = data.find(b"\n", data.find(key))
    return data[end : end + 2]


def _numbers(name: str, files: Sequence[bytes], keys: bytes) -> list[int]:
    """Return the numbers of all files in order; `keys` is each file without its digits."""
    text = _BETWEEN.join(files)
    if text.translate(None, _DIGITS) != _BETWEEN.join([keys] * len(files)):
        raise ParseError(name, "files of one kernel have other keys than each other")
    # a digit in a key gives two numbers in one place, which JSON refuses, or one before the blank
    values = text.translate(_COMMA, _NO_NUMBERS)
    if b" ," in values:
        raise ParseError(name, "a key without a number")
    try:
        numbers = _list.decode(b"[%b]" % values[:-1])
    except msgspec.DecodeError as error:
        raise ParseError(name, str(error)) from error
    if len(numbers) != len(files) * keys.count(b"\n"):
        raise ParseError(name, "not one number a line")
    return numbers


def _check_counters(name: str, numbers: Sequence[int], limit: int = LIMIT) -> None:
    if max(numbers, default=0) >= limit:
        raise ParseError(name, "a number that no counter holds")
