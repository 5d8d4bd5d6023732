"""Finds NICs and the virtual functions that pods can use. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from agent.snapshot.device import VirtualFunction, VirtualFunctionGroup
from agent.snapshot.inventory import Problem
from agent.snapshot.pci import slot_of
from plugins.vendors.rdma.settings import PoolRule
from plugins.vendors.rdma.sysfs.classes import ClassKind, RdmaClass, primary_name
from plugins.vendors.rdma.sysfs.functions import DRIVERS, NETWORK, RdmaPciFunction, RdmaScan
from plugins.vendors.rdma.sysfs.values import show_guid

MAX_PROBLEMS = 16

_BOND = re.compile(r"mlx5_bond_[0-9]+")


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """A function with the RDMA device that stands for it."""

    function: RdmaPciFunction
    primary: RdmaClass
    others: tuple[str, ...] = ()  # further names: representors, switch management
    subfunctions: tuple[str, ...] = ()
    members: tuple[str, ...] = ()  # functions of the bond, itself first; empty: no bond


def bond_members(
    function: RdmaPciFunction, name: str, functions: Mapping[str, RdmaPciFunction]
) -> tuple[str, ...]:
    """Return the functions of a RoCE bond, itself first; empty if there is none.

    The bond's device sits on the first function; the others of the card have network devices
    but no RDMA device, and the same bond above them.
    """
    others = []
    for other in functions.values():
        alone = bool(other.netdevs) and not other.rdma and other.physfn is None
        if other == function or slot_of(other.address) != slot_of(function.address) or not alone:
            continue
        known = function.masters and other.masters
        shared = bool(function.masters & other.masters)
        if shared or (not known and _BOND.fullmatch(name)):
            others.append(other.address)
    if not others and not _BOND.fullmatch(name):
        return ()
    return (function.address, *others)


def nics_of(scan: RdmaScan) -> tuple[Nic, ...]:
    """Return the NICs that the class shows, in PCI order; a VF on its host is none."""
    found: list[Nic] = []
    for address, function in scan.functions.items():
        here = [item for item in scan.classes if item.origin.address == address]
        hardware = [item for item in here if item.origin.kind is ClassKind.HARDWARE]
        names = {item.name: item for item in hardware if item.is_nic}
        if not names or function.physfn is not None:
            continue
        chosen = primary_name(names)
        sub = (item.name for item in here if item.origin.kind is ClassKind.SUBFUNCTION)
        found.append(
            Nic(
                function=function,
                primary=names[chosen],
                others=tuple(sorted(item.name for item in hardware if item.name != chosen)),
                subfunctions=tuple(sorted(sub)),
                members=bond_members(function, chosen, scan.functions),
            )
        )
    return tuple(found)


def without_device(scan: RdmaScan, nics: Iterable[Nic]) -> tuple[RdmaPciFunction, ...]:
    """Return physical network functions bound to an RDMA driver that show no RDMA device.

    Of several functions in one bond it is the first: the device of the bond sat on it.
    """
    taken = {address for nic in nics for address in (nic.function.address, *nic.members)}
    found: list[RdmaPciFunction] = []
    for address, function in scan.functions.items():
        if address in taken or function.driver not in DRIVERS or function.rdma:
            continue
        if function.physfn is not None or (function.class_code or 0) >> 16 != NETWORK:
            continue
        before = (item for item in found if slot_of(item.address) == slot_of(address))
        if not any(item.masters & function.masters for item in before):
            found.append(function)
    return tuple(found)


class VirtualFunctions(msgspec.Struct, frozen=True, kw_only=True):
    """The virtual functions of one PF."""

    groups: tuple[VirtualFunctionGroup, ...] = ()
    enabled: int = 0  # links that the PF has
    usable: int = 0  # in a group
    strays: tuple[str, ...] = ()  # named by the PF, but absent or not pointing back


def is_usable(vf: RdmaPciFunction, *, exclusive: bool) -> bool:
    """Say whether a pod that gets the function finds an RDMA device.

    Where devices live in one namespace only, a function in use shows none here: its driver
    must do. One that is bound to vfio-pci or to nothing is somebody else's.
    """
    return bool(vf.rdma) or (exclusive and vf.driver in DRIVERS)


def _pool(
    pf: RdmaPciFunction, name: str, vf: RdmaPciFunction, index: int, pools: Sequence[PoolRule]
) -> int | None:
    for at, pool in enumerate(pools):
        listed = pool.indices is None or index in pool.indices
        driven = pool.driver is None or pool.driver == vf.driver
        if listed and driven and pool.pf.fits(pf.address, pf.root, name):
            return at
    return None


def virtual_functions(
    pf: RdmaPciFunction,
    name: str,
    functions: Mapping[str, RdmaPciFunction],
    pools: Sequence[PoolRule],
    *,
    exclusive: bool,
) -> VirtualFunctions:
    """Group the usable functions of a PF: pools in their order, then those without one.

    Numbers of a file decide nothing, the links do; gaps between them are legal.
    """
    found: dict[int | None, list[str]] = {at: [] for at in (*range(len(pools)), None)}
    strays: list[str] = []
    for index, address in pf.virtfns:
        vf = functions.get(address)
        if vf is None or not vf.is_present or vf.physfn != pf.address or address == pf.address:
            strays.append(address)
        elif is_usable(vf, exclusive=exclusive):
            found[_pool(pf, name, vf, index, pools)].append(address)
    groups = tuple(
        VirtualFunctionGroup(
            labels=() if at is None else pools[at].labels,
            # the scheduler takes the smallest text first
            vfs=tuple(VirtualFunction(bus_id=address) for address in sorted(set(addresses))),
        )
        for at, addresses in found.items()
        if addresses
    )
    usable = sum(len(group.vfs) for group in groups)
    return VirtualFunctions(
        groups=groups, enabled=len(pf.virtfns), usable=usable, strays=tuple(strays)
    )


class DeviceSource(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the class that is about to be described."""

    key: str
    item: RdmaClass
    netdevs: tuple[str, ...]  # below or beside it
    function: RdmaPciFunction | None = None
    bond: tuple[str, ...] = ()  # network devices of its bond
    vfs: VirtualFunctions = VirtualFunctions()

    @property
    def vf_counts(self) -> tuple[tuple[str, int], ...]:
        """Virtual functions by state, of a PF that can have some."""
        total = self.function.totalvfs if self.function else None
        if total is None:
            return ()
        return ("enabled", self.vfs.enabled), ("usable", self.vfs.usable), ("total", total)

    def info(self, netdevs: tuple[str, ...], link_layer: str | None) -> tuple[str, ...]:
        """Return the values of `INFO_LABELS`; what is not known is empty."""
        item = self.item
        driver = self.function.driver if self.function else item.soft_family
        guid = show_guid(item.node_guid or "")
        facts = (item.board_id, item.firmware, item.hca_type, guid, driver, link_layer)
        return (item.name, *(fact or "" for fact in facts), ",".join(netdevs))


def source_of(nic: Nic, vfs: VirtualFunctions, scan: RdmaScan) -> DeviceSource:
    """Collect what belongs to a NIC; a bond's network devices are those of all its functions."""
    bond = tuple(dev for member in nic.members for dev in scan.functions[member].netdevs)
    return DeviceSource(
        key=nic.function.address,
        item=nic.primary,
        netdevs=tuple(dict.fromkeys((*nic.function.netdevs, *bond))),
        function=nic.function,
        bond=bond,
        vfs=vfs,
    )


def _is_pf(vf: RdmaPciFunction, scan: RdmaScan) -> bool:
    """Say whether a virtual function's PF exists and is none itself."""
    pf = scan.functions.get(vf.physfn or "")
    return (
        vf.physfn in scan.bus_addresses
        and vf.physfn != vf.address
        and (pf is None or pf.physfn is None)
    )


def problems_of(scan: RdmaScan, strays: Sequence[str]) -> tuple[Problem, ...]:
    """Tell what is left out of the devices, and why; at most sixteen of each kind."""
    orphans = (
        function.address
        for function in scan.functions.values()
        if function.physfn is not None and not _is_pf(function, scan)
    )
    told = (
        ("RdmaNameRefused", "not a name of an RDMA device", map(ascii, scan.refused_names)),
        ("StrayVirtualFunction", "named by a PF but does not point back", strays),
        ("OrphanVirtualFunction", "a virtual function without a PF that could be one", orphans),
    )
    return tuple(
        Problem(reason=reason, message=f"{name[:80]}: {words}")
        for reason, words, names in told
        for name in islice(names, MAX_PROBLEMS)
    )
