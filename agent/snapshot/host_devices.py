"""What the host has for containers: device nodes, CDI specs, kernel features, and the queries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import msgspec

from agent.snapshot.allocation import AllocationRefused, RefusalReason
from agent.snapshot.cpu import CpuSet
from agent.snapshot.device import DeviceNode
from agent.snapshot.settings import VendorSettings
from agent.snapshot.usage import MpsDaemon


class KernelFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the kernel that hooks use; unknown facts switch nothing on."""

    cgroup_version: int | None = None  # 1 (also hybrid) or 2; None: unknown
    besteffort_cpus: CpuSet | None = None  # cpuset.cpus of that QoS directory; None: not read
    bvt_file: bool = False  # the kubepods directory has cpu.bvt_warp_ns
    # /proc/sys/kernel/sched_group_identity_enabled
    identity_switch: int | None = None  # its value; None: absent, or not readable
    identity_switch_present: bool = False
    core_scheduling: bool = False  # tasks can have cookies
    core_switch: int | None = None  # /proc/sys/kernel/sched_core; None: absent


class CdiDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One name of a CDI spec, and the paths of its device nodes."""

    name: str
    nodes: tuple[str, ...] = ()


class CdiSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a CDI spec that are needed to choose a name."""

    path: str
    kind: str  # vendor/class
    devices: tuple[CdiDevice, ...] = ()
    mounts: tuple[str, ...] = ()  # host paths of all mounts


class RdmaFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The RDMA devices of one PCI function now; a VF's may be in a pod's namespace already."""

    address: str
    names: tuple[str, ...] = ()  # of its RDMA devices, the primary first; no subfunctions, no smi
    verbs: tuple[DeviceNode, ...] = ()  # in the order of the names
    umad: tuple[DeviceNode, ...] = ()
    netdevs: tuple[str, ...] = ()  # network devices in the host's network namespace
    driver: str | None = None


SettingsT = TypeVar("SettingsT", bound=VendorSettings)


class HostDevices(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The device nodes and files of a vendor, read for the pure function `edits`."""

    nodes: tuple[DeviceNode, ...] = ()  # character devices below /dev, with the numbers of stat
    paths: frozenset[str] = frozenset()  # the requested files and folders that exist
    majors: tuple[tuple[str, int], ...] = ()  # major numbers of /proc/devices; empty: not readable
    cdi: tuple[CdiSpec, ...] = ()  # readable specs, in the order of their folders
    cdi_enabled: bool = False  # the runtime resolves CDI names in the agent's answers
    default_handler: str = ""  # runtime handler of containers without a runtime class
    driver_version: str | None = None  # version of the vendor's loaded driver
    functions: tuple[RdmaFunction, ...] = ()
    mps: tuple[MpsDaemon, ...] = ()
    mount_list: tuple[str, ...] | None = None  # Ascend's own base.list; None: there is none
    settings: VendorSettings = VendorSettings()  # the vendor's own settings

    @cached_property
    def nodes_by_path(self) -> Mapping[str, DeviceNode]:
        """Return the nodes by path."""
        return {node.path: node for node in reversed(self.nodes)}  # the first of a path counts

    def node(self, path: str) -> DeviceNode | None:
        """Return a device node; `None` if it does not exist."""
        return self.nodes_by_path.get(path)

    def require_node(self, path: str) -> DeviceNode:
        """Return a device node, or raise `AllocationRefused` with its path."""
        node = self.node(path)
        if node is None:
            raise AllocationRefused(RefusalReason.DEVICE_NODE_MISSING, f"{path} does not exist")
        return node

    def settings_as(self, kind: type[SettingsT]) -> SettingsT:
        """Return the vendor's settings, which have this type; its defaults if there are none."""
        return self.settings if isinstance(self.settings, kind) else kind()

    def effective_handler(self, runtime_handler: str) -> str:
        """Return the runtime handler that a container really gets."""
        return runtime_handler or self.default_handler


class HostDeviceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Paths to check on the host. Nodes of the vendor's own devices are always checked."""

    nodes: tuple[str, ...] = ()  # device nodes; the last component may contain `*`: /dev/davinci*
    paths: tuple[str, ...] = ()  # files and folders; only their existence is checked
    mount_list: str = ""  # a file with paths, which are checked too
    mps: bool = False


EMPTY_QUERY = HostDeviceQuery()


def _no_vendors() -> Mapping[str, HostDevices]:
    return MappingProxyType({})


class HostDevicesView(msgspec.Struct, frozen=True, kw_only=True):
    """Device nodes and files by the name of the vendor's plug-in; absent vendors are not in it."""

    vendors: Mapping[str, HostDevices] = msgspec.field(default_factory=_no_vendors)
    resctrl_groups: tuple[str, ...] = ()  # control groups that exist; a class uses one of them
    kernel: KernelFeatures = KernelFeatures()
    problems: tuple[tuple[str, str], ...] = ()  # CamelCase reason and message, for people
