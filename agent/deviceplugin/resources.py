"""Types of the device plug-in: what the decisions return, and what the ids of the kubelet mean.

`AllocationBackend` is the interface between the pure decisions and the gRPC servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

import msgspec
from msgspec.structs import replace

from agent.allocation.preferred_devices import DeviceSlot
from agent.errors import AgentError
from agent.snapshot.allocation import REPLICA_SEPARATOR, DeviceAllocation
from agent.snapshot.device import UNKNOWN_MINOR, Pairs, VendorDevice
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.node import NodeSnapshot

MAX_ERROR_DETAIL = 300

POD_UNKNOWN = "PodUnknown"  # reason of a request that matches no known pod


class KubeletDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device as the kubelet lists it."""

    id: str  # unique within its resource; the vendor's own id, of any length
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()  # empty: no preference


class KubeletResource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that is offered now. A resource equal to the last one is not sent again."""

    name: str  # nvidia.com/gpu
    vendor: str  # as in `device_plugin.vendors`
    devices: tuple[KubeletDevice, ...] = ()
    # the kubelet calls PreStartContainer before each start of a container
    check_start: bool = False
    choose: bool = True  # the kubelet calls GetPreferredAllocation
    withdrawn_ids: tuple[str, ...] = ()  # ids in use that the kubelet would give to another pod


class AllocationError(AgentError):
    """The agent refuses a request, and the pod's admission fails; `reason` is CamelCase."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail[:MAX_ERROR_DETAIL]}")
        self.reason = reason


class UnknownPodError(AllocationError):
    """No known pod matches the request: the caller retries with a newer snapshot."""


class ContainerAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one container. The kubelet stores it as long as the pod lives.

    It lacks what the kubelet has no field for: rlimits and file modes. `pod_uid` is the pod that
    the request was matched with, empty if unknown; it is kept as `KubeletAllocation` until the
    kubelet's checkpoint has the answer. `exchanges` are those of `KubeletAllocation`; the kubelet
    stores them with its account, in an annotation of the answer.
    """

    edits: ContainerEdits
    annotations: tuple[tuple[str, str], ...] = ()
    pod_uid: str = ""
    exchanges: Pairs = ()


class AllocationBackend(Protocol):
    """Decides the answers to the kubelet.

    Every method is pure and fast, and depends on the snapshot.

    Resources are identified by name. Refusals are `AllocationRefused` and `AllocationError`; any
    other exception is a bug, which fails that one call.
    """

    def resources(self, snapshot: NodeSnapshot) -> tuple[KubeletResource, ...]:
        """Return the resources offered now, by name; none of vendors that have not answered yet."""
        ...

    def select_preferred(
        self,
        resource: str,
        available: tuple[str, ...],
        required: tuple[str, ...],
        size: int,
        snapshot: NodeSnapshot,
        *,
        last: bool = False,
    ) -> tuple[str, ...]:
        """Return the best `size` ids of those available, including all required ones.

        `UnknownPodError` requests a retry; with `last` it is not raised.
        """
        ...

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> ContainerAllocation:
        """Return what a container with these ids gets.

        `UnknownPodError` requests a retry; with `last` it is not raised.
        """
        ...

    def check_start(self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot) -> None:
        """Raise a refusal if a container with these ids must not start now."""
        ...


class ResourceUnits(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One resource with the meaning of its ids."""

    name: str
    vendor: str
    units: Mapping[str, DeviceUnit]  # by id, in order
    devices: tuple[VendorDevice, ...] = ()  # all devices of the vendor

    @cached_property
    def has_replicas(self) -> bool:
        """Return whether the resource has replicas."""
        return any(unit.replica is not None for unit in self.units.values())

    @cached_property
    def slots(self) -> Mapping[str, DeviceSlot]:
        """Return the parts of cards by id, each created once: there may be thousands."""
        return {name: slot_of_unit(unit) for name, unit in self.units.items() if not unit.is_whole}

    @cached_property
    def by_card(self) -> Mapping[str, tuple[DeviceUnit, ...]]:
        """Return the units of each device by its key."""
        table: dict[str, list[DeviceUnit]] = {}
        for unit in self.units.values():
            table.setdefault(unit.device.key, []).append(unit)
        return {key: tuple(units) for key, units in table.items()}

    @cached_property
    def capacity(self) -> Mapping[str, int]:
        """Return the number of parts of each card."""
        return Counter(slot.card for slot in self.slots.values())


def slot_of_unit(unit: DeviceUnit) -> DeviceSlot:
    """Return the slot of a unit: a replica within its device, a slice within its card."""
    minor = unit.device.info.minor
    return DeviceSlot(
        id=unit.id,
        card=unit.device.key if unit.replica is None else "\0".join(unit.hardware_key),
        minor=UNKNOWN_MINOR if minor is None else minor,
        number=unit.slice_order if unit.replica is None else (unit.replica,),
    )


def build_resource_units(
    name: str, vendor: str, units: Iterable[DeviceUnit], devices: tuple[VendorDevice, ...] = ()
) -> ResourceUnits:
    """Build a resource; of two units with one id the first in order stays."""
    ordered = sorted(units, key=lambda unit: unit.sort_key)
    table: dict[str, DeviceUnit] = {}
    for unit in ordered:
        table.setdefault(unit.id, unit)
    return ResourceUnits(name=name, vendor=vendor, units=MappingProxyType(table), devices=devices)


def kubelet_device(unit: DeviceUnit) -> KubeletDevice:
    """Return the unit as the kubelet lists it; without a known NUMA node it has no topology."""
    node = unit.device.place.numa_node
    numa_nodes = (node,) if node >= 0 else ()
    return KubeletDevice(id=unit.id, healthy=unit.is_healthy, numa_nodes=numa_nodes)


def replicate_unit(unit: DeviceUnit, count: int) -> tuple[DeviceUnit, ...]:
    """Return `count` replicas of a unit, numbered from 0."""
    return tuple(
        replace(unit, id=f"{unit.id}{REPLICA_SEPARATOR}{n}", replica=n) for n in range(count)
    )


def allocation_of_units(units: Iterable[DeviceUnit]) -> DeviceAllocation:
    """Return an allocation of these units; replicas of one device have one entry."""
    entries = {unit.hardware_key: unit.allocated_device() for unit in units}
    return DeviceAllocation(devices=tuple(entries.values()))
