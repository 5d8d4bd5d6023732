"""Which cgroup file tells which value, on both versions."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from agent.cgroup import parse
from agent.cgroup.layout import CgroupLayout
from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles

# first read; a longer file is read again with more room (many memory nodes)
SMALL, MIDDLE, LARGE = 64, 448, 2048  # bytes; Python keeps pools of objects up to 512

RESOURCES = ("cpu", "memory", "io")  # of pressure


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
CPU_V2 = CgroupFile("cpu", "cpu.stat", MIDDLE)  # throttling too
MEMORY_STAT = CgroupFile("memory", "memory.stat", LARGE)
MEMORY_STAT_V2 = CgroupFile("memory", "memory.stat", MIDDLE)  # only its start tells
MEMORY_NUMA = CgroupFile("memory", "memory.numa_stat", MIDDLE)


def pressure_paths(layout: CgroupLayout, cgroup: str) -> tuple[tuple[str, ...], ...]:
    """Return where PSI of a group may be: cpu, memory and io of each place, best place first.

    Version 1 has it below cpuacct on Anolis kernels only; on hybrid hosts the systemd driver makes
    the same groups in cgroup2, which has it on every kernel.
    """
    places = [layout.directory("cpuacct", cgroup) if layout.version == 1 else None]
    if layout.unified is not None:
        places.append(layout.unified + cgroup)
    return tuple(
        tuple(f"{place}/{resource}.pressure" for resource in RESOURCES)
        for place in places
        if place is not None
    )


def memory_source(
    host: HostFiles, layout: CgroupLayout
) -> tuple[CgroupFile, Callable[[bytes], parse.Memory]]:
    """Return the cheapest file that tells a group's memory, and its parser.

    On version 1 that is `memory.numa_stat`, which kernels without NUMA do not have.
    """
    if layout.version == 2:
        return MEMORY_STAT_V2, parse.memory_stat_v2
    path = MEMORY_NUMA.path(layout, layout.root or "")
    try:
        parse.memory_numa_v1(host.read(path) if path else b"")
    except (HostFileError, ParseError):
        return MEMORY_STAT, parse.memory_stat_v1
    return MEMORY_NUMA, parse.memory_numa_v1
