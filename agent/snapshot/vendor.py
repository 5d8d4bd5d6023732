"""The Protocols that a vendor's plug-in implements, such as `DeviceVendor` and `VendorSession`."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from agent.snapshot.allocation import AllocatedDevice, DeviceAllocation
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import Device, Pairs, VendorDevice
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.edits import CdiEdits, ContainerEdits
from agent.snapshot.host_devices import HostDeviceQuery, HostDevices, RdmaFunction
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceSample,
    Inventory,
    MetricFamily,
    Problem,
    SliceRequest,
    TrafficSource,
)
from agent.snapshot.settings import HealthOverrides, SettingRule, VendorSettings

# An instance of the type in `VendorDescription.settings`. A vendor annotates the parameter with
# that type; the agent, which knows no vendor, cannot.
OwnSettings: TypeAlias = Any


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The surroundings of a session, besides its settings."""

    state_dir: str = ""  # folder for what must survive a restart; empty: nothing is stored
    is_replay: bool = False  # the host is a recording: no library may be loaded


LIVE_CONTEXT = SessionContext()

SWITCH_CHOICES = ("auto", "on", "off")


class CdiNaming(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent names a vendor's devices in the CDI file that it writes for them."""

    kind: str  # xpu-agent.io/gpu
    prefix: str = ""  # prefix of a device's name, before its number
    is_named_by_number: bool = False  # the name is the driver's number of the device
    variables: tuple[str, ...] = ()  # variables of `edits` that all containers of the vendor need
    resource_domain: str = ""  # start of the names of its resources at the kubelet, if known
    # the parts of a partitioned card have names, and the card has none
    has_slice_names: bool = False
    # domain of CDI files by the vendor's own tool, which hold paths of one version of its driver
    driver_domain: str = ""
    switch: SettingRule | None = None  # of `cdi.<name>`, off by default; None: always written


class DeviceValue(enum.Enum):
    """Values of a device that are not readings of a vendor's own families."""

    UTILIZATION_PERCENT = enum.auto()
    MEMORY_TOTAL_BYTES = enum.auto()
    MEMORY_USED_BYTES = enum.auto()
    MEMORY_FREE_BYTES = enum.auto()  # total less used
    MEMORY_USED_PERCENT = enum.auto()
    HEALTHY = enum.auto()  # 1 if the device is in service, else 0
    NUMA_NODE = enum.auto()
    PCIE_GENERATION = enum.auto()  # of the link as it is now
    PCIE_MAX_GENERATION = enum.auto()
    PCIE_LANES = enum.auto()
    PCIE_MAX_LANES = enum.auto()
    PROCESSES = enum.auto()  # number of processes
    PROCESS_MEMORY_BYTES = enum.auto()  # a value for each process; its reading labels: pid
    PROCESS_VIRTUAL_BYTES = enum.auto()  # pid
    PROCESS_UTILIZATION_PERCENT = enum.auto()  # pid
    PROCESS_ENGINE_PERCENT = enum.auto()  # pid, engine
    ONE = enum.auto()  # always 1, for families whose labels are the facts
    # of the maker on the node, and of those that a pod uses; see `MetricAlias.is_of_node`
    DEVICES = enum.auto()
    DEVICES_IN_USE = enum.auto()


class LabelOrigin(enum.Enum):
    """The source of the value of an alias' label; `key` is `AliasLabel.key`."""

    CONSTANT = enum.auto()  # `key` itself
    READING = enum.auto()  # label `key` of the reading
    # label `key` of the reading of `AliasLabel.family` that has the same label `AliasLabel.by`
    OTHER_READING = enum.auto()
    FACT = enum.auto()  # fact `key` of the device
    NAME = enum.auto()  # name of the product: the fact `name`, else the model
    MODEL = enum.auto()
    UUID = enum.auto()
    MINOR = enum.auto()  # the published number
    VENDOR_MINOR = enum.auto()  # the driver's number
    BUS_ID = enum.auto()  # 0000:3b:00.0
    BUS_ID_UPPER = enum.auto()  # 0000:3B:00.0
    BUS_ID_LONG = enum.auto()  # 00000000:3B:00.0
    DRIVER_VERSION = enum.auto()
    NODE = enum.auto()  # name of the node
    NAMESPACE = enum.auto()  # this and the following describe the pod that uses the device
    POD = enum.auto()
    CONTAINER = enum.auto()
    POD_UID = enum.auto()


class AliasLabel(msgspec.Struct, frozen=True):
    """A label of another exporter's series. A label without a value is left out."""

    name: str
    origin: LabelOrigin
    key: str = ""
    prefix: str = ""  # before a value that is not empty
    family: str = ""
    by: str = ""


class AliasSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of another exporter's family: a family of the agent, or a `DeviceValue`.

    Readings that get the same labels are added up, unless they all have the same value.
    """

    family: str = ""
    value: DeviceValue | None = None
    where: Pairs = ()  # labels of the reading and their values; other readings are ignored
    factor: float = 1.0  # converts the agent's unit to that of the other exporter
    is_dbm: bool = False  # the other exporter reports dBm; the agent reports watts
    is_sum: bool = True  # False: readings with the same labels have the same value
    # of these series only, after those of the family; CONSTANT or READING
    labels: tuple[AliasLabel, ...] = ()


class AliasMatch(enum.Enum):
    """How closely an alias equals the family whose name it has."""

    SAME = "same"
    NEAR = "near"  # `MetricAlias.note` describes the difference
    ABSENT = "absent"  # no series; `MetricAlias.note` has the reason


class MetricAlias(msgspec.Struct, frozen=True, kw_only=True):
    """A family of another exporter."""

    name: str
    type: str  # gauge, counter
    help: str = ""
    sources: tuple[AliasSource, ...] = ()
    labels: tuple[AliasLabel, ...] | None = None  # None: those of the table
    match: AliasMatch = AliasMatch.SAME
    note: str = ""
    is_of_node: bool = False  # one series for the node, made from a number of devices
    is_of_pod: bool = False  # no series for a device that no pod uses


class AliasTable(msgspec.Struct, frozen=True, kw_only=True):
    """The families of another exporter, which `metrics.aliases` switches on by the name."""

    name: str  # value of `metrics.aliases`
    exporter: str  # for people: the program that these names come from
    maker: str  # `VendorDevice.vendor` of the devices that have series
    labels: tuple[AliasLabel, ...] = ()
    metrics: tuple[MetricAlias, ...] = ()


class NodeDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """A program of the vendor that must run on a node with its devices."""

    process: str  # name of the process
    function: str = ""  # needed only beside a PCI function of this vendor and class: 10de:0680
    fact: tuple[str, str] | None = None  # needed only if a device has this fact
    impact: str
    remedy: str


class NodeRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """What a node needs for the vendor's devices, and which programs manage them too.

    For checks of a node. Names of programs are those of their processes.
    """

    # files with the version of the loaded kernel module; the first that exists counts
    version_files: tuple[str, ...] = ()
    library: str = ""  # start of the name of its library; the version of the driver follows
    library_folders: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()  # that every container with a device needs
    daemons: tuple[NodeDaemon, ...] = ()
    device_plugins: tuple[str, ...] = ()  # other programs that offer the devices to the kubelet
    exporters: Pairs = ()  # other exporters of their metrics: program, value of `metrics.aliases`


class ReleaseLabel(msgspec.Struct, frozen=True, kw_only=True):
    """A label of the Node by which a vendor's operator asks all programs to close the driver."""

    key: str
    values: tuple[str, ...]
    is_prefix: bool = False  # all labels whose keys begin with `key`

    def matches(self, key: str, value: str) -> bool:
        """Return whether a label of the Node is such a request."""
        is_key = key.startswith(self.key) if self.is_prefix else key == self.key
        return is_key and value in self.values


class VendorDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent knows about a vendor without calling it."""

    name: str  # key of `discovery.<name>`, of `discovery.vendors`, and of tapes
    title: str  # title of its section in the reference of settings
    switch: SettingRule  # rule of `discovery.vendors.<name>`
    switch_default: str = "auto"
    settings: type[VendorSettings] = VendorSettings
    health: HealthOverrides = HealthOverrides()
    families: tuple[MetricFamily, ...] = ()  # families of the values in its samples
    aliases: tuple[AliasTable, ...] = ()  # names of other exporters for the same values
    # traffic of links for people; of two sources for one direction of a link, the first one counts
    # that has readings
    traffic: tuple[TrafficSource, ...] = ()
    cdi: CdiNaming | None = None  # None: the agent writes no CDI file for its devices
    serves_kubelet: bool = False  # a `ServesKubelet`: `device_plugin.vendors` may name it
    is_network: bool = False  # devices are NICs: events of network devices may concern them
    kernel_modules: tuple[str, ...] = ()  # prefixes of the names of its drivers' modules
    # how paths of nodes start that runc on systemd finds only by a link in /dev/char
    char_link_prefix: str = ""
    is_isolated: bool = True  # False: it only reads files, and its session runs in the agent
    requirements: NodeRequirements = NodeRequirements()
    state_files: tuple[str, ...] = ()  # names of the session's files in the state folder
    # those that list the slices which the session created; an empty list is no slice
    slice_files: tuple[str, ...] = ()
    release_labels: tuple[ReleaseLabel, ...] = ()  # of the Node, set while the driver is exchanged


class VendorSession(Protocol):
    """An opened vendor. It runs in the vendor's own process, where it may block or crash."""

    def discover(self) -> Inventory:
        """Return every device of the vendor; an unknown fact is `None`, never 0."""
        ...

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return measurements of the devices; a device that does not answer is left out."""
        ...

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for events at most `wait_s` seconds; called on a thread of its own."""
        ...

    def close(self) -> None:
        """Close the library."""
        ...


class DeviceVendor(Protocol):
    """A kind of hardware. `detect` runs in the agent, `open` in the worker.

    The session of a vendor that is not isolated runs in the agent, on the thread that reads the
    host, and its `events` must not wait.
    """

    description: VendorDescription

    def detect(self, host: HostFiles, settings: OwnSettings) -> tuple[VendorDevice, ...]:
        """Return the vendor's hardware from sysfs and procfs alone, in less than 10 ms.

        If it is empty, no worker is started. Each device has the reason why no more is known; the
        device is shown with it while the worker does not answer.
        """
        ...

    def open(
        self, host: HostFiles, settings: OwnSettings, context: SessionContext
    ) -> VendorSession:
        """Open a session with the hardware.

        A missing library is no error: the session reports it in its inventory, and searches for the
        library again at each discovery.
        """
        ...


# Abilities that a vendor may have beside those: it has one if it has all members of its Protocol.


@runtime_checkable
class InjectsDevices(Protocol):
    """Gives containers the vendor's devices. Called in the agent process; both methods are pure.

    A vendor whose containers need the nodes of their devices and nothing else takes both functions
    from `plugins.shared.injection`.
    """

    def host_query(self, settings: OwnSettings) -> HostDeviceQuery:
        """Return which files of the host `edits` needs, besides the nodes of the devices."""
        ...

    def edits(
        self,
        devices: Sequence[VendorDevice],
        allocation: DeviceAllocation,
        container: ContainerSpec,
        host: HostDevices,
        /,
    ) -> ContainerEdits:
        """Return the edits for the vendor's `devices` in an allocation.

        Equal arguments give equal edits. Entries of other vendors' devices are ignored; an empty
        allocation gives only edits that withhold devices. Raises `AllocationRefused` if the
        container could not use its devices.
        """
        ...


@runtime_checkable
class SuppliesDriverFiles(Protocol):
    """Has a driver whose files every container with a device needs; `edits` names none of them.

    The vendor's CDI file has them. Without them there is no file.
    """

    def driver_edits(self, host: HostFiles, version: str | None, /) -> CdiEdits | None:
        """Return the edits with the files of the loaded driver; `None` if it is not on this host.

        Blocks; raises `HostFileError` if a folder cannot be read.
        """
        ...


class FunctionReader(Protocol):
    """Reads the device nodes behind the PCI functions of one host; belongs to one thread."""

    def read(self, devices: Iterable[VendorDevice], now_s: float) -> tuple[RdmaFunction, ...]:
        """Return the functions of these devices, virtual ones included, in their order."""
        ...


@runtime_checkable
class ReadsFunctions(Protocol):
    """Has devices whose nodes `InjectsDevices.edits` finds by their PCI function."""

    def function_reader(self, host: HostFiles, /) -> FunctionReader:
        """Return a new reader for a host."""
        ...


@runtime_checkable
class SlicesDevices(Protocol):
    """Has devices that can be partitioned for pods.

    Runs in the agent process; all methods are pure.
    """

    def slices_device(self, device: VendorDevice, /) -> bool:
        """Return whether the vendor can partition the device."""
        ...

    def resolve_entry(self, entry: AllocatedDevice, device: VendorDevice, /) -> AllocatedDevice:
        """Return an entry of an allocation with the amounts that its template takes.

        Raises `AllocationRefused` (`TemplateUnknown`) if the device has no such template.
        """
        ...

    def slice_request(
        self, pod: str, entry: AllocatedDevice, device: VendorDevice, /
    ) -> SliceRequest | None:
        """Return the slice that the vendor's worker has to create; `None` if none is needed."""
        ...

    def is_sliced_by_runtime(self, handler: str, /) -> bool:
        """Return whether the runtime of this name creates the slices itself."""
        ...


@runtime_checkable
class WithholdsDevices(Protocol):
    """Has a container runtime that gives devices to a container that names them in a variable.

    `edits` is called for a container without a device of the vendor only if one of
    `request_variables` is set.
    """

    request_variables: frozenset[str]
    runtime_handler: str  # part of the names of such runtimes in the settings of CRI


NamedUnits = Iterator[tuple[str, DeviceUnit]]  # name of the resource, and one of its units


@runtime_checkable
class ServesKubelet(Protocol):
    """Offers devices to the kubelet, with the names and ids of the vendor's own device plug-in."""

    @property
    def socket_prefixes(self) -> tuple[str, ...]:
        """Return how names of sockets of the vendor's own device plug-in start."""
        ...

    def serves_device(self, device: VendorDevice) -> bool:
        """Return whether the device is one of those that the vendor offers to the kubelet."""
        ...

    def kubelet_units(
        self, devices: Sequence[Device], settings: msgspec.Struct, problems: list[Problem]
    ) -> NamedUnits:
        """Yield the units of each resource, unhealthy ones included; pure.

        `devices` are those that `serves_device` accepts, `settings` is the section
        `device_plugin`. What cannot be offered is added to `problems`.
        """
        ...


def kubelet_vendors(vendors: Mapping[str, DeviceVendor]) -> Mapping[str, ServesKubelet]:
    """Return the vendors that can serve the kubelet, by name."""
    return {name: one for name, one in vendors.items() if isinstance(one, ServesKubelet)}


def injecting_vendors(vendors: Mapping[str, DeviceVendor]) -> Mapping[str, InjectsDevices]:
    """Return the vendors that can give containers their devices, by name."""
    return {name: one for name, one in vendors.items() if isinstance(one, InjectsDevices)}


def slicing_vendors(vendors: Mapping[str, DeviceVendor]) -> Mapping[str, SlicesDevices]:
    """Return the vendors that can partition devices for pods, by name."""
    return {name: one for name, one in vendors.items() if isinstance(one, SlicesDevices)}
