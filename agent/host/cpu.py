"""CPUs as sysfs shows them: each file read once, nothing concluded."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType

from agent.errors import ParseError
from agent.host.attributes import entries, fact, first_fact, numbered, word
from agent.host.files import HostFiles, text
from agent.host.proc import parse_cpuinfo, parse_isolcpus
from agent.topology.cpu import CpuInfo, CpuSet
from agent.topology.cpu_build import RawCache, RawCpu, RawCpus
from agent.topology.text import parse_cpu_list, parse_cpu_mask, parse_int, parse_size

CPUS = "/sys/devices/system/cpu"
CPUINFO_LIMIT = 8192  # bytes; the first CPU's part is enough, all parts take long on big machines
MAX_ID = (1 << 32) - 1
HYBRID_KINDS = ("cpu_atom", "cpu_core", "cpu_lowpower")
ALLOWED_FILES = tuple(  # version 2, then version 1; the kubelet's two drivers, then the root
    f"/sys/fs/cgroup/{name}"
    for name in (
        "kubepods.slice/cpuset.cpus.effective",
        "kubepods/cpuset.cpus.effective",
        "cpuset/kubepods.slice/cpuset.cpus",
        "cpuset/kubepods/cpuset.cpus",
        "cpuset.cpus.effective",
        "cpuset/cpuset.cpus",
    )
)
_CACHE_KINDS = re.compile(r"(Data|Instruction|Unified)")
_SMT_CONTROL = re.compile(r"(on|off|forceoff|notsupported|notimplemented|[1-9][0-9]{0,2})")
_CBM_MASK = re.compile(r"([0-9a-f]{1,16})")

Parser = Callable[[str], CpuSet]


def read_cpus(host: HostFiles, cmdline: str) -> RawCpus:
    """Read every CPU that is online and has a `topology/`, and what holds for all of them."""
    found, skipped = numbered(entries(host, CPUS), "cpu")
    online = _online(host, found)
    # neighbours print the same masks: each text is parsed once
    mask = functools.lru_cache(maxsize=2 * len(online) + 16)(parse_cpu_mask)
    caches = _Caches(host, mask)
    with_capacity = bool(online) and host.exists(f"{CPUS}/cpu{online[0]}/cpu_capacity")
    cpus: dict[int, RawCpu] = {}
    for number in online:
        cpu = _read_cpu(host, number, mask, caches, with_capacity=with_capacity)
        if cpu is not None:
            cpus[number] = cpu
    smt_active = fact(host, f"{CPUS}/smt/active", lambda value: parse_int(value, 0, 1))
    return RawCpus(
        present=frozenset(found),
        cpus=MappingProxyType(cpus),
        without_topology=frozenset(online).difference(cpus),  # `- cpus.keys()` would be a set
        isolated=_isolated(host, cmdline),
        nohz_full=fact(host, f"{CPUS}/nohz_full", parse_cpu_list) or frozenset(),
        allowed=first_fact(host, ALLOWED_FILES, parse_cpu_list),
        kinds=tuple(_kinds(host)),
        smt_active=None if smt_active is None else smt_active == 1,
        smt_control=word(host, f"{CPUS}/smt/control", _SMT_CONTROL),
        info=_read_info(host),
        skipped=skipped + caches.skipped,
    )


def _online(host: HostFiles, found: list[int]) -> list[int]:
    listed = fact(host, f"{CPUS}/online", parse_cpu_list)
    if listed is not None:
        return [number for number in found if number in listed]
    # cpu0 often has no such file, nor has a kernel without hot-plug any
    return [number for number in found if text(host, f"{CPUS}/cpu{number}/online") != "0"]


def _read_cpu(
    host: HostFiles, number: int, mask: Parser, caches: _Caches, *, with_capacity: bool
) -> RawCpu | None:
    folder = f"{CPUS}/cpu{number}"
    topology = f"{folder}/topology"
    core = _set(host, (f"{topology}/core_cpus", f"{topology}/thread_siblings"), mask)
    if core is None and not host.exists(topology):
        return None
    return RawCpu(
        core=core,
        cluster=_set(host, (f"{topology}/cluster_cpus",), mask),
        die=_set(host, (f"{topology}/die_cpus",), mask),
        package=_set(host, (f"{topology}/package_cpus", f"{topology}/core_siblings"), mask),
        package_id=fact(host, f"{topology}/physical_package_id", _id),
        caches=tuple(caches.read(f"{folder}/cache")),
        capacity=fact(host, f"{folder}/cpu_capacity", _id) if with_capacity else None,
    )


def _id(value: str) -> int:
    return parse_int(value, -1, MAX_ID)


def _set(host: HostFiles, paths: Iterable[str], mask: Parser) -> CpuSet | None:
    """Return the first set there is: the mask exists on every kernel, else its list."""
    for path in paths:
        found = fact(host, path, mask)
        if found is None:
            found = fact(host, f"{path}_list", parse_cpu_list)
        if found is not None:
            return found
    return None


class _Caches:
    """Reads `cache/` folders. What all CPUs of a unit would repeat is read of its first one."""

    def __init__(self, host: HostFiles, mask: Parser) -> None:
        self._host = host
        self._mask = mask
        self._units: dict[tuple[int, CpuSet], tuple[int | None, str | None, int | None]] = {}
        self.skipped = 0

    def read(self, folder: str) -> Iterator[RawCache]:
        """Yield the caches of one CPU; one without level or kind is left out."""
        indexes, malformed = numbered(entries(self._host, folder), "index")
        self.skipped += malformed
        for index in indexes:
            path = f"{folder}/index{index}"
            cpus = fact(self._host, f"{path}/shared_cpu_map", self._mask)
            if cpus is None:
                cpus = fact(self._host, f"{path}/shared_cpu_list", parse_cpu_list)
            level, kind, size_bytes = self._unit(path, index, cpus or frozenset())
            if level is not None and kind is not None:
                yield RawCache(
                    level=level,
                    kind=kind,
                    cpus=cpus,
                    # read for each CPU: guests print several ids for one unit
                    id=fact(self._host, f"{path}/id", lambda value: parse_int(value, 0, MAX_ID)),
                    size_bytes=size_bytes,
                )

    def _unit(
        self, path: str, index: int, cpus: CpuSet
    ) -> tuple[int | None, str | None, int | None]:
        known = self._units.get((index, cpus)) if cpus else None
        if known is None:
            known = (
                fact(self._host, f"{path}/level", lambda value: parse_int(value, 1, 9)),
                word(self._host, f"{path}/type", _CACHE_KINDS),
                fact(self._host, f"{path}/size", parse_size),
            )
            self._units[index, cpus] = known
        return known


def _isolated(host: HostFiles, cmdline: str) -> CpuSet:
    listed = fact(host, f"{CPUS}/isolated", parse_cpu_list)
    if listed is not None:
        return listed
    try:
        return parse_isolcpus(cmdline)
    except ParseError:
        return frozenset()


def _kinds(host: HostFiles) -> Iterator[tuple[str, CpuSet]]:
    for name in HYBRID_KINDS:
        cpus = fact(host, f"/sys/devices/{name}/cpus", parse_cpu_list)
        if cpus:
            yield name, cpus


def _read_info(host: HostFiles) -> CpuInfo:
    model, vendor = parse_cpuinfo(text(host, "/proc/cpuinfo", CPUINFO_LIMIT) or "")
    no_turbo = fact(host, f"{CPUS}/intel_pstate/no_turbo", lambda value: parse_int(value, 0, 1))
    return CpuInfo(
        model=model,
        vendor=vendor,
        turbo=None if no_turbo is None else no_turbo == 0,
        l3_cbm_mask=word(host, "/sys/fs/resctrl/info/L3/cbm_mask", _CBM_MASK),
    )
