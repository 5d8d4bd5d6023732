"""What a host has for containers at one moment: nodes, files, CDI specs, settings.

And what of it a vendor wants looked for, so that its `edits` find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

import msgspec

from agent.model.device import DeviceNode
from agent.model.grant.refusal import GrantRefused, Refusal
from agent.model.grant.sharing import MpsDaemon


class CdiDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One name of a CDI spec and the paths of the nodes it stands for."""

    name: str
    nodes: tuple[str, ...] = ()


class CdiSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A CDI spec as far as choosing a name needs it."""

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
    netdevs: tuple[str, ...] = ()  # that are in the host's network namespace
    driver: str | None = None


def _nothing() -> Mapping[str, object]:
    return MappingProxyType({})


class HostMeans(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What there is to give. Read by whoever asks for edits, so that these stay pure."""

    nodes: tuple[DeviceNode, ...] = ()  # character devices below /dev, with the numbers of stat
    paths: frozenset[str] = frozenset()  # files and folders that exist, of those looked for
    majors: tuple[tuple[str, int], ...] = ()  # of /proc/devices; empty: not readable
    cdi: tuple[CdiSpec, ...] = ()  # readable ones, in the order of their folders
    cdi_enabled: bool = False  # the way into the runtime takes CDI names
    default_handler: str = ""  # of containers without a runtime class
    driver_version: str | None = None  # of the vendor's loaded driver
    functions: tuple[RdmaFunction, ...] = ()
    mps: tuple[MpsDaemon, ...] = ()
    mount_list: tuple[str, ...] | None = None  # Ascend's own base.list; None: there is none
    settings: Mapping[str, object] = msgspec.field(default_factory=_nothing)  # the vendor's own

    @cached_property
    def _by_path(self) -> Mapping[str, DeviceNode]:
        return {node.path: node for node in reversed(self.nodes)}  # the first of a path counts

    def node(self, path: str) -> DeviceNode | None:
        """Return a device node; `None` if it is not there."""
        return self._by_path.get(path)

    def must_have(self, path: str) -> DeviceNode:
        """Return a device node, or raise `GrantRefused` with its path."""
        node = self.node(path)
        if node is None:
            raise GrantRefused(Refusal.DEVICE_NODE_MISSING, f"{path} does not exist")
        return node

    @cached_property
    def _by_driver(self) -> Mapping[str, int]:
        return dict(self.majors)

    def major(self, *drivers: str) -> int | None:
        """Return the number of the first of these drivers that the kernel lists."""
        listed = self._by_driver
        return next((listed[name] for name in drivers if name in listed), None)

    def handler(self, runtime_handler: str) -> str:
        """Return the runtime handler that a container really gets."""
        return runtime_handler or self.default_handler


class HostNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of the host. The nodes of the vendor's own devices are looked for unasked."""

    nodes: tuple[str, ...] = ()  # device nodes; the last part may hold `*`: /dev/davinci*
    paths: tuple[str, ...] = ()  # files and folders, whose being there is all that counts
    mount_list: str = ""  # a file of paths, which are looked for too
    functions: bool = False  # RDMA devices by PCI function
    mps: bool = False


NOTHING_MORE = HostNeeds()
