"""CPUs and NUMA nodes of one host, read from sysfs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from agent.errors import ParseError
from agent.host.files import (
    list_entries,
    numbered_entries,
    read_first_value,
    read_match,
    read_text,
    read_value,
)
from agent.host.proc import (
    has_fake_numa,
    parse_cpuinfo,
    parse_isolcpus,
    parse_meminfo,
    parse_numa_status,
)
from agent.snapshot.cpu import CpuInfo, CpuSet, CpuTopology, NumaTopology
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pci import parse_address
from agent.topology.cpu import RawCache, RawCpu, RawCpus, build_cpus, group_cpus
from agent.topology.numa import RawNode, RawNuma, assign_cpus, build_numa
from agent.wire_formats.kernel_text import (
    MAX_CPUS,
    parse_cpu_list,
    parse_cpu_mask,
    parse_distances,
    parse_int,
    parse_size,
)

CPUS = "/sys/devices/system/cpu"

# bytes; the part of the first CPU is enough, the whole file is slow on large machines
CPUINFO_LIMIT = 8192
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
    """Read every CPU that is online and has a `topology/`, and the facts about all CPUs."""
    numbers, skipped = numbered_entries(list_entries(host, CPUS), "cpu")
    online = _online_cpus(host, numbers)
    # CPUs of one unit have equal masks: each text is parsed once
    mask = functools.lru_cache(maxsize=2 * len(online) + 16)(parse_cpu_mask)
    caches = _CacheReader(host, mask)
    with_capacity = bool(online) and host.exists(f"{CPUS}/cpu{online[0]}/cpu_capacity")
    cpus: dict[int, RawCpu] = {}
    for number in online:
        cpu = _read_cpu(host, number, mask, caches, with_capacity=with_capacity)
        if cpu is not None:
            cpus[number] = cpu
    smt_active = read_value(host, f"{CPUS}/smt/active", lambda value: parse_int(value, 0, 1))
    return RawCpus(
        present=frozenset(numbers),
        cpus=MappingProxyType(cpus),
        # `- cpus.keys()` would give a plain set
        without_topology=frozenset(online).difference(cpus),
        isolated=_isolated_cpus(host, cmdline),
        nohz_full=read_value(host, f"{CPUS}/nohz_full", parse_cpu_list) or frozenset(),
        allowed=read_first_value(host, ALLOWED_FILES, parse_cpu_list),
        kinds=tuple(_hybrid_kinds(host)),
        smt_active=None if smt_active is None else smt_active == 1,
        smt_control=read_match(host, f"{CPUS}/smt/control", _SMT_CONTROL),
        info=_read_info(host),
        skipped=skipped + caches.skipped,
    )


def _online_cpus(host: HostFiles, numbers: list[int]) -> list[int]:
    listed = read_value(host, f"{CPUS}/online", parse_cpu_list)
    if listed is not None:
        return [number for number in numbers if number in listed]
    # cpu0 often has no such file, and a kernel without hot-plug has none
    return [number for number in numbers if read_text(host, f"{CPUS}/cpu{number}/online") != "0"]


def _read_cpu(
    host: HostFiles, number: int, mask: Parser, caches: _CacheReader, *, with_capacity: bool
) -> RawCpu | None:
    folder = f"{CPUS}/cpu{number}"
    topology = f"{folder}/topology"
    core = _read_set(host, (f"{topology}/core_cpus", f"{topology}/thread_siblings"), mask)
    if core is None and not host.exists(topology):
        return None
    return RawCpu(
        core=core,
        cluster=_read_set(host, (f"{topology}/cluster_cpus",), mask),
        die=_read_set(host, (f"{topology}/die_cpus",), mask),
        package=_read_set(host, (f"{topology}/package_cpus", f"{topology}/core_siblings"), mask),
        package_id=read_value(host, f"{topology}/physical_package_id", _parse_id),
        caches=tuple(caches.read(f"{folder}/cache")),
        capacity=read_value(host, f"{folder}/cpu_capacity", _parse_id) if with_capacity else None,
    )


def _parse_id(value: str) -> int:
    return parse_int(value, -1, MAX_ID)


def _read_set(host: HostFiles, paths: Iterable[str], mask: Parser) -> CpuSet | None:
    """Return the first set that exists; each as a mask on every kernel, else as a list."""
    for path in paths:
        cpus = read_value(host, path, mask)
        if cpus is None:
            cpus = read_value(host, f"{path}_list", parse_cpu_list)
        if cpus is not None:
            return cpus
    return None


class _CacheReader:
    """Reads `cache/` folders. Facts that all CPUs of a unit share are read once."""

    def __init__(self, host: HostFiles, mask: Parser) -> None:
        self._host = host
        self._mask = mask
        self._units: dict[tuple[int, CpuSet], tuple[int | None, str | None, int | None]] = {}
        self.skipped = 0

    def read(self, folder: str) -> Iterator[RawCache]:
        """Yield the caches of one CPU; those without level or kind are left out."""
        indexes, malformed = numbered_entries(list_entries(self._host, folder), "index")
        self.skipped += malformed
        for index in indexes:
            path = f"{folder}/index{index}"
            cpus = read_value(self._host, f"{path}/shared_cpu_map", self._mask)
            if cpus is None:
                cpus = read_value(self._host, f"{path}/shared_cpu_list", parse_cpu_list)
            level, kind, size_bytes = self._unit(path, index, cpus or frozenset())
            if level is not None and kind is not None:
                yield RawCache(
                    level=level,
                    kind=kind,
                    cpus=cpus,
                    # read for each CPU: guests have several ids for one unit
                    id=read_value(
                        self._host, f"{path}/id", lambda value: parse_int(value, 0, MAX_ID)
                    ),
                    size_bytes=size_bytes,
                )

    def _unit(
        self, path: str, index: int, cpus: CpuSet
    ) -> tuple[int | None, str | None, int | None]:
        unit = self._units.get((index, cpus)) if cpus else None
        if unit is None:
            unit = (
                read_value(self._host, f"{path}/level", lambda value: parse_int(value, 1, 9)),
                read_match(self._host, f"{path}/type", _CACHE_KINDS),
                read_value(self._host, f"{path}/size", parse_size),
            )
            self._units[index, cpus] = unit
        return unit


def _isolated_cpus(host: HostFiles, cmdline: str) -> CpuSet:
    listed = read_value(host, f"{CPUS}/isolated", parse_cpu_list)
    if listed is not None:
        return listed
    try:
        return parse_isolcpus(cmdline)
    except ParseError:
        return frozenset()


def _hybrid_kinds(host: HostFiles) -> Iterator[tuple[str, CpuSet]]:
    for name in HYBRID_KINDS:
        cpus = read_value(host, f"/sys/devices/{name}/cpus", parse_cpu_list)
        if cpus:
            yield name, cpus


def _read_info(host: HostFiles) -> CpuInfo:
    model, vendor = parse_cpuinfo(read_text(host, "/proc/cpuinfo", CPUINFO_LIMIT) or "")
    no_turbo = read_value(
        host, f"{CPUS}/intel_pstate/no_turbo", lambda value: parse_int(value, 0, 1)
    )
    return CpuInfo(
        model=model,
        vendor=vendor,
        turbo=None if no_turbo is None else no_turbo == 0,
        l3_cbm_mask=read_match(host, "/sys/fs/resctrl/info/L3/cbm_mask", _CBM_MASK),
    )


NODES = "/sys/devices/system/node"
NVIDIA_CARDS = "/proc/driver/nvidia/gpus"
DAX_DEVICES = "/sys/bus/dax/devices"
PCI_DEVICES = "/sys/bus/pci/devices"
ACCESS_CLASSES = ("access1", "access0")  # best access from CPUs, then from any initiator
MAX_PAGES = 1 << 40
_HUGEPAGES = re.compile(r"hugepages-([1-9][0-9]{0,9})kB")


def read_numa(host: HostFiles, cmdline: str, present: CpuSet) -> RawNuma:
    """Read every online NUMA node; a kernel without nodes has one, with all CPUs."""
    numbers, skipped = numbered_entries(list_entries(host, NODES), "node")
    online = read_value(host, f"{NODES}/online", parse_cpu_list)
    ids = [node for node in numbers if online is None or node in online] or numbers
    if not ids:
        return RawNuma(nodes=(_single_node(host, present),), skipped=skipped)
    return RawNuma(
        nodes=tuple(_read_node(host, node, len(ids)) for node in ids),
        gpus=MappingProxyType(_read_cards(host)),
        dax=_read_dax(host),
        generic_initiators=read_value(host, f"{NODES}/has_generic_initiator", parse_cpu_list)
        or frozenset(),
        fake=has_fake_numa(cmdline),
        skipped=skipped,
    )


def _single_node(host: HostFiles, present: CpuSet) -> RawNode:
    memory_bytes, problem = _read_memory(host, "/proc/meminfo")
    return RawNode(
        id=0,
        cpus=present,
        memory_bytes=memory_bytes,
        memory_problem=problem,
        hugepages=_read_hugepages(host, "/sys/kernel/mm/hugepages"),
    )


def _read_node(host: HostFiles, number: int, count: int) -> RawNode:
    folder = f"{NODES}/node{number}"
    memory_bytes, problem = _read_memory(host, f"{folder}/meminfo")
    row = functools.partial(parse_distances, count=count)
    return RawNode(
        id=number,
        cpus=_read_cpus(host, f"{folder}/cpumap", f"{folder}/cpulist") or frozenset(),
        memory_bytes=memory_bytes,
        memory_problem=problem,
        hugepages=_read_hugepages(host, f"{folder}/hugepages"),
        distances=read_value(host, f"{folder}/distance", row),
        initiators=_read_initiators(host, folder),
    )


def _read_cpus(host: HostFiles, mask_path: str, list_path: str) -> CpuSet | None:
    cpus = read_value(host, mask_path, parse_cpu_mask)
    return read_value(host, list_path, parse_cpu_list) if cpus is None else cpus


def _read_memory(host: HostFiles, path: str) -> tuple[int | None, str]:
    """Return MemTotal in bytes, and the problem with it.

    A missing line is 0, an absurd value unknown.
    """
    figures = read_value(host, path, parse_meminfo)
    if figures is None:
        return None, f"{path}: unreadable"
    if "MemTotal" not in figures:
        return 0, f"{path}: no MemTotal"
    memory_bytes = figures["MemTotal"]
    return memory_bytes, "" if memory_bytes is not None else f"{path}: absurd MemTotal"


def _read_hugepages(host: HostFiles, folder: str) -> tuple[tuple[int, int], ...]:
    pools: list[tuple[int, int]] = []
    for name in list_entries(host, folder):
        match = _HUGEPAGES.fullmatch(name)
        pages = match and read_value(
            host, f"{folder}/{name}/nr_hugepages", lambda value: parse_int(value, 0, MAX_PAGES)
        )
        if match and pages is not None:
            pools.append((int(match[1]) * 1024, pages))
    return tuple(sorted(pools))


def _read_initiators(host: HostFiles, folder: str) -> frozenset[int]:
    for access in ACCESS_CLASSES:
        nodes, _ = numbered_entries(list_entries(host, f"{folder}/{access}/initiators"), "node")
        if nodes:
            return frozenset(nodes)
    return frozenset()


def _read_cards(host: HostFiles) -> Mapping[int, tuple[str, CpuSet | None]]:
    """Return the NVIDIA card of each NUMA node; the first if two name one node."""
    cards: dict[int, tuple[str, CpuSet | None]] = {}
    for name in list_entries(host, NVIDIA_CARDS):
        node = read_value(host, f"{NVIDIA_CARDS}/{name}/numa_status", parse_numa_status)
        address = _parse_card_address(name)
        if node is not None and address is not None and node not in cards:
            folder = f"{PCI_DEVICES}/{address}"
            cards[node] = (
                address,
                _read_cpus(host, f"{folder}/local_cpus", f"{folder}/local_cpulist"),
            )
    return cards


def _parse_card_address(name: str) -> str | None:
    try:
        return parse_address(name)
    except ParseError:
        return None


def _read_dax(host: HostFiles) -> frozenset[int]:
    targets = (
        read_value(
            host, f"{DAX_DEVICES}/{name}/target_node", lambda v: parse_int(v, -1, MAX_CPUS - 1)
        )
        for name in list_entries(host, DAX_DEVICES)
    )
    return frozenset(node for node in targets if node is not None and node >= 0)


def read_cpu_numa(host: HostFiles) -> tuple[CpuTopology, NumaTopology]:
    """Read and build CPUs and NUMA nodes. Nothing raises; a host without CPUs has none.

    A 192-CPU machine takes about 3000 small reads.
    """
    cmdline = read_text(host, "/proc/cmdline") or ""
    raw_cpus = read_cpus(host, cmdline)
    raw_numa = read_numa(host, cmdline, raw_cpus.present)
    levels = group_cpus(raw_cpus.cpus)
    shares = assign_cpus(raw_numa.nodes, frozenset(raw_cpus.cpus), levels.packages)
    return (
        build_cpus(raw_cpus, levels, shares.node_of),
        build_numa(raw_numa, shares, levels.packages),
    )
