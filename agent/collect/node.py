"""The whole node's counters: CPU time, memory, and both of each memory node."""

from __future__ import annotations

import os
import re

import msgspec

from agent.collect.reader import Door, FileColumn
from agent.collect.slow import NODE_PRESSURE, Pace, PressureMap, pressure_column, read_pressure
from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles, LiveRoot, text
from agent.topology.text import parse_cpu_list

NODES = "/sys/devices/system/node"
DEFAULT_TICKS = 100  # a second; of every kernel that distributions build
STAT_BYTES = 4096
MEMINFO_BYTES = 256  # the three lines wanted are the first
NODE_MEMINFO_BYTES = 4096

_NUMBER = rb"([0-9]{1,20})"
_CPU = re.compile(
    rb"^cpu([0-9]{0,9}) +%b %b %b [0-9]+ [0-9]+ %b %b[ \n]" % ((_NUMBER,) * 5), re.MULTILINE
)
_MEMINFO = re.compile(
    rb"MemTotal: +%b kB\nMemFree: +%b kB\n(?:MemAvailable: +%b kB\n)?" % ((_NUMBER,) * 3)
)
_NODE_LINE = re.compile(
    rb" (MemTotal|MemFree|Active\(file\)|Inactive\(file\)|SReclaimable): +%b kB\n" % _NUMBER
)
_NODE_KEYS = (b"MemFree", b"Active(file)", b"Inactive(file)", b"SReclaimable")
_NODE_DIR = re.compile(r"node([0-9]{1,5})")


class MemInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The node's memory in bytes; `available` is absent on kernels before 3.14."""

    total: int
    free: int
    available: int | None


def parse_busy(data: bytes) -> dict[int | None, int]:
    """Return busy ticks by CPU, and of all CPUs for `None`, from `/proc/stat`.

    Busy is user + nice + system + irq + softirq: guest time is in user time already, and steal,
    idle and iowait are nobody's work.
    """
    busy: dict[int | None, int] = {}
    for cpu, user, nice, system, irq, softirq in _CPU.findall(data):
        ticks = int(user) + int(nice) + int(system) + int(irq) + int(softirq)
        busy[int(cpu) if cpu else None] = ticks
    if None not in busy:
        raise ParseError("/proc/stat", data[:80].decode("utf-8", "replace"))
    return busy


def parse_busy_total(data: bytes) -> dict[int | None, int]:
    """Return what `parse_busy` does for `None` alone."""
    return parse_busy(data[: data.find(b"\n") + 1])


def parse_meminfo(data: bytes) -> MemInfo:
    """Return the first lines of `/proc/meminfo`, in bytes."""
    match = _MEMINFO.match(data)
    if match is None:
        raise ParseError("/proc/meminfo", data[:80].decode("utf-8", "replace"))
    total, free, available = (None if kb is None else int(kb) * 1024 for kb in match.groups())
    return MemInfo(total=total or 0, free=free or 0, available=available)


def parse_node_memory(data: bytes) -> int:
    """Return a memory node's use without page cache, in bytes, from its `meminfo`."""
    kb = {key: int(value) for key, value in _NODE_LINE.findall(data)}
    if b"MemTotal" not in kb or b"MemFree" not in kb:
        raise ParseError("node meminfo", data[:80].decode("utf-8", "replace"))
    return max(0, kb[b"MemTotal"] - sum(kb.get(key, 0) for key in _NODE_KEYS)) * 1024


class NodeCounters(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the node's files; `None` is what could not be read."""

    busy: dict[int | None, int] | None  # ticks, as of `parse_busy`
    memory: MemInfo | None
    node_memory: tuple[int | None, ...]  # bytes, in the order of `NodeReader.nodes`
    pressure: PressureMap | None


class NodeReader:
    """Reads the node's files with kept descriptors. Memory nodes are those of its first look."""

    def __init__(self, host: HostFiles, door: Door, pace: Pace) -> None:
        live = isinstance(host, LiveRoot)
        self.ticks_per_s = os.sysconf("SC_CLK_TCK") if live else DEFAULT_TICKS
        self.nodes = _nodes(host)  # (node, its CPUs), by node
        one = len(self.nodes) < 2
        self._stat = FileColumn(door, parse_busy_total if one else parse_busy, STAT_BYTES)
        self._meminfo = FileColumn(door, parse_meminfo, MEMINFO_BYTES, cut=True)
        self._node_meminfo = FileColumn(door, parse_node_memory, NODE_MEMINFO_BYTES)
        self._pressure = pressure_column(lambda _: read_pressure(door, NODE_PRESSURE), pace)
        self._stat.follow(["/proc/stat"])
        self._meminfo.follow(["/proc/meminfo"])
        self._node_meminfo.follow([f"{NODES}/node{node}/meminfo" for node, _ in self.nodes])
        self._pressure.follow(["node"])

    def read(self) -> NodeCounters:
        """Read everything once."""
        return NodeCounters(
            busy=self._stat.read()[0],
            memory=self._meminfo.read()[0],
            node_memory=tuple(self._node_meminfo.read()),
            pressure=self._pressure.read()[0],
        )

    def close(self) -> None:
        """Let go of all descriptors."""
        for column in (self._stat, self._meminfo, self._node_meminfo):
            column.close()


def _nodes(host: HostFiles) -> tuple[tuple[int, frozenset[int]], ...]:
    try:
        names = host.names(NODES)
    except HostFileError:
        return ()
    found = []
    for match in filter(None, map(_NODE_DIR.fullmatch, names)):
        cpus = text(host, f"{NODES}/{match[0]}/cpulist") or ""
        try:
            found.append((int(match[1]), parse_cpu_list(cpus)))
        except ParseError:  # without its CPUs the node's memory is still told
            found.append((int(match[1]), frozenset()))
    return tuple(sorted(found, key=lambda item: item[0]))
