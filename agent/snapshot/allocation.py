"""Device allocations of pods: decoded entries, refusals, results of the check and verification."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.errors import AgentError, ParseError
from agent.snapshot.device import DevicePartition, VendorDevice
from agent.snapshot.pci import address_sort_key, parse_address

MAX_DETAIL = 200


class RefusalReason(enum.Enum):
    """The value is the CamelCase reason of the event that a person sees."""

    BAD_GRANT = "BadGrant"  # the annotation is not what a scheduler writes
    BAD_DEVICE_ID = "BadDeviceId"  # a name that must not reach an environment or a path
    BOUND_TO_VFIO = "BoundToVFIO"
    CDI_NAME_MISSING = "CDINameMissing"
    DEVICE_CONFLICT = "DeviceConflict"  # two answers for one path, variable or limit
    DEVICE_NOT_GRANTABLE = "DeviceNotGrantable"  # another driver's, or nothing of it is for pods
    DEVICE_NODE_MISSING = "DeviceNodeMissing"
    DEVICE_OUT_OF_SERVICE = "DeviceOutOfService"  # only of pods that do not run yet
    DEVICE_TAKEN = "DeviceTaken"  # another pod holds it, or what is left is less than granted
    DEVICE_UNKNOWN = "DeviceUnknown"
    DEVICES_NOT_KNOWN_YET = "DevicesNotKnownYet"  # a vendor does not answer
    HAMI_CORE_MISSING = "HAMiCoreMissing"
    HOST_NOT_READ_YET = "HostNotReadYet"  # what the host has for containers
    INCOMPLETE_GRANT = "IncompleteGrant"  # an amount that the isolation needs is not in it
    MIG_ENABLED = "MIGEnabled"  # the card was granted whole, but is cut up
    MIG_NODE_MISSING = "MIGNodeMissing"
    MIXED_GRANT = "MixedGrant"  # a slice beside whole cards, or slices of several cards
    MPS_DOWN = "MPSDown"
    NOT_ASKED_FOR = "GrantNotAskedFor"  # more than the pod's own requests: no scheduler wrote it
    NODE_MISMATCH = "NodeMismatch"  # the node has other numbers than its driver
    PARTITION_MISSING = "PartitionMissing"
    REQUESTS_UNKNOWN = "PodRequestsUnknown"  # neither the API server nor the kubelet lists the pod
    TEMPLATE_UNKNOWN = "TemplateUnknown"  # the chip cannot be cut so
    UVM_MISSING = "UVMMissing"
    VERBS_MISSING = "VerbsMissing"
    VIRTUAL_FUNCTION_UNKNOWN = "VirtualFunctionUnknown"  # not of the card that was granted
    WRONG_NODE = "WrongNode"


class AllocationRefused(AgentError):
    """The container is not started; the message names the device or path and the cause."""

    def __init__(self, refusal: RefusalReason, detail: str) -> None:
        super().__init__(f"{refusal.value}: {detail[:MAX_DETAIL]}")
        self.code = refusal

    @property
    def reason(self) -> str:
        """Return the CamelCase reason."""
        return self.code.value


CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"

REPLICA_SEPARATOR = (
    "::"  # between a card's uuid and the number of its replica, where time is shared
)


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a grant. An `id` decides; the minor only where the grant names no id."""

    type: str  # of the Device object: gpu, rdma
    id: str = ""  # of the device, of one of its slices, or of a replica of either
    minor: int | None = None
    resources: tuple[tuple[str, int], ...] = ()  # amounts in base units: bytes, percent
    vfs: tuple[str, ...] = ()  # addresses of virtual functions
    template: str = ""  # of a slice that the runtime or the agent makes
    partition: str = ""  # uuid of the slice that was made for this container

    def amount(self, name: str) -> int | None:
        """Return a resource's amount; `None` if it was not granted."""
        return next((value for key, value in self.resources if key == name), None)


class DeviceAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """What one container was granted, in the order written."""

    devices: tuple[AllocatedDevice, ...] = ()
    channels: tuple[int, ...] = ()  # of IMEX


class DeviceMatch(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a grant with what it means; `partition` if it is a slice of the device."""

    entry: AllocatedDevice
    device: VendorDevice
    partition: DevicePartition | None = None

    @property
    def vendor_minor(self) -> int:
        """Return the driver's number of the device; `DeviceUnknown` for a device without one."""
        if self.device.vendor_minor is None:
            text = f"the driver's number of {self.device.key} is not known"
            raise AllocationRefused(RefusalReason.DEVICE_UNKNOWN, text)
        return self.device.vendor_minor


def match_devices(
    grant: DeviceAllocation, devices: Iterable[VendorDevice]
) -> tuple[DeviceMatch, ...]:
    """Return the entries that mean one of these devices, in the grant's order, each once.

    Entries of other vendors' devices are passed over. `PartitionMissing` if an entry names a
    slice that its device does not have.
    """
    all_devices = tuple(devices)
    # equal entries mean the same: they are less to compare than what they mean
    return tuple(
        match
        for entry in dict.fromkeys(grant.devices)
        for match in _match_entry(entry, all_devices)
    )


def sort_by_bus_id(matches: Iterable[DeviceMatch]) -> tuple[DeviceMatch, ...]:
    """Return matches in PCI order, which is the order libraries number the cards in."""
    found = tuple(matches)
    return found if len(found) < 2 else tuple(sorted(found, key=_match_order))


def _match_order(match: DeviceMatch) -> tuple[bool, tuple[int, ...], int, int, int]:
    part, address = match.partition, _address_order(match.device.bus_id)
    gi, ci = (part.instance, part.compute_instance) if part else (None, None)
    numbers = _number(match.device.vendor_minor), _number(gi), _number(ci)
    return not address, address, *numbers


def _address_order(bus_id: str | None) -> tuple[int, ...]:
    """Return what orders a PCI address; nothing for what is none."""
    try:
        return address_sort_key(parse_address(bus_id)) if bus_id else ()
    except ParseError:
        return ()


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _names_device(entry: AllocatedDevice, name: str, device: VendorDevice) -> bool:
    if entry.id:
        return name in (device.uuid, device.bus_id)
    return entry.minor is not None and entry.minor == device.minor


def _match_entry(
    entry: AllocatedDevice, devices: tuple[VendorDevice, ...]
) -> Iterable[DeviceMatch]:
    name = entry.id.partition(REPLICA_SEPARATOR)[0]
    for device in devices:
        part = _find_partition(device, name) if name and device.partitions else None
        if part is None and not _names_device(entry, name, device):
            continue
        if device.kind.wire_type != entry.type:
            continue
        if part is None and entry.partition:
            part = _find_partition(device, entry.partition)
            if part is None:
                message = f"{device.key} has no slice {entry.partition}"
                raise AllocationRefused(RefusalReason.PARTITION_MISSING, message)
        yield DeviceMatch(entry=entry, device=device, partition=part)
        return


def _find_partition(device: VendorDevice, uuid: str) -> DevicePartition | None:
    return next((part for part in reversed(device.partitions) if part.uuid == uuid), None)


class PodAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod was granted; a refused grant is empty and says why.

    `awaits_requests`: neither the API server nor the kubelet lists the pod yet. Containers that
    run keep their devices; a new container of the pod gets none.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    grant: DeviceAllocation = DeviceAllocation()
    refusal: str = ""  # CamelCase; empty: it holds
    message: str = ""
    awaits_requests: bool = False


def _no_holders() -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({})


def _no_allocations() -> Mapping[str, PodAllocation]:
    return MappingProxyType({})


class AllocationView(msgspec.Struct, frozen=True, kw_only=True):
    """By pod uid; pods that were granted nothing are not in it."""

    pods: Mapping[str, PodAllocation] = msgspec.field(default_factory=_no_allocations)
    # uids of the pods whose grants hold something of a device, by Device.key, who came first first
    held: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=_no_holders)
    looked: frozenset[str] = (
        frozenset()
    )  # uids of the pods and ids of the sandboxes that were checked


class VerificationStatus(enum.Enum):
    """Result of a verification. `UNKNOWN`: the container could not be inspected."""

    VERIFIED = "verified"
    MISSING = "missing"  # something granted is not there
    EXCESS = "excess"  # a device is there that was not granted; something may be missing, too
    UNKNOWN = "unknown"

    @property
    def is_wrong(self) -> bool:
        """Return whether a container differs from what it must have."""
        return self in (VerificationStatus.MISSING, VerificationStatus.EXCESS)


class VerificationCause(enum.Enum):
    """A cause that has a remedy of its own."""

    DEVICE_DENIED = "DeviceDenied"  # by the device cgroup: its rules were replaced
    SYSTEMD_RELOADED = "SystemdReloaded"  # and may have removed the rule of a device


class ContainerVerification(msgspec.Struct, frozen=True, kw_only=True):
    """One container's verdict; `details` name each thing, for people."""

    container_id: str
    container: str = ""  # name
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    verdict: VerificationStatus = VerificationStatus.UNKNOWN
    details: tuple[str, ...] = ()
    causes: tuple[VerificationCause, ...] = ()
    way: str = ""  # how the container got its devices: nri, kubelet; empty: not through the agent
    looked_s: float = 0.0  # wall clock


def _no_containers() -> Mapping[str, ContainerVerification]:
    return MappingProxyType({})


class VerificationView(msgspec.Struct, frozen=True, kw_only=True):
    """By container id: those that were granted devices, or got them by our device plug-in.

    Of the others only those that have a card of another pod.
    """

    containers: Mapping[str, ContainerVerification] = msgspec.field(default_factory=_no_containers)
