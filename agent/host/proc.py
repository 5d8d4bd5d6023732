"""Parsers for files of /proc. Pure; lines that the kernel does not print are ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.errors import ParseError
from agent.snapshot.cpu import CpuSet
from agent.wire_formats.kernel_text import MAX_CPUS, parse_cpu_list

MAX_MEMORY_KB = 1 << 50  # a larger number is a driver's underflow
MAX_NAME = 128  # characters of a model or vendor name

_CPU_LINE = re.compile(r"cpu(0|[1-9][0-9]{0,4})?((?: +[0-9]{1,20}){4,10}) *", re.ASCII)
_BTIME = re.compile(r"^btime ([0-9]{1,12})$", re.MULTILINE)
_MEMORY_LINE = re.compile(
    r"^(?:Node +[0-9]{1,5} +)?([A-Za-z][A-Za-z0-9_()]{0,60}): +([0-9]{1,20})( kB)?\s*$",
    re.MULTILINE,
)
_NUMA_STATUS_NODE = re.compile(r"^Node:[ \t]*([0-9]{1,5})\s*$", re.MULTILINE)
_ISOLCPUS_FLAGS = frozenset({"domain", "nohz", "managed_irq"})
# names as in lscpu
_ARM_IMPLEMENTERS = MappingProxyType(
    {
        0x41: "ARM",
        0x42: "Broadcom",
        0x43: "Cavium",
        0x46: "FUJITSU",
        0x48: "HiSilicon",
        0x4E: "NVIDIA",
        0x50: "APM",
        0x51: "Qualcomm",
        0x61: "Apple",
        0x69: "Intel",
        0x70: "Phytium",
        0xC0: "Ampere",
    }
)


class CpuTicks(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one line of /proc/stat, in clock ticks. Guest time is part of user time."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int = 0
    irq: int = 0
    softirq: int = 0
    steal: int = 0

    @property
    def busy(self) -> int:
        """Ticks in which this machine worked: without idle, iowait and steal."""
        return self.user + self.nice + self.system + self.irq + self.softirq


class ProcStat(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the agent uses of /proc/stat."""

    total: CpuTicks
    cpus: Mapping[int, CpuTicks]  # online CPUs only
    boot_time_s: int | None  # wall clock; None: the text ends before it


def parse_stat(text: str) -> ProcStat:
    """Parse /proc/stat; raises `ParseError` without its first line."""
    total: CpuTicks | None = None
    cpus: dict[int, CpuTicks] = {}
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break
        if match := _CPU_LINE.fullmatch(line):
            ticks = _ticks(match[2])
            if match[1] is None:
                total = ticks
            elif int(match[1]) < MAX_CPUS:
                cpus[int(match[1])] = ticks
    if total is None:
        raise ParseError("/proc/stat", text)
    booted = _BTIME.search(text)
    return ProcStat(
        total=total,
        cpus=MappingProxyType(cpus),
        boot_time_s=int(booted[1]) if booted else None,
    )


def _ticks(columns: str) -> CpuTicks:
    user, nice, system, idle, *optional = (int(column) for column in columns.split())
    iowait, irq, softirq, steal = (*optional, 0, 0, 0, 0)[:4]
    return CpuTicks(
        user=user,
        nice=nice,
        system=system,
        idle=idle,
        iowait=iowait,
        irq=irq,
        softirq=softirq,
        steal=steal,
    )


def parse_meminfo(text: str) -> Mapping[str, int | None]:
    """Parse /proc/meminfo or a NUMA node's meminfo; kB become bytes, counts stay.

    An absurd number is `None`; a missing line is a missing key.
    """
    figures: dict[str, int | None] = {}
    for name, digits, unit in _MEMORY_LINE.findall(text):
        value = int(digits)
        is_plausible = value <= MAX_MEMORY_KB
        figures[name] = (value * 1024 if unit else value) if is_plausible else None
    return figures


def parse_cpuinfo(text: str) -> tuple[str | None, str | None]:
    """Return (model name, vendor) of the first CPU in /proc/cpuinfo.

    Arm kernels print the implementer's number instead of a vendor; it becomes a name as in lscpu.
    """
    first: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            first.setdefault(key.strip(), value.strip(" \t\r\0")[:MAX_NAME])
    vendor = first.get("vendor_id") or _implementer(first.get("CPU implementer", ""))
    return first.get("model name") or None, vendor or None


def _implementer(text: str) -> str | None:
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text):
        return None
    return _ARM_IMPLEMENTERS.get(int(text, 16), text)


def parse_isolcpus(cmdline: str) -> CpuSet:
    """Return the CPUs of the last `isolcpus=` on the kernel's command line, without its flags."""
    values = [word[len("isolcpus=") :] for word in cmdline.split() if word.startswith("isolcpus=")]
    if not values:
        return frozenset()
    items = [item for item in values[-1].split(",") if item not in _ISOLCPUS_FLAGS]
    return parse_cpu_list(",".join(items))


def has_fake_numa(cmdline: str) -> bool:
    """Return whether the kernel command line creates fake NUMA nodes."""
    return any(word.startswith("numa=fake=") for word in cmdline.split())


def parse_numa_status(text: str) -> int | None:
    """Return the NUMA node in NVIDIA's `numa_status`; `None` if it has none."""
    match = _NUMA_STATUS_NODE.search(text)
    return int(match[1]) if match and int(match[1]) < MAX_CPUS else None
