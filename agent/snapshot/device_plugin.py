"""The resources that the device plug-in serves, and their registration with the kubelet."""

from __future__ import annotations

import msgspec

from agent.snapshot.allocation import REPLICA_SEPARATOR, AllocatedDevice
from agent.snapshot.device import UNKNOWN_MINOR, Device, DevicePartition, Pairs
from agent.snapshot.part import Counts, Histogram

# seconds; admission of every pod of the node waits for an answer
ALLOCATION_BUCKETS_S = (
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
)


class ResourceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one resource. Results are `ok`, `bug`, or the CamelCase reason of a refusal."""

    name: str
    allocations: Counts = ()  # by result
    # time from a request for an allocation until its answer is made
    latency: Histogram = Histogram()
    preferred: Counts = ()  # by result
    starts: Counts = ()  # checks before containers start, by result
    registrations: Counts = ()  # by result
    streams: int = 0  # streams that are open now
    lists_sent: int = 0


class PluginResource(msgspec.Struct, frozen=True, kw_only=True):
    """State of one resource.

    `state`: conflict, waiting, registering, registered, watched, refused.
    """

    name: str  # nvidia.com/gpu
    vendor: str
    state: str = "waiting"
    reason: str = ""  # CamelCase reason why it is not watched
    message: str = ""
    devices: int = 0
    healthy: int = 0
    withdrawn_ids: tuple[str, ...] = ()  # ids in use that the kubelet would give to another pod
    registrations: int = 0
    lists_sent: int = 0


class KubeletAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one resource that the kubelet gave to one container, by the kubelet's account.

    For some of the ids, `exchanges` name the device that the container has instead: the kubelet's
    account cannot be changed. Devices of the pod's own allocation are not included.
    """

    pod_uid: str
    resource: str
    ids: tuple[str, ...] = ()  # the kubelet's ids
    container: str = ""  # name; empty: it is unknown which container of the pod it is
    exchanges: Pairs = ()  # (the kubelet's id, id of the device that the container has)
    # host paths of the device nodes in the answer that the kubelet stores; empty: not read
    nodes: tuple[str, ...] = ()

    @property
    def pairs(self) -> Pairs:
        """Return each id of the kubelet with the id of the device that the container has for it."""
        replacements = dict(self.exchanges)
        return tuple((name, replacements.get(name, name)) for name in self.ids)

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Return the ids of the container's devices, unless the pod has an allocation."""
        return tuple(replacement for _, replacement in self.pairs)


class DevicePluginView(msgspec.Struct, frozen=True, kw_only=True):
    """All resources by name, and the kubelet's allocations.

    `held` has the entries of the kubelet's checkpoint, and the answers given since it was read.
    """

    resources: tuple[PluginResource, ...] = ()
    held: tuple[KubeletAllocation, ...] = ()

    def exchanges(self, resource: str) -> frozenset[tuple[str, str]]:
        """Return each exchange of a resource once: the kubelet's id, and that of the device."""
        of_resource = (allocation for allocation in self.held if allocation.resource == resource)
        return frozenset(pair for one in of_resource for pair in one.exchanges)


HardwareKey = tuple[str, str, str]  # key of the device, uuid of its slice, address of its function


class DeviceUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One id of one resource; a whole card if it is neither slice, function nor replica."""

    id: str
    device: Device
    partition: DevicePartition | None = None
    function: str = ""  # address of a virtual function
    replica: int | None = None
    serves_without_card: bool = False  # a slice that works while its card is out of service
    is_exclusive: bool = True  # false: other containers may use the whole device at the same time

    @property
    def base_id(self) -> str:
        """Return the id without the number of a replica."""
        return self.id if self.replica is None else self.id.rpartition(REPLICA_SEPARATOR)[0]

    @property
    def hardware_key(self) -> HardwareKey:
        """Return what identifies the hardware; replicas of one device have the same key."""
        return self.device.key, self.partition.uuid if self.partition else "", self.function

    @property
    def sort_key(self) -> tuple[int, tuple[int, ...], str, int]:
        """Return the key by which lists are sorted: the same for the same devices."""
        minor = self.device.info.minor
        replica = -1 if self.replica is None else self.replica
        first = UNKNOWN_MINOR if minor is None else minor
        return first, self.slice_order, self.base_id, replica

    @property
    def slice_order(self) -> tuple[int, ...]:
        """Return the key that orders the slices of one card."""
        part = self.partition
        if part is None:
            return ()
        return tuple(-1 if n is None else n for n in (part.instance, part.compute_instance))

    @property
    def is_whole(self) -> bool:
        """Return whether the unit excludes all other users of its card."""
        return self.partition is None and not self.function and self.replica is None

    @property
    def is_healthy(self) -> bool:
        """Return whether new pods may get the unit.

        A suspect card counts, as in the Device object.
        """
        card = self.device.info.health
        if self.partition is None:
            return card.is_in_service
        return self.partition.health.is_in_service and (
            card.is_in_service or self.serves_without_card
        )

    def allocated_device(self) -> AllocatedDevice:
        """Return the entry of an allocation that names this unit."""
        info = self.device.info
        return AllocatedDevice(
            type=info.kind.wire_type,
            id=(self.partition.uuid if self.partition else info.uuid) or info.bus_id or "",
            minor=info.minor,
            vfs=(self.function,) if self.function else (),
        )
