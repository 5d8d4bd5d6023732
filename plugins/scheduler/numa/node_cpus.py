"""CPUs and NUMA nodes of one node as its NodeResourceTopology describes them. Untrusted input."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec

from agent.errors import ParseError
from agent.wire_formats.json_values import JSON_ERRORS
from agent.wire_formats.kernel_text import parse_cpu_list
from plugins.scheduler.devices.device_table import Amounts, Labels
from plugins.scheduler.numa.cpu_accumulator import CpuCounts, CpuPlace, cpu_counts
from plugins.scheduler.pod_object import CPU, parse_amounts

T = TypeVar("T")

CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
CPU_MANAGER = "kubelet.koordinator.sh/cpu-manager-policy"
POD_CPUS = "node.koordinator.sh/pod-cpu-allocs"
RESERVATION = "node.koordinator.sh/reservation"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
AMPLIFICATION = "node.koordinator.sh/resource-amplification-ratio"
MAX_RATIO = 1000.0
ZONE_PREFIX = "node-"
MAX_CPUS = 8192
MAX_ZONES = 64
MAX_ZONE_DIGITS = 4  # of the number in a zone's name


NO_CPUS = CpuCounts(0, 0, 0)


class NodeCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and NUMA nodes of a node. `reserved` CPUs are allocated to no pod."""

    node: str
    places: Mapping[int, CpuPlace] = {}
    counts: CpuCounts = NO_CPUS
    zones: Mapping[int, Amounts] = {}  # what pods may have, by NUMA node
    reserved: frozenset[int] = frozenset()
    is_full_cores_only: bool = False  # the kubelet gives whole cores only
    kubelet_numa_policy: str = ""
    reserved_uids: frozenset[str] = frozenset()  # of pods whose CPUs are among the reserved ones


class CpuCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU that a Node offers.

    `ratio`: its multiple of the machine's CPU; `None`: unreadable.
    """

    allocatable_milli: int = 0
    ratio: float | None = 1.0


class _CpuDetail(msgspec.Struct):
    id: int
    core: int = 0
    socket: int = 0
    node: int = 0


class _CpuTopology(msgspec.Struct):
    detail: list[_CpuDetail] | None = None


class _CpuManager(msgspec.Struct, rename="camel"):
    policy: str = ""
    options: dict[str, str] | None = None
    reserved_cpus: str = msgspec.field(name="reservedCPUs", default="")


class _ReservedCpus(msgspec.Struct):
    cpus: str = msgspec.field(name="reservedCPUs", default="")


class _SystemCpus(msgspec.Struct):
    cpuset: str = ""
    is_exclusive: bool = msgspec.field(name="cpusetExclusive", default=True)


class _PodCpus(msgspec.Struct):
    uid: str = ""
    cpuset: str = ""
    managed_by_kubelet: bool = msgspec.field(name="managedByKubelet", default=False)


class _ZoneResource(msgspec.Struct):
    name: str
    allocatable: str | int = "0"


class _Zone(msgspec.Struct):
    name: str
    type: str = ""
    resources: list[_ZoneResource] | None = None


class _TopologyMetadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class TopologyObject(msgspec.Struct, rename="camel"):
    """The fields of a NodeResourceTopology that are read; `node_cpus` makes a table of it."""

    metadata: _TopologyMetadata
    topology_policies: list[str] | None = None
    zones: list[_Zone] | None = None


_OBJECT = msgspec.json.Decoder(TopologyObject)
_TOPOLOGY = msgspec.json.Decoder(_CpuTopology)
_MANAGER = msgspec.json.Decoder(_CpuManager)
_RESERVED = msgspec.json.Decoder(_ReservedCpus)
_SYSTEM = msgspec.json.Decoder(_SystemCpus)
_RATIOS = msgspec.json.Decoder(dict[str, float] | None)
_POD_CPUS = msgspec.json.Decoder(list[_PodCpus] | None)

# of the kubelet's policies those that are in force for whole pods, as objects name them
_KUBELET_POLICIES = {
    "BestEffort": "BestEffort",
    "BestEffortPodLevel": "BestEffort",
    "Restricted": "Restricted",
    "RestrictedPodLevel": "Restricted",
    "SingleNUMANodePodLevel": "SingleNUMANode",
}


def decode_node_cpus(data: bytes | msgspec.Raw) -> NodeCpus:
    """Return the table of an object in JSON; raises `ParseError` if it is invalid."""
    try:
        return node_cpus(_OBJECT.decode(data))
    except JSON_ERRORS as error:
        raise ParseError(f"NodeResourceTopology: {type(error).__name__}", "") from error


def node_cpus(decoded: TopologyObject) -> NodeCpus:
    """Return the table of an object; annotations that cannot be read count as absent."""
    annotations = decoded.metadata.annotations or {}
    manager = _decode(_MANAGER, annotations.get(CPU_MANAGER)) or _CpuManager()
    places, counts = _places(annotations.get(CPU_TOPOLOGY, ""))
    kubelet_pods = [
        pod for pod in _decode(_POD_CPUS, annotations.get(POD_CPUS)) or () if pod.managed_by_kubelet
    ]
    reserved = _reserved_cpus(manager, annotations, kubelet_pods)
    is_static = manager.policy == "static"
    options = manager.options or {}
    policies = (
        _KUBELET_POLICIES.get(topology_policy, "")
        for topology_policy in decoded.topology_policies or ()
    )
    return NodeCpus(
        node=decoded.metadata.name,
        places=places,
        counts=counts,
        zones=_zones(decoded, [places[cpu].node for cpu in reserved if cpu in places]),
        reserved=reserved,
        is_full_cores_only=is_static and options.get("full-pcpus-only") == "true",
        kubelet_numa_policy=next(filter(None, policies), ""),
        reserved_uids=frozenset(pod.uid for pod in kubelet_pods),
    )


@lru_cache(maxsize=256)  # most nodes of a cluster have the same text
def _places(text: str) -> tuple[Mapping[int, CpuPlace], CpuCounts]:
    """Return the CPUs of an annotation by number."""
    topology = _decode(_TOPOLOGY, text or None) or _CpuTopology()
    places = {
        one.id: CpuPlace(one.socket, one.node, one.core, one.id)
        for one in (topology.detail or ())[:MAX_CPUS]
    }
    return places, cpu_counts(places.values())


def cpu_capacity(annotations: Labels, allocatable: str) -> CpuCapacity:
    """Return the CPU that a Node offers, by its annotations and its allocatable CPU."""
    amount = parse_amounts({CPU: allocatable}).get(CPU, 0)
    text = annotations.get(AMPLIFICATION)
    if text is None:
        return CpuCapacity(allocatable_milli=amount)
    ratios = _decode(_RATIOS, text)
    ratio = None if ratios is None else ratios.get(CPU, 1.0)
    is_valid = ratio is not None and 1 <= ratio <= MAX_RATIO
    return CpuCapacity(allocatable_milli=amount, ratio=ratio if is_valid else None)


def _reserved_cpus(
    manager: _CpuManager, annotations: Labels, kubelet_pods: list[_PodCpus]
) -> frozenset[int]:
    """Return the CPUs of the system, the kubelet, and pods to which the kubelet gave CPUs."""
    reserved = _cpus(manager.reserved_cpus)
    reservation = _decode(_RESERVED, annotations.get(RESERVATION))
    system = _decode(_SYSTEM, annotations.get(SYSTEM_QOS))
    if reservation is not None:
        reserved |= _cpus(reservation.cpus)
    if system is not None and system.is_exclusive:
        reserved |= _cpus(system.cpuset)
    for pod in kubelet_pods:
        reserved |= _cpus(pod.cpuset)
    return reserved


def _zones(decoded: TopologyObject, reserved_nodes: list[int]) -> Mapping[int, Amounts]:
    """Return the amounts of each NUMA node, without those of its reserved CPUs."""
    zones: dict[int, dict[str, int]] = {}
    for zone in decoded.zones or ():
        number = zone.name.removeprefix(ZONE_PREFIX)
        is_number = number.isdecimal() and len(number) <= MAX_ZONE_DIGITS
        if zone.type != "Node" or not is_number or len(zones) >= MAX_ZONES:
            continue
        texts = {resource.name: str(resource.allocatable) for resource in zone.resources or ()}
        amounts = dict(parse_amounts(texts))
        if amounts.get(CPU):
            amounts[CPU] = max(0, amounts[CPU] - 1000 * reserved_nodes.count(int(number)))
        zones[int(number)] = amounts
    return dict(sorted(zones.items()))


def _decode(decoder: msgspec.json.Decoder[T], text: str | None) -> T | None:
    if text is None:
        return None
    try:
        return decoder.decode(text)
    except JSON_ERRORS:
        return None


def _cpus(text: str) -> frozenset[int]:
    try:
        return parse_cpu_list(text, MAX_CPUS)
    except ParseError:
        return frozenset()
