"""The seam within the device plug-in: what is decided (pure), and who brings it to the kubelet.

What the kubelet's ids stand for: cards, their slices, virtual functions, and replicas.
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

POD_UNKNOWN = "PodUnknown"  # the reason where no pod is known that the kubelet can be asking for


class KubeletDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device as the kubelet lists it."""

    id: str  # unique within its resource; the vendor's, so of no bound that anybody enforces
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()  # empty: no preference


class KubeletResource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that is offered now. Equal ones are told to the kubelet once."""

    name: str  # nvidia.com/gpu
    vendor: str  # as in `device_plugin.vendors`
    devices: tuple[KubeletDevice, ...] = ()
    check_start: bool = False  # have the kubelet ask before each start of a container
    choose: bool = True  # have the kubelet ask which devices are best
    withdrawn_ids: tuple[str, ...] = ()  # ids in use that the kubelet would give to another pod


class AllocationError(AgentError):
    """The kubelet is refused, and the pod's admission fails; `reason` is CamelCase."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail[:MAX_ERROR_DETAIL]}")
        self.reason = reason


class UnknownPodError(AllocationError):
    """What is known of pods does not allow it: worth a new try with a newer snapshot."""


class ContainerAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one container. The kubelet keeps it for as long as its pod lives.

    What the kubelet cannot express is not in it: rlimits and file modes are of no effect here.
    `pod_uid` is whose it was taken to be, to be remembered as `Held` until the kubelet's own
    checkpoint says so; empty if that is not known. `exchanges` are those of `Held`; the kubelet
    keeps them with its account, in an annotation of the answer.
    """

    edits: ContainerEdits
    annotations: tuple[tuple[str, str], ...] = ()
    pod_uid: str = ""
    exchanges: Pairs = ()


class AllocationBackend(Protocol):
    """What the kubelet is told. Every method is pure and quick: all they know is the snapshot.

    Resources are named by their name. `GrantRefused` and `NotAllocated` are refusals; anything
    else that is raised is a bug, which fails that one call.
    """

    def resources(self, snapshot: NodeSnapshot) -> tuple[KubeletResource, ...]:
        """Return what is offered now, by name; of vendors that have not answered yet nothing."""
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
        """Return the best `size` ids of those available, with all required ones.

        `PodNotSeen` asks for a new try; with `last` there is none, and it is not raised.
        """
        ...

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> ContainerAllocation:
        """Return what a container with these ids gets, whichever container that is.

        `PodNotSeen` asks for a new try; with `last` there is none, and it is not raised.
        """
        ...

    def check_start(self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot) -> None:
        """Raise a refusal if a container with these ids must not be started now."""
        ...


class ResourceUnits(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One resource with what its ids stand for."""

    name: str
    vendor: str
    units: Mapping[str, DeviceUnit]  # by id, in order
    devices: tuple[VendorDevice, ...] = ()  # all of the vendor

    @cached_property
    def has_replicas(self) -> bool:
        """Say whether the resource has replicas."""
        return any(unit.replica is not None for unit in self.units.values())

    @cached_property
    def slots(self) -> Mapping[str, DeviceSlot]:
        """Return the parts of cards by id, each made once: there may be thousands."""
        return {name: slot_of_unit(unit) for name, unit in self.units.items() if not unit.is_whole}

    @cached_property
    def by_card(self) -> Mapping[str, tuple[DeviceUnit, ...]]:
        """Return the ids of each device by its key."""
        table: dict[str, list[DeviceUnit]] = {}
        for unit in self.units.values():
            table.setdefault(unit.device.key, []).append(unit)
        return {key: tuple(units) for key, units in table.items()}

    @cached_property
    def capacity(self) -> Mapping[str, int]:
        """Return how many parts each card has."""
        return Counter(slot.card for slot in self.slots.values())


def slot_of_unit(unit: DeviceUnit) -> DeviceSlot:
    """Return a replica as a slot of what it is a replica of, a slice as one of its card."""
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
    """Put a resource together; of two units of one id the first in order stays."""
    ordered = sorted(units, key=lambda unit: unit.sort_key)
    table: dict[str, DeviceUnit] = {}
    for unit in ordered:
        table.setdefault(unit.id, unit)
    return ResourceUnits(name=name, vendor=vendor, units=MappingProxyType(table), devices=devices)


def kubelet_device(unit: DeviceUnit) -> KubeletDevice:
    """Return how the kubelet is told of it; an unknown memory node gives no topology."""
    node = unit.device.place.numa_node
    numa_nodes = (node,) if node >= 0 else ()
    return KubeletDevice(id=unit.id, healthy=unit.is_healthy, numa_nodes=numa_nodes)


def replicate_unit(unit: DeviceUnit, count: int) -> tuple[DeviceUnit, ...]:
    """Return a unit so many times, numbered from 0."""
    return tuple(
        replace(unit, id=f"{unit.id}{REPLICA_SEPARATOR}{n}", replica=n) for n in range(count)
    )


def allocation_of_units(units: Iterable[DeviceUnit]) -> DeviceAllocation:
    """Return the grant of these units; of replicas of one thing it has one entry."""
    entries = {unit.hardware_key: unit.allocated_device() for unit in units}
    return DeviceAllocation(devices=tuple(entries.values()))
