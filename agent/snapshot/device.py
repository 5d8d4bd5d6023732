"""A device: identity, capacity, health, links and slices."""

from __future__ import annotations

import enum

import msgspec

from agent.errors import ParseError
from agent.snapshot.pci import PciLink, parse_address

Pairs = tuple[tuple[str, str], ...]  # a small ordered map that hashes and compares


GPU_TYPE, RDMA_TYPE = DEVICE_TYPES = ("gpu", "rdma")  # types of the Device object


class DeviceKind(enum.Enum):
    """The kinds of devices; the Device object calls every accelerator `gpu`."""

    GPU = "gpu"
    NPU = "npu"
    MLU = "mlu"
    XPU = "xpu"
    RDMA = RDMA_TYPE

    @property
    def wire_type(self) -> str:
        """Return `type` of the Device object: the scheduler has only gpu, rdma and fpga."""
        return RDMA_TYPE if self is DeviceKind.RDMA else GPU_TYPE


class HealthState(enum.Enum):
    """States of `xpu-agent.io/health`; `FAILED` and `PROBING` are out of service."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"  # answered late or unexpectedly; running pods keep it
    PROBING = "probing"  # was failed, its checks are good again, and it is watched
    FAILED = "failed"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A state with its reason. `since_s` is the wall time of the change, `None` if unknown.

    A vendor reports HEALTHY, SUSPECT or FAILED as it judges the device now, or that it cannot tell
    (`certain`). Only the agent sets PROBING, `changes` and `last_event`. It also sets `since_s` if
    the vendor does not.
    """

    state: HealthState = HealthState.HEALTHY
    reason: str = "DeviceHealthy"  # CamelCase, goes to the Device object's condition
    message: str = "device is healthy"
    since_s: float | None = None
    changes: int = 0  # changes of the state since the agent's start
    last_event: str = ""  # reason of the device's last event since then
    certain: bool = True  # False: unknown now; the condition's status is Unknown

    @property
    def is_in_service(self) -> bool:
        """`health` of the Device object: a device that is being probed takes no pods yet."""
        return self.state in (HealthState.HEALTHY, HealthState.SUSPECT)


DEGRADED = "Degraded"  # type of the condition of a device that works with a fault


class DeviceCondition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of the Device object beside `Healthy`, such as `Schedulable` or `Degraded`."""

    type: str
    status: bool
    reason: str  # CamelCase
    message: str = ""
    since_s: float | None = None  # wall time of the change, `None` if unknown

    @property
    def is_notable(self) -> bool:
        """Return whether people should see it: `...Ready` and `Schedulable` are good if true."""
        good = self.type.endswith("Ready") or self.type == "Schedulable"
        return self.status is not good


class DeviceLink(msgspec.Struct, frozen=True, kw_only=True):
    """The direct links between two devices; `type` is NVLink, NVSwitch, C2C, HCCS, MLULink."""

    a: str  # bus id, the smaller of the two
    b: str
    type: str
    count: int


class VirtualFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One SR-IOV virtual function that can be allocated to a pod."""

    bus_id: str
    minor: int = -1


class VirtualFunctionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Virtual functions of one pool; `labels` are matched by a pod's vfSelector."""

    labels: Pairs = ()
    vfs: tuple[VirtualFunction, ...] = ()  # by bus id as text


class DevicePort(msgspec.Struct, frozen=True, kw_only=True):
    """One RDMA port; the numbers are used, the names are only shown."""

    number: int
    state: int | None  # 4 is ACTIVE
    state_name: str | None = None
    physical_state: int | None = None
    rate_mbps: int | None = None
    link_layer: str | None = None
    lid: int | None = None
    sm_lid: int | None = None
    gid: str | None = None  # the preferred one
    gid_index: int | None = None
    pkeys: tuple[str, ...] = ()  # partition keys in use (InfiniBand)
    netdev: str | None = None


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A character device that a container needs, with the numbers the kernel gave it."""

    path: str
    major: int
    minor: int


class DevicePartition(msgspec.Struct, frozen=True, kw_only=True):
    """A hardware slice of a card (MIG, vNPU, sMLU), which the device plug-in can serve."""

    uuid: str
    profile: str
    memory_bytes: int | None = None
    instance: int | None = None  # GPU instance, vNPU or sMLU number
    compute_instance: int | None = None  # of MIG
    start: int | None = None  # its place, in memory slices
    size: int | None = None
    cores: int | None = None  # multiprocessors or AI cores
    nodes: tuple[DeviceNode, ...] = ()  # its own device nodes, besides those of the card
    with_card: bool = True  # its container also needs the card's own node
    owner: str = ""  # uid of the pod that the agent created it for; empty: created by others
    health: Health = Health()


class VendorDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device as its vendor's worker describes it; its place comes from the PCI tree."""

    kind: DeviceKind
    vendor: str  # nvidia, huawei, cambricon; of an RDMA device the driver's family
    bus_id: str | None  # None: not on PCI (soft-RoCE, Tegra)
    uuid: str | None = None  # the Device object's `id`
    # The published number: the agent assigns it, unique for each wire type of a node. In a vendor's
    # answer it is the number that the vendor proposes. None: cannot be published.
    minor: int | None = None
    # The number by which the driver, its runtime, device nodes, environment variables and CDI
    # names call the device. Only the vendor sets it. None: the vendor has no such number, or the
    # driver has not answered.
    vendor_minor: int | None = None
    model: str | None = None
    memory_bytes: int | None = None
    module_id: int | None = None
    managed: bool = True  # False: another driver has it, or none; it is listed, not published
    health: Health = Health()
    resources: Pairs = ()  # resource name to canonical quantity; empty: cannot be allocated
    labels: Pairs = ()  # of the DeviceInfo
    facts: Pairs = ()  # further facts for people: name to text
    nodes: tuple[DeviceNode, ...] = ()
    ports: tuple[DevicePort, ...] = ()
    conditions: tuple[DeviceCondition, ...] = ()
    partitions: tuple[DevicePartition, ...] = ()
    # profile: starts where one more slice fits
    free_slices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    vf_groups: tuple[VirtualFunctionGroup, ...] = ()

    @property
    def key(self) -> str:
        """Return what identifies this device across discoveries: bus id, else uuid."""
        return self.bus_id or self.uuid or f"{self.vendor}-{self.minor}"


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a device. Unknown is -1 for numbers, as on the wire, and None for names."""

    numa_node: int = -1
    numa_source: str = "unknown"  # the rule that determined the node
    socket: int = -1
    package_id: int = -1
    root: str | None = None
    path: tuple[str, ...] = ()
    switch: str | None = None
    chip: str | None = None
    link: PciLink = PciLink()
    link_degraded: str | None = None  # None, width, speed
    acs: tuple[int | None, ...] | None = None  # control words along the bridges; None: unreadable
    virtual: tuple[str, ...] = ()  # root and switches by the topology file, if sysfs has no switch
    near_disks: tuple[str, ...] = ()  # NVMe below the same switches, of an accelerator


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor's device and its place. Equal devices compare equal: a diff is `old != new`."""

    info: VendorDevice
    place: Placement = Placement()
    pcie_scope_id: str = ""  # `pcieID` of the Device object, by publish.pcie_scope

    @property
    def key(self) -> str:
        """Return the key of the vendor's description."""
        return self.info.key


UNKNOWN_MINOR = 1 << 31  # sorts a device without a minor behind all others

PARENT_FACT = "parent_bus_id"  # fact of a device that is not on PCI itself (soft-RoCE)


def pci_address_of(info: VendorDevice) -> str | None:
    """Return the PCI function of a device or of its parent; `None` if there is none."""
    text = info.bus_id or dict(info.facts).get(PARENT_FACT)
    try:
        return parse_address(text) if text else None
    except ParseError:
        return None


_KIND_NAMES = {DeviceKind.RDMA: "NIC"}


def short_name(device: Device) -> str:
    """Return a device's name in a few characters: GPU 0, NPU 3, NIC 1.

    Without a minor it has the name that its kernel driver gave it, else its key.
    """
    info = device.info
    kind = _KIND_NAMES.get(info.kind, info.kind.value.upper())
    if info.minor is not None:
        return f"{kind} {info.minor}"
    return f"{kind} {_kernel_driver_name(device) or device.key}"


def column_name(device: Device, index: int) -> str:
    """Return a device's name as one short word: GPU0, rxe_eth3; without one, `?` and the index."""
    kind, _, number = short_name(device).partition(" ")
    if device.info.minor is not None:
        return kind + number
    return _kernel_driver_name(device) or f"{kind}?{index}"


def long_name(device: Device) -> str:
    """Return a device's name in addition to its short one: the model, else the vendor.

    For an RDMA device it begins with the kernel driver's name, unless that is the short one.
    """
    info = device.info
    if info.kind is not DeviceKind.RDMA:
        return dict(info.facts).get("name") or info.model or info.vendor
    name = _kernel_driver_name(device) if info.minor is not None else None
    return " ".join(word for word in (name, info.model or info.vendor) if word)


def _kernel_driver_name(device: Device) -> str | None:
    info = device.info
    return dict(info.facts).get("name") if info.kind is DeviceKind.RDMA else None
