"""Reads the kernel's RDMA classes: devices, their device nodes, the namespace mode."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping

import msgspec

from agent.errors import HostFileError, ParseError
from agent.host.files import read_text
from agent.snapshot.device import DeviceNode
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pci import parse_address
from agent.wire_formats.kernel_text import parse_dev_number
from plugins.vendors.rdma.sysfs.values import is_name, parse_enum, parse_guid

CLASS = "/sys/class/infiniband"
MAX_DEVICES = 1024  # of one class; a node with 256 VFs on each of two ports stays below
MAX_TEXT = 64  # characters of a descriptive file that are kept

_NETNS_MODE = "/sys/module/ib_core/parameters/netns_mode"
_UVERBS = re.compile(r"uverbs[0-9]{1,5}")
_MAD = re.compile(r"(umad|issm)[0-9]{1,5}")
_SUBFUNCTION = re.compile(r"[a-z0-9_]+\.sf\.[0-9]{1,9}")


class ClassKind(enum.Enum):
    """The kind of hardware or software of a class entry."""

    HARDWARE = "hardware"
    SUBFUNCTION = "subfunction"
    SOFT = "soft"
    OTHER = "other"


class DeviceOrigin(msgspec.Struct, frozen=True):
    """The target of a class entry's link."""

    kind: ClassKind
    address: str | None = None  # of the PCI function


class RdmaClass(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the class with its descriptive files; absent ones are `None`."""

    name: str
    origin: DeviceOrigin
    parent: str | None = None  # netdev below a soft device
    node_type: int | None = None
    node_guid: str | None = None  # 16 digits
    sys_image_guid: str | None = None
    firmware: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    description: str | None = None  # may hold a host name: never published

    @property
    def is_nic(self) -> bool:
        """Return whether it transfers data: it is no switch, router or switch-management device."""
        return self.node_type not in (2, 3) and not re.fullmatch(r"smi[0-9]+", self.name)

    @property
    def soft_family(self) -> str:
        """Return `rxe` or `siw` by description or name, else by type."""
        for name in ("rxe", "siw"):
            if self.description == name or self.name.startswith(name):
                return name
        return "siw" if self.node_type == 4 else "soft"


class RdmaNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Character devices by RDMA name, with the numbers in sysfs."""

    uverbs: Mapping[str, DeviceNode]
    mad: Mapping[str, tuple[DeviceNode, ...]]  # umad and issm, one of each per port
    rdma_cm: DeviceNode | None


def list_entries(host: HostFiles, path: str) -> tuple[str, ...]:
    """Return the entries of a directory; empty if it cannot be listed."""
    try:
        return host.names(path)
    except HostFileError:
        return ()


def link_text(host: HostFiles, path: str) -> str | None:
    """Return a link's text; `None` if it cannot be read."""
    try:
        return host.link(path)
    except HostFileError:
        return None


def last_address(link: str) -> str | None:
    """Return the last PCI address among the components of a link's text."""
    for part in reversed(link.split("/")):
        if ":" not in part:
            continue
        try:
            return parse_address(part)
        except ParseError:
            continue
    return None


def origin_of(link: str) -> DeviceOrigin:
    """Classify a class entry by its link's text; nothing is resolved."""
    parts = link.split("/")
    if "virtual" in parts:
        return DeviceOrigin(ClassKind.SOFT)
    address = last_address(link)
    if address is None:
        return DeviceOrigin(ClassKind.OTHER)
    for part in parts:
        if _SUBFUNCTION.fullmatch(part):
            return DeviceOrigin(ClassKind.SUBFUNCTION, address)
    return DeviceOrigin(ClassKind.HARDWARE, address)


def read_origin(host: HostFiles, name: str) -> DeviceOrigin:
    """Return the origin of an entry of the class."""
    path = f"{CLASS}/{name}"
    # old kernels and some recordings have a directory here, and a link `device` in it
    link = link_text(host, path) or link_text(host, f"{path}/device")
    origin = origin_of(link) if link else DeviceOrigin(ClassKind.OTHER)
    if origin.kind is ClassKind.OTHER and read_text(host, f"{path}/parent"):
        return DeviceOrigin(ClassKind.SOFT)
    return origin


def netdev_address(host: HostFiles, netdev: str) -> str | None:
    """Return the PCI function below a network device; `None` for virtual ones."""
    link = link_text(host, f"/sys/class/net/{netdev}") if is_name(netdev) else None
    return last_address(link) if link else None


def primary_name(names: Iterable[str]) -> str:
    """Return the name that represents a function: the shortest, then the first by bytes.

    A PF registers before its representors and so gets the shorter number.
    """
    return min(names, key=lambda name: (len(name), name))


def read_class(host: HostFiles, name: str) -> RdmaClass:
    """Read one entry with all its files."""
    path = f"{CLASS}/{name}"

    def short(file: str) -> str | None:
        return (read_text(host, f"{path}/{file}", 4096) or "")[:MAX_TEXT] or None

    origin = read_origin(host, name)
    parent = short("parent") if origin.kind is ClassKind.SOFT else None
    if parent is not None:
        parent = parent if is_name(parent) else None
        origin = DeviceOrigin(ClassKind.SOFT, netdev_address(host, parent or ""))
    node_type = parse_enum(short("node_type") or "")
    return RdmaClass(
        name=name,
        origin=origin,
        parent=parent,
        node_type=node_type[0] if node_type else None,
        node_guid=parse_guid(short("node_guid") or ""),
        sys_image_guid=parse_guid(short("sys_image_guid") or ""),
        firmware=short("fw_ver"),
        hca_type=short("hca_type"),
        board_id=short("board_id"),
        description=short("node_desc") if origin.kind is ClassKind.SOFT else None,
    )


def read_classes(host: HostFiles) -> tuple[tuple[RdmaClass, ...], tuple[str, ...]]:
    """Return all entries, and the names that are refused."""
    names = list_entries(host, CLASS)[:MAX_DEVICES]
    classes = tuple(read_class(host, name) for name in names if is_name(name))
    # an entry that went away while it was read is not there
    present = tuple(
        rdma_class for rdma_class in classes if host.exists(f"{CLASS}/{rdma_class.name}")
    )
    return present, tuple(name for name in names if not is_name(name))


def _node(host: HostFiles, path: str, name: str) -> DeviceNode | None:
    try:
        major, minor = parse_dev_number(read_text(host, f"{path}/dev") or "")
    except ParseError:
        return None
    return DeviceNode(path=f"/dev/infiniband/{name}", major=major, minor=minor)


def _uverbs(host: HostFiles, folder: str, names: Mapping[str, DeviceNode]) -> dict[str, DeviceNode]:
    nodes = dict(names)
    for entry in list_entries(host, folder)[:MAX_DEVICES]:
        if not _UVERBS.fullmatch(entry):  # abi_version is a file beside them
            continue
        owner = read_text(host, f"{folder}/{entry}/ibdev")
        node = _node(host, f"{folder}/{entry}", entry)
        if owner and node:
            nodes.setdefault(owner, node)
    return nodes


def read_nodes(host: HostFiles, addresses: tuple[str, ...] = ()) -> RdmaNodes:
    """Read the device nodes of all devices; `addresses` are searched if the class is missing."""
    uverbs = _uverbs(host, "/sys/class/infiniband_verbs", {})
    for address in () if uverbs else addresses:  # a recording may lack the class
        uverbs = _uverbs(host, f"/sys/bus/pci/devices/{address}/infiniband_verbs", uverbs)
    mad: dict[str, tuple[DeviceNode, ...]] = {}
    for entry in list_entries(host, "/sys/class/infiniband_mad")[:MAX_DEVICES]:
        path = f"/sys/class/infiniband_mad/{entry}"
        owner = read_text(host, f"{path}/ibdev") if _MAD.fullmatch(entry) else None
        node = _node(host, path, entry) if owner else None
        if owner and node:
            mad[owner] = (*mad.get(owner, ()), node)
    return RdmaNodes(
        uverbs=uverbs, mad=mad, rdma_cm=_node(host, "/sys/class/misc/rdma_cm", "rdma_cm")
    )


def netns_mode(host: HostFiles) -> str:
    """Return `exclusive` or `shared`; kernels before 5.2 have only the latter."""
    return "exclusive" if read_text(host, _NETNS_MODE) == "N" else "shared"
