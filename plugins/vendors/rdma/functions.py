"""PCI functions behind RDMA devices: whole for discovery, by links alone for a sighting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.errors import ParseError
from agent.host.files import HostFiles, text
from agent.model.device import DeviceKind, Health, HealthState, VendorDevice
from agent.topology.address import is_root, parse_address, slot, sort_key
from agent.topology.text import parse_hex_id, parse_int
from plugins.bindings.rdma_class.classes import (
    CLASS,
    MAX_DEVICES,
    ClassKind,
    Nodes,
    RdmaClass,
    entries,
    last_address,
    link_text,
    netns_mode,
    primary_of,
    read_classes,
    read_nodes,
    read_origin,
)
from plugins.bindings.rdma_class.text import is_name

PCI = "/sys/bus/pci/devices"
NETWORK = 0x02  # PCI base class
GONE_VENDORS = (0x0000, 0xFFFF)  # what a bus answers for a device that fell off

_VIRTFN = re.compile(r"virtfn([0-9]{1,5})")


class Driver(msgspec.Struct, frozen=True):
    """Which module registers a driver's RDMA devices, and whether all its functions have one."""

    module: str
    always: bool


DRIVERS: Mapping[str, Driver] = MappingProxyType(
    {
        "mlx5_core": Driver("mlx5_ib", always=True),
        "mlx4_core": Driver("mlx4_ib", always=True),
        "efa": Driver("efa", always=True),
        "erdma": Driver("erdma", always=True),
        "hfi1": Driver("hfi1", always=True),
        "ib_qib": Driver("ib_qib", always=True),
        "vmw_pvrdma": Driver("vmw_pvrdma", always=True),
        "bnxt_en": Driver("bnxt_re", always=False),
        "ice": Driver("irdma", always=False),
        "i40e": Driver("irdma", always=False),
        "hns3": Driver("hns_roce_hw_v2", always=False),
        "cxgb4": Driver("iw_cxgb4", always=False),
        "qede": Driver("qedr", always=False),
        "mana": Driver("mana_ib", always=False),
        "ionic": Driver("ionic_rdma", always=False),
    }
)


ALWAYS_RDMA = frozenset(name for name, driver in DRIVERS.items() if driver.always)

PENDING = Health(
    state=HealthState.SUSPECT,
    reason="DiscoveryPending",
    message="seen in sysfs; its ports have not been looked at yet",
)


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function as far as RDMA needs it; `None` is what sysfs does not say."""

    address: str
    present: bool = True  # False: the bus does not list it
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
    def gone(self) -> bool:
        """Say whether it is off the bus, or answers like a device that is."""
        return not self.present or self.vendor_id in GONE_VENDORS

    @property
    def identity(self) -> str | None:
        """Place and kind of card: what a stored number belongs to; `None` if it does not tell."""
        if self.gone or self.vendor_id is None or self.device_id is None:
            return None
        return f"{self.address} {self.vendor_id:04x}:{self.device_id:04x}"


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """One look at everything RDMA on the host."""

    classes: tuple[RdmaClass, ...]
    refused: tuple[str, ...]  # names in the class that cannot be ones
    bus: frozenset[str]  # all addresses
    functions: Mapping[str, Function]  # those that matter, by address, in PCI order
    nodes: Nodes
    exclusive: bool  # devices can be in one network namespace only
    loaded: frozenset[str]  # modules of DRIVERS that are


def _int(host: HostFiles, path: str) -> int | None:
    try:
        return parse_int(text(host, path) or "", 0, 65535)
    except ParseError:
        return None


def _hex(host: HostFiles, path: str, digits: int) -> int | None:
    try:
        return parse_hex_id(text(host, path) or "", digits)
    except ParseError:
        return None


def _netdevs(host: HostFiles, folder: str, inside: tuple[str, ...]) -> tuple[str, ...]:
    # virtio has its network devices one level deeper
    below = [item for item in inside if item.startswith("virtio")]
    folders = (f"{folder}/net", *(f"{folder}/{item}/net" for item in below))
    found = {name for path in folders for name in entries(host, path) if is_name(name)}
    return tuple(sorted(found))


def _virtfns(host: HostFiles, folder: str, inside: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    found: list[tuple[int, str]] = []
    for item in inside:
        index = _VIRTFN.fullmatch(item)
        address = last_address(link_text(host, f"{folder}/{item}") or "") if index else None
        if index and address:
            found.append((int(index[1]), address))
    return tuple(sorted(found))


def read_function(host: HostFiles, address: str) -> Function:
    """Read one function; one that the bus does not list is not `present`."""
    folder = f"{PCI}/{address}"
    inside = entries(host, folder)
    if not inside:
        return Function(address=address, present=host.exists(folder))
    link = link_text(host, folder) or ""
    netdevs = _netdevs(host, folder, inside)
    masters = (link_text(host, f"/sys/class/net/{name}/master") or "" for name in netdevs)
    return Function(
        address=address,
        root=next(filter(is_root, link.split("/")), None)
        if last_address(link) == address
        else None,
        class_code=_hex(host, f"{folder}/class", 6),
        vendor_id=_hex(host, f"{folder}/vendor", 4),
        device_id=_hex(host, f"{folder}/device", 4),
        driver=driver_of(host, address),
        physfn=last_address(link_text(host, f"{folder}/physfn") or ""),
        virtfns=_virtfns(host, folder, inside),
        numvfs=numvfs(host, address),
        totalvfs=_int(host, f"{folder}/sriov_totalvfs"),
        rdma=tuple(filter(is_name, entries(host, f"{folder}/infiniband"))),
        netdevs=netdevs,
        masters=frozenset(name.rstrip("/").rpartition("/")[2] for name in masters if name),
    )


def numvfs(host: HostFiles, address: str) -> int | None:
    """Return how many virtual functions a PF says that it has."""
    return _int(host, f"{PCI}/{address}/sriov_numvfs")


def driver_of(host: HostFiles, address: str) -> str | None:
    """Return the name of the driver that a function is bound to."""
    link = link_text(host, f"{PCI}/{address}/driver")
    return link.rstrip("/").rpartition("/")[2] or None if link else None


def bus_addresses(host: HostFiles) -> tuple[str, ...]:
    """List the functions of the bus in their numeric order; other names are no functions."""
    found: list[str] = []
    for name in entries(host, PCI):
        try:
            if parse_address(name) == name:
                found.append(name)
        except ParseError:
            continue
    return tuple(sorted(found, key=sort_key))


def read_scan(host: HostFiles, remembered: Iterable[str] = ()) -> Scan:
    """Read the classes and every function that has, had, or may have an RDMA device."""
    classes, refused = read_classes(host)
    bus = bus_addresses(host)
    bound = {address for address in bus if driver_of(host, address) in DRIVERS}
    owners = {item.origin.address for item in classes if item.origin.address}
    cards = {slot(address) for address in owners}
    beside = {address for address in bus if slot(address) in cards}
    wanted = bound | owners | beside | set(remembered)
    functions = {address: read_function(host, address) for address in wanted}
    virtual = {vf for item in functions.values() for _, vf in item.virtfns} - set(functions)
    functions |= {address: read_function(host, address) for address in virtual}
    ordered = dict(sorted(functions.items(), key=lambda item: sort_key(item[0])))
    modules = {driver.module for driver in DRIVERS.values()}
    return Scan(
        classes=classes,
        refused=refused,
        bus=frozenset(bus),
        functions=MappingProxyType(ordered),
        nodes=read_nodes(host, tuple(sorted(owners, key=sort_key))),
        exclusive=netns_mode(host) == "exclusive",
        loaded=frozenset(name for name in modules if host.exists(f"/sys/module/{name}")),
    )


def sighted(host: HostFiles) -> tuple[VendorDevice, ...]:
    """List what discovery would look at; at most three links or lines are read for each device.

    Virtual functions are part of their PF, and are not read.
    """
    names: dict[str, list[str]] = {}
    others: list[VendorDevice] = []
    for name in filter(is_name, entries(host, CLASS)[:MAX_DEVICES]):
        origin = read_origin(host, name)
        if origin.address is None:
            others.append(_sighting(f"{origin.kind.value}-{name}", None, origin.kind.value, name))
        elif origin.kind is ClassKind.HARDWARE and not is_virtual(host, origin.address):
            names.setdefault(origin.address, []).append(name)
    found = {
        address: _sighting(address, address, driver_of(host, address) or "other", primary_of(here))
        for address, here in names.items()
    }
    cards = {slot(address) for address in found}
    for address in bus_addresses(host):
        driver = driver_of(host, address)
        if driver in ALWAYS_RDMA and slot(address) not in cards and not is_virtual(host, address):
            found[address] = _sighting(address, address, driver or "", None)
    return (*(found[address] for address in sorted(found, key=sort_key)), *others)


def is_virtual(host: HostFiles, address: str) -> bool:
    """Say whether a function is a virtual one, seen from the host of its PF."""
    return link_text(host, f"{PCI}/{address}/physfn") is not None


def _sighting(key: str, address: str | None, family: str, name: str | None) -> VendorDevice:
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor=family,
        bus_id=address,
        uuid=key,
        managed=address is not None,
        health=PENDING,
        facts=(("name", name),) if name else (),
    )
