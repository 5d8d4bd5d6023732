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
    """Why an allocation is refused; the value is the CamelCase reason of the event."""

    BAD_GRANT = "BadGrant"  # the annotation is not what a scheduler writes
    BAD_DEVICE_ID = "BadDeviceId"  # a name that must not reach an environment or a path
    BOUND_TO_VFIO = "BoundToVFIO"
    CDI_NAME_MISSING = "CDINameMissing"
    DEVICE_CONFLICT = "DeviceConflict"  # two edits for one path, variable or limit
    # another driver has the device, or it has no resources for pods
    DEVICE_NOT_GRANTABLE = "DeviceNotGrantable"
    DEVICE_NODE_MISSING = "DeviceNodeMissing"
    DEVICE_OUT_OF_SERVICE = "DeviceOutOfService"  # raised only for pods that do not run yet
    DEVICE_TAKEN = "DeviceTaken"  # another pod has the device, or less is free than was allocated
    DEVICE_UNKNOWN = "DeviceUnknown"
    DEVICES_NOT_KNOWN_YET = "DevicesNotKnownYet"  # a vendor does not answer
    HAMI_CORE_MISSING = "HAMiCoreMissing"
    HOST_NOT_READ_YET = "HostNotReadYet"  # device nodes and files of the host are not read yet
    INCOMPLETE_GRANT = "IncompleteGrant"  # the allocation lacks an amount that the isolation needs
    MIG_ENABLED = "MIGEnabled"  # the whole card was allocated, but it is partitioned
    MIG_NODE_MISSING = "MIGNodeMissing"
    MIXED_GRANT = "MixedGrant"  # a slice beside whole cards, or slices of several cards
    MPS_DOWN = "MPSDown"
    # more than the pod requests: no scheduler wrote the annotation
    NOT_ASKED_FOR = "GrantNotAskedFor"
    NODE_MISMATCH = "NodeMismatch"  # the device node has other numbers than those of its driver
    PARTITION_MISSING = "PartitionMissing"
    REQUESTS_UNKNOWN = "PodRequestsUnknown"  # neither the API server nor the kubelet lists the pod
    TEMPLATE_UNKNOWN = "TemplateUnknown"  # the chip has no such template
    UVM_MISSING = "UVMMissing"
    VERBS_MISSING = "VerbsMissing"
    # the allocated card has no such virtual function
    VIRTUAL_FUNCTION_UNKNOWN = "VirtualFunctionUnknown"
    WRONG_NODE = "WrongNode"


class AllocationRefused(AgentError):
    """A container is not started; the message names the device or path and the cause."""

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
    """One entry of an allocation. `id` decides; the minor counts only if the entry has no id."""

    type: str  # type of the Device object: gpu, rdma
    id: str = ""  # id of the device, of one of its slices, or of a replica of either
    minor: int | None = None
    resources: tuple[tuple[str, int], ...] = ()  # amounts in base units: bytes, percent
    vfs: tuple[str, ...] = ()  # addresses of virtual functions
    template: str = ""  # template of a slice that the runtime or the agent creates
    partition: str = ""  # uuid of the slice that was created for this container

    def amount(self, name: str) -> int | None:
        """Return the amount of a resource; `None` if the entry does not have the resource."""
        return next((value for key, value in self.resources if key == name), None)


class DeviceAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that were allocated to one container, in the order of the annotation."""

    devices: tuple[AllocatedDevice, ...] = ()
    channels: tuple[int, ...] = ()  # IMEX channels


class DeviceMatch(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of an allocation with its device, and with its slice if the entry names one."""

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
    allocation: DeviceAllocation, devices: Iterable[VendorDevice]
) -> tuple[DeviceMatch, ...]:
    """Return the entries that name one of these devices, in the order of the allocation, each once.

    Entries that name devices of other vendors are skipped. Raises `AllocationRefused`
    (`PartitionMissing`) if an entry names a slice that its device does not have.
    """
    all_devices = tuple(devices)
    # equal entries mean the same: they are less to compare than what they mean
    return tuple(
        match
        for entry in dict.fromkeys(allocation.devices)
        for match in _match_entry(entry, all_devices)
    )


def sort_by_bus_id(matches: Iterable[DeviceMatch]) -> tuple[DeviceMatch, ...]:
    """Return matches in PCI order, in which libraries number the cards."""
    all_matches = tuple(matches)
    return all_matches if len(all_matches) < 2 else tuple(sorted(all_matches, key=_match_order))


def _match_order(match: DeviceMatch) -> tuple[bool, tuple[int, ...], int, int, int]:
    part, address = match.partition, _address_order(match.device.bus_id)
    gi, ci = (part.instance, part.compute_instance) if part else (None, None)
    numbers = _number(match.device.vendor_minor), _number(gi), _number(ci)
    return not address, address, *numbers


def _address_order(bus_id: str | None) -> tuple[int, ...]:
    """Return the sort key of a PCI address; empty for any other text."""
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
    """The allocation of one pod; a refused allocation has no devices, and a `refusal`.

    `awaits_requests`: neither the API server nor the kubelet lists the pod yet. Running containers
    keep their devices; a new container of the pod gets none.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    grant: DeviceAllocation = DeviceAllocation()
    refusal: str = ""  # CamelCase reason; empty: the allocation is valid
    message: str = ""
    awaits_requests: bool = False


def _no_holders() -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({})


def _no_allocations() -> Mapping[str, PodAllocation]:
    return MappingProxyType({})


class AllocationView(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations by pod uid; pods without an allocation are not in it."""

    pods: Mapping[str, PodAllocation] = msgspec.field(default_factory=_no_allocations)
    # uids of the pods whose grants hold something of a device, by Device.key, who came first first
    held: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=_no_holders)
    looked: frozenset[str] = (
        frozenset()
    )  # uids of the pods and ids of the sandboxes that were checked


class VerificationStatus(enum.Enum):
    """Result of a verification. `UNKNOWN`: the container could not be inspected."""

    VERIFIED = "verified"
    MISSING = "missing"  # an allocated device or limit is not in the container
    EXCESS = "excess"  # the container has a device that was not allocated; others may be missing
    UNKNOWN = "unknown"

    @property
    def is_wrong(self) -> bool:
        """Return whether a container differs from what it must have."""
        return self in (VerificationStatus.MISSING, VerificationStatus.EXCESS)


class VerificationCause(enum.Enum):
    """A cause that has a remedy of its own."""

    DEVICE_DENIED = "DeviceDenied"  # the device cgroup denies access: its rules were replaced
    # systemd reloaded and may have removed the rule of a device
    SYSTEMD_RELOADED = "SystemdReloaded"


class ContainerVerification(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one container; `details` name what is wrong, for people."""

    container_id: str
    container: str = ""  # name
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    verdict: VerificationStatus = VerificationStatus.UNKNOWN
    details: tuple[str, ...] = ()
    causes: tuple[VerificationCause, ...] = ()
    way: str = ""  # how the container got its devices: nri, kubelet; empty: not by the agent
    looked_s: float = 0.0  # wall clock


def _no_containers() -> Mapping[str, ContainerVerification]:
    return MappingProxyType({})


class VerificationView(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts by container id, for containers with devices of an allocation or the device plug-in.

    Other containers are listed only if they have a card of another pod.
    """

    containers: Mapping[str, ContainerVerification] = msgspec.field(default_factory=_no_containers)
