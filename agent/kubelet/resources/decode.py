"""Messages of the pod-resources socket to the model. Counts and numbers are bounded here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.errors import ParseError
from agent.model.cluster.pod_resources import (
    Allocatable,
    ClaimedDevice,
    ContainerResources,
    MemoryBlock,
    PodResources,
    ResourceDevices,
)
from agent.topology.text import MAX_CPUS

if TYPE_CHECKING:
    from proto.gen import podresources_v1_pb2 as pb

MAX_PODS = 4096
MAX_CONTAINERS = 256  # of one pod
MAX_IDS = 65536  # of one container, of all resources
MAX_NODES = 1024  # numbers of NUMA nodes


def pods_from(found: pb.ListPodResourcesResponse) -> tuple[PodResources, ...]:
    """Return the pods by namespace and name; raise `ParseError` beyond the bounds."""
    _bounded("pods", len(found.pod_resources), MAX_PODS)
    pods = (pod_from(pod) for pod in found.pod_resources)
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name)))


def pod_from(found: pb.PodResources) -> PodResources:
    """Return one pod; raise `ParseError` beyond the bounds."""
    _bounded("containers", len(found.containers), MAX_CONTAINERS)
    return PodResources(
        namespace=found.namespace,
        name=found.name,
        containers=tuple(_container(one) for one in found.containers),
        cpus=_cpus(found.cpu_ids),
        memory=_memory(found.memory),
    )


def allocatable_from(found: pb.AllocatableResourcesResponse) -> Allocatable:
    """Return what can be given away; raise `ParseError` beyond the bounds."""
    return Allocatable(
        devices=_devices(found.devices), cpus=_cpus(found.cpu_ids), memory=_memory(found.memory)
    )


def _container(found: pb.ContainerResources) -> ContainerResources:
    claims = tuple(_claims(found.dynamic_resources))
    _bounded("claims", len(claims), MAX_IDS)
    return ContainerResources(
        name=found.name,
        devices=_devices(found.devices),
        cpus=_cpus(found.cpu_ids),
        memory=_memory(found.memory),
        claims=claims,
    )


def _devices(found: Iterable[pb.ContainerDevices]) -> tuple[ResourceDevices, ...]:
    """Merge by resource: kubelets tell an entry for each device or NUMA node."""
    ids: dict[str, set[str]] = {}
    nodes: dict[str, set[int]] = {}
    count = 0
    for entry in found:
        count += max(1, len(entry.device_ids))
        _bounded("devices", count, MAX_IDS)
        ids.setdefault(entry.resource_name, set()).update(entry.device_ids)
        nodes.setdefault(entry.resource_name, set()).update(_nodes(entry.topology))
    return tuple(
        ResourceDevices(
            resource=name, ids=tuple(sorted(ids[name])), numa_nodes=tuple(sorted(nodes[name]))
        )
        for name in sorted(ids)
    )


def _memory(found: Iterable[pb.ContainerMemory]) -> tuple[MemoryBlock, ...]:
    blocks = [
        MemoryBlock(type=one.memory_type, size_bytes=one.size, numa_nodes=_nodes(one.topology))
        for one in found
    ]
    _bounded("memory blocks", len(blocks), MAX_NODES)
    return tuple(blocks)


def _claims(found: Iterable[pb.DynamicResource]) -> Iterable[ClaimedDevice]:
    for claim in found:
        for one in claim.claim_resources:
            yield ClaimedDevice(
                claim_namespace=claim.claim_namespace,
                claim_name=claim.claim_name,
                driver=one.driver_name,
                pool=one.pool_name,
                device=one.device_name,
                share=one.share_id if one.HasField("share_id") else None,
                cdi=tuple(device.name for device in one.cdi_devices),
            )


def _nodes(found: pb.TopologyInfo) -> tuple[int, ...]:
    """Return the nodes of a topology; -1 and other nonsense is `not told`."""
    return tuple(sorted({node.ID for node in found.nodes if 0 <= node.ID < MAX_NODES}))


def _cpus(found: Iterable[int]) -> frozenset[int]:
    cpus = frozenset(found)
    if cpus and not 0 <= min(cpus) <= max(cpus) < MAX_CPUS:
        raise ParseError("pod resources: CPU numbers", f"{min(cpus)} to {max(cpus)}")
    return cpus


def _bounded(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise ParseError(f"pod resources: more than {limit} {what}", "")
