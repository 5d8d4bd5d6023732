"""What the kubelet gave to which container, as its pod-resources socket tells."""

from __future__ import annotations

import msgspec


class ResourceDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one device plug-in's resource; the kubelet's several entries of it as one."""

    resource: str  # nvidia.com/gpu
    ids: tuple[str, ...] = ()  # as the device plug-in calls them, sorted
    numa_nodes: tuple[int, ...] = ()  # of any of them, sorted; empty: not told


class MemoryBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Memory or huge pages that the memory manager pinned."""

    type: str  # memory, hugepages-2Mi
    size_bytes: int
    numa_nodes: tuple[int, ...] = ()


class ClaimedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a resource claim (DRA)."""

    claim_namespace: str
    claim_name: str
    driver: str
    pool: str = ""
    device: str = ""
    share: str | None = None
    cdi: tuple[str, ...] = ()  # qualified CDI names


class ContainerResources(msgspec.Struct, frozen=True, kw_only=True):
    """What one container has for its own."""

    name: str
    devices: tuple[ResourceDevices, ...] = ()  # by resource
    cpus: frozenset[int] = frozenset()  # empty: none of its own
    memory: tuple[MemoryBlock, ...] = ()
    claims: tuple[ClaimedDevice, ...] = ()


class PodResources(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod has; the kubelet tells no uid here."""

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()  # in the kubelet's order
    cpus: frozenset[int] = frozenset()  # of the pod as a whole, newest kubelets only
    memory: tuple[MemoryBlock, ...] = ()  # the same


class Allocatable(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet could give to containers for their own, given away or not."""

    devices: tuple[ResourceDevices, ...] = ()
    cpus: frozenset[int] = frozenset()
    memory: tuple[MemoryBlock, ...] = ()
