"""PCI functions of RDMA devices: all facts for discovery, only links for detection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.errors import ParseError
from agent.host.files import read_text
from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pci import address_sort_key, is_host_bridge, parse_address, slot_of
from agent.wire_formats.kernel_text import parse_hex_id, parse_int
from plugins.vendors.rdma.sysfs.classes import (
    CLASS,
    MAX_DEVICES,
    ClassKind,
    RdmaClass,
    RdmaNodes,
    last_address,
    link_text,
    list_entries,
    netns_mode,
    primary_name,
    read_classes,
    read_nodes,
    read_origin,
)
from plugins.vendors.rdma.sysfs.values import is_name

PCI = "/sys/bus/pci/devices"
NETWORK = 0x02  # PCI base class
GONE_VENDORS = (0x0000, 0xFFFF)  # what a bus answers for a device that fell off

_VIRTFN = re.compile(r"virtfn([0-9]{1,5})")


class RdmaDriver(msgspec.Struct, frozen=True):
    """The module that registers a driver's RDMA devices, and whether all its functions have one."""

    module: str
    has_always_device: bool


DRIVERS: Mapping[str, RdmaDriver] = MappingProxyType(
    {
        "mlx5_core": RdmaDriver("mlx5_ib", has_always_device=True),
        "mlx4_core": RdmaDriver("mlx4_ib", has_always_device=True),
        "efa": RdmaDriver("efa", has_always_device=True),
        "erdma": RdmaDriver("erdma", has_always_device=True),
        "hfi1": RdmaDriver("hfi1", has_always_device=True),
        "ib_qib": RdmaDriver("ib_qib", has_always_device=True),
        "vmw_pvrdma": RdmaDriver("vmw_pvrdma", has_always_device=True),
        "bnxt_en": RdmaDriver("bnxt_re", has_always_device=False),
        "ice": RdmaDriver("irdma", has_always_device=False),
        "i40e": RdmaDriver("irdma", has_always_device=False),
        "hns3": RdmaDriver("hns_roce_hw_v2", has_always_device=False),
        "cxgb4": RdmaDriver("iw_cxgb4", has_always_device=False),
        "qede": RdmaDriver("qedr", has_always_device=False),
        "mana": RdmaDriver("mana_ib", has_always_device=False),
        "ionic": RdmaDriver("ionic_rdma", has_always_device=False),
    }
)


ALWAYS_RDMA = frozenset(name for name, driver in DRIVERS.items() if driver.has_always_device)

PENDING = Health(
    state=HealthState.SUSPECT,
    reason="DiscoveryPending",
    message="seen in sysfs; its ports have not been looked at yet",
)


class RdmaPciFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a PCI function that RDMA needs; `None`: not in sysfs."""

    address: str
    is_present: bool = True  # False: the bus does not list it
    root: str | None = None
    class_code: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    driver: str | None = None
    physfn: str | None = None
    virtfns: tuple[tuple[int, str], ...] = ()  # (index, address), by index
    numvfs: int | None = None
    totalvfs: int | None = None
    rdma: tuple[str, ...] = ()  # names of its RDMA devices
    netdevs: tuple[str, ...] = ()
    masters: frozenset[str] = frozenset()  # bonds above its network devices

    @property
    def is_gone(self) -> bool:
        """Return whether it was removed, or its ids read as those of a removed device."""
        return not self.is_present or self.vendor_id in GONE_VENDORS

    @property
    def identity(self) -> str | None:
        """Return address and ids, the key of a stored minor; `None` if the ids cannot be read."""
        if self.is_gone or self.vendor_id is None or self.device_id is None:
            return None
        return f"{self.address} {self.vendor_id:04x}:{self.device_id:04x}"


class RdmaScan(msgspec.Struct, frozen=True, kw_only=True):
    """All RDMA facts in sysfs at one moment."""

    classes: tuple[RdmaClass, ...]
    refused_names: tuple[str, ...]  # names in the class that cannot be ones
    bus_addresses: frozenset[str]  # all addresses
    functions: Mapping[str, RdmaPciFunction]  # those that matter, by address, in PCI order
    nodes: RdmaNodes
    has_exclusive_netns: bool  # devices can be in one network namespace only
    loaded_modules: frozenset[str]  # modules of DRIVERS that are


def _int(host: HostFiles, path: str) -> int | None:
    try:
        return parse_int(read_text(host, path) or "", 0, 65535)
    except ParseError:
        return None


def _hex(host: HostFiles, path: str, digits: int) -> int | None:
    try:
        return parse_hex_id(read_text(host, path) or "", digits)
    except ParseError:
        return None


def _netdevs(host: HostFiles, folder: str, entries: tuple[str, ...]) -> tuple[str, ...]:
    # virtio has its network devices one level deeper
    virtio_entries = [entry for entry in entries if entry.startswith("virtio")]
    folders = (f"{folder}/net", *(f"{folder}/{entry}/net" for entry in virtio_entries))
    names = {name for path in folders for name in list_entries(host, path) if is_name(name)}
    return tuple(sorted(names))


def _virtfns(host: HostFiles, folder: str, entries: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    functions: list[tuple[int, str]] = []
    for entry in entries:
        index = _VIRTFN.fullmatch(entry)
        address = last_address(link_text(host, f"{folder}/{entry}") or "") if index else None
        if index and address:
            functions.append((int(index[1]), address))
    return tuple(sorted(functions))


def read_function(host: HostFiles, address: str) -> RdmaPciFunction:
    """Read one function; one that is not on the bus is not `present`."""
    folder = f"{PCI}/{address}"
    entries = list_entries(host, folder)
    if not entries:
        return RdmaPciFunction(address=address, is_present=host.exists(folder))
    link = link_text(host, folder) or ""
    netdevs = _netdevs(host, folder, entries)
    masters = (link_text(host, f"/sys/class/net/{name}/master") or "" for name in netdevs)
    return RdmaPciFunction(
        address=address,
        root=next(filter(is_host_bridge, link.split("/")), None)
        if last_address(link) == address
        else None,
        class_code=_hex(host, f"{folder}/class", 6),
        vendor_id=_hex(host, f"{folder}/vendor", 4),
        device_id=_hex(host, f"{folder}/device", 4),
        driver=driver_of(host, address),
        physfn=last_address(link_text(host, f"{folder}/physfn") or ""),
        virtfns=_virtfns(host, folder, entries),
        numvfs=read_numvfs(host, address),
        totalvfs=_int(host, f"{folder}/sriov_totalvfs"),
        rdma=tuple(filter(is_name, list_entries(host, f"{folder}/infiniband"))),
        netdevs=netdevs,
        masters=frozenset(name.rstrip("/").rpartition("/")[2] for name in masters if name),
    )


def read_numvfs(host: HostFiles, address: str) -> int | None:
    """Return the number of virtual functions that the PF's own file has."""
    return _int(host, f"{PCI}/{address}/sriov_numvfs")


def driver_of(host: HostFiles, address: str) -> str | None:
    """Return the name of the driver to which a function is bound."""
    link = link_text(host, f"{PCI}/{address}/driver")
    return link.rstrip("/").rpartition("/")[2] or None if link else None


def bus_addresses(host: HostFiles) -> tuple[str, ...]:
    """Return the functions of the bus in numeric order; other names are skipped."""
    addresses: list[str] = []
    for name in list_entries(host, PCI):
        try:
            if parse_address(name) == name:
                addresses.append(name)
        except ParseError:
            continue
    return tuple(sorted(addresses, key=address_sort_key))


def read_scan(host: HostFiles, remembered: Iterable[str] = ()) -> RdmaScan:
    """Read the classes and every function that has, had, or may have an RDMA device."""
    classes, refused_names = read_classes(host)
    bus = bus_addresses(host)
    bound = {address for address in bus if driver_of(host, address) in DRIVERS}
    owners = {rdma_class.origin.address for rdma_class in classes if rdma_class.origin.address}
    cards = {slot_of(address) for address in owners}
    siblings = {address for address in bus if slot_of(address) in cards}
    addresses = bound | owners | siblings | set(remembered)
    functions = {address: read_function(host, address) for address in addresses}
    virtual = {vf for rdma_class in functions.values() for _, vf in rdma_class.virtfns} - set(
        functions
    )
    functions |= {address: read_function(host, address) for address in virtual}
    ordered = dict(sorted(functions.items(), key=lambda item: address_sort_key(item[0])))
    modules = {driver.module for driver in DRIVERS.values()}
    return RdmaScan(
        classes=classes,
        refused_names=refused_names,
        bus_addresses=frozenset(bus),
        functions=MappingProxyType(ordered),
        nodes=read_nodes(host, tuple(sorted(owners, key=address_sort_key))),
        has_exclusive_netns=netns_mode(host) == "exclusive",
        loaded_modules=frozenset(name for name in modules if host.exists(f"/sys/module/{name}")),
    )


def detect_devices(host: HostFiles) -> tuple[VendorDevice, ...]:
    """Return the devices that a discovery would describe, with at most three reads for each.

    Virtual functions belong to their PF and are not read.
    """
    names: dict[str, list[str]] = {}
    others: list[VendorDevice] = []
    for name in filter(is_name, list_entries(host, CLASS)[:MAX_DEVICES]):
        origin = read_origin(host, name)
        if origin.address is None:
            others.append(
                _describe_pending(f"{origin.kind.value}-{name}", None, origin.kind.value, name)
            )
        elif origin.kind is ClassKind.HARDWARE and not is_virtual(host, origin.address):
            names.setdefault(origin.address, []).append(name)
    pending = {
        address: _describe_pending(
            address, address, driver_of(host, address) or "other", primary_name(device_names)
        )
        for address, device_names in names.items()
    }
    cards = {slot_of(address) for address in pending}
    for address in bus_addresses(host):
        driver = driver_of(host, address)
        if (
            driver in ALWAYS_RDMA
            and slot_of(address) not in cards
            and not is_virtual(host, address)
        ):
            pending[address] = _describe_pending(address, address, driver or "", None)
    return (*(pending[address] for address in sorted(pending, key=address_sort_key)), *others)


def is_virtual(host: HostFiles, address: str) -> bool:
    """Return whether a function is virtual, and its PF is on this host."""
    return link_text(host, f"{PCI}/{address}/physfn") is not None


def _describe_pending(key: str, address: str | None, family: str, name: str | None) -> VendorDevice:
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor=family,
        bus_id=address,
        uuid=key,
        managed=address is not None,
        health=PENDING,
        facts=(("name", name),) if name else (),
    )
