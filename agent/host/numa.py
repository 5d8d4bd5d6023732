"""Memory nodes as sysfs shows them: each file read once, nothing concluded."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

from agent.errors import ParseError
from agent.host.attributes import entries, fact, numbered
from agent.host.files import HostFiles
from agent.host.proc import has_fake_numa, parse_meminfo, parse_numa_status
from agent.topology.address import parse_address
from agent.topology.cpu import CpuSet
from agent.topology.numa_build import RawNode, RawNuma
from agent.topology.text import (
    MAX_CPUS,
    parse_cpu_list,
    parse_cpu_mask,
    parse_distances,
    parse_int,
)

NODES = "/sys/devices/system/node"
NVIDIA_CARDS = "/proc/driver/nvidia/gpus"
DAX_DEVICES = "/sys/bus/dax/devices"
PCI_DEVICES = "/sys/bus/pci/devices"
ACCESS_CLASSES = ("access1", "access0")  # best access from CPUs, then from any initiator
MAX_PAGES = 1 << 40
_HUGEPAGES = re.compile(r"hugepages-([1-9][0-9]{0,9})kB")


def read_numa(host: HostFiles, cmdline: str, present: CpuSet) -> RawNuma:
    """Read every online memory node; a kernel without nodes has one, with all CPUs."""
    found, skipped = numbered(entries(host, NODES), "node")
    online = fact(host, f"{NODES}/online", parse_cpu_list)
    ids = [node for node in found if online is None or node in online] or found
    if not ids:
        return RawNuma(nodes=(_whole_machine(host, present),), skipped=skipped)
    return RawNuma(
        nodes=tuple(_read_node(host, node, len(ids)) for node in ids),
        gpus=MappingProxyType(_read_cards(host)),
        dax=_read_dax(host),
        generic_initiators=fact(host, f"{NODES}/has_generic_initiator", parse_cpu_list)
        or frozenset(),
        fake=has_fake_numa(cmdline),
        skipped=skipped,
    )


def _whole_machine(host: HostFiles, present: CpuSet) -> RawNode:
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
        cpus=_cpus(host, f"{folder}/cpumap", f"{folder}/cpulist") or frozenset(),
        memory_bytes=memory_bytes,
        memory_problem=problem,
        hugepages=_read_hugepages(host, f"{folder}/hugepages"),
        distances=fact(host, f"{folder}/distance", row),
        initiators=_read_initiators(host, folder),
    )


def _cpus(host: HostFiles, mask_path: str, list_path: str) -> CpuSet | None:
    cpus = fact(host, mask_path, parse_cpu_mask)
    return fact(host, list_path, parse_cpu_list) if cpus is None else cpus


def _read_memory(host: HostFiles, path: str) -> tuple[int | None, str]:
    """Return MemTotal in bytes, and what is wrong with it. No line is 0, absurd is unknown."""
    figures = fact(host, path, parse_meminfo)
    if figures is None:
        return None, f"{path}: unreadable"
    if "MemTotal" not in figures:
        return 0, f"{path}: no MemTotal"
    memory_bytes = figures["MemTotal"]
    return memory_bytes, "" if memory_bytes is not None else f"{path}: absurd MemTotal"


def _read_hugepages(host: HostFiles, folder: str) -> tuple[tuple[int, int], ...]:
    pools: list[tuple[int, int]] = []
    for name in entries(host, folder):
        match = _HUGEPAGES.fullmatch(name)
        pages = match and fact(
            host, f"{folder}/{name}/nr_hugepages", lambda value: parse_int(value, 0, MAX_PAGES)
        )
        if match and pages is not None:
            pools.append((int(match[1]) * 1024, pages))
    return tuple(sorted(pools))


def _read_initiators(host: HostFiles, folder: str) -> frozenset[int]:
    for access in ACCESS_CLASSES:
        nodes, _ = numbered(entries(host, f"{folder}/{access}/initiators"), "node")
        if nodes:
            return frozenset(nodes)
    return frozenset()


def _read_cards(host: HostFiles) -> Mapping[int, tuple[str, CpuSet | None]]:
    """Return which NVIDIA card is behind which node; of two that name one node, the first."""
    cards: dict[int, tuple[str, CpuSet | None]] = {}
    for name in entries(host, NVIDIA_CARDS):
        node = fact(host, f"{NVIDIA_CARDS}/{name}/numa_status", parse_numa_status)
        address = _address(name)
        if node is not None and address is not None and node not in cards:
            local = f"{PCI_DEVICES}/{address}"
            cards[node] = (address, _cpus(host, f"{local}/local_cpus", f"{local}/local_cpulist"))
    return cards


def _address(name: str) -> str | None:
    try:
        return parse_address(name)
    except ParseError:
        return None


def _read_dax(host: HostFiles) -> frozenset[int]:
    targets = (
        fact(host, f"{DAX_DEVICES}/{name}/target_node", lambda v: parse_int(v, -1, MAX_CPUS - 1))
        for name in entries(host, DAX_DEVICES)
    )
    return frozenset(node for node in targets if node is not None and node >= 0)
