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
    """A function with the RDMA device that represents it."""

    function: RdmaPciFunction
    primary: RdmaClass
    others: tuple[str, ...] = ()  # further names: representors, switch management
    subfunctions: tuple[str, ...] = ()
    members: tuple[str, ...] = ()  # functions of the bond, itself first; empty: no bond


def bond_members(
    function: RdmaPciFunction, name: str, functions: Mapping[str, RdmaPciFunction]
) -> tuple[str, ...]:
    """Return the functions of a RoCE bond, this one first; empty if there is none.

    The bond's device is at the first function; the others of the card have network devices but no
    RDMA device, and the same bond above them.
    """
    others = []
    for other in functions.values():
        is_bare = bool(other.netdevs) and not other.rdma and other.physfn is None
        if other == function or slot_of(other.address) != slot_of(function.address) or not is_bare:
            continue
        have_masters = function.masters and other.masters
        is_shared = bool(function.masters & other.masters)
        if is_shared or (not have_masters and _BOND.fullmatch(name)):
            others.append(other.address)
    if not others and not _BOND.fullmatch(name):
        return ()
    return (function.address, *others)


def nics_of(scan: RdmaScan) -> tuple[Nic, ...]:
    """Return the NICs in the class, in PCI order; virtual functions are not NICs of their own."""
    nics: list[Nic] = []
    for address, function in scan.functions.items():
        classes = [
            rdma_class for rdma_class in scan.classes if rdma_class.origin.address == address
        ]
        hardware = [
            rdma_class for rdma_class in classes if rdma_class.origin.kind is ClassKind.HARDWARE
        ]
        names = {rdma_class.name: rdma_class for rdma_class in hardware if rdma_class.is_nic}
        if not names or function.physfn is not None:
            continue
        primary = primary_name(names)
        subfunctions = (
            rdma_class.name
            for rdma_class in classes
            if rdma_class.origin.kind is ClassKind.SUBFUNCTION
        )
        nics.append(
            Nic(
                function=function,
                primary=names[primary],
                others=tuple(
                    sorted(rdma_class.name for rdma_class in hardware if rdma_class.name != primary)
                ),
                subfunctions=tuple(sorted(subfunctions)),
                members=bond_members(function, primary, scan.functions),
            )
        )
    return tuple(nics)


def without_device(scan: RdmaScan, nics: Iterable[Nic]) -> tuple[RdmaPciFunction, ...]:
    """Return physical network functions that are bound to an RDMA driver and have no RDMA device.

    Of the functions of one bond only the first is returned: it had the bond's device.
    """
    taken = {address for nic in nics for address in (nic.function.address, *nic.members)}
    functions: list[RdmaPciFunction] = []
    for address, function in scan.functions.items():
        if address in taken or function.driver not in DRIVERS or function.rdma:
            continue
        if function.physfn is not None or (function.class_code or 0) >> 16 != NETWORK:
            continue
        earlier = (other for other in functions if slot_of(other.address) == slot_of(address))
        if not any(other.masters & function.masters for other in earlier):
            functions.append(function)
    return tuple(functions)


class VirtualFunctions(msgspec.Struct, frozen=True, kw_only=True):
    """The virtual functions of one PF."""

    groups: tuple[VirtualFunctionGroup, ...] = ()
    enabled: int = 0  # links that the PF has
    usable: int = 0  # in a group
    strays: tuple[str, ...] = ()  # named by the PF, but absent or not pointing back


def is_usable(vf: RdmaPciFunction, *, exclusive: bool) -> bool:
    """Return whether a pod that gets the function has an RDMA device.

    Where devices belong to one network namespace only, the device of a function in use is not
    visible here; then its driver decides. A function without a driver, or with vfio-pci, is not
    usable.
    """
    return bool(vf.rdma) or (exclusive and vf.driver in DRIVERS)


def _pool(
    pf: RdmaPciFunction, name: str, vf: RdmaPciFunction, index: int, pools: Sequence[PoolRule]
) -> int | None:
    for position, pool in enumerate(pools):
        has_index = pool.indices is None or index in pool.indices
        has_driver = pool.driver is None or pool.driver == vf.driver
        if has_index and has_driver and pool.pf.fits(pf.address, pf.root, name):
            return position
    return None


def virtual_functions(
    pf: RdmaPciFunction,
    name: str,
    functions: Mapping[str, RdmaPciFunction],
    pools: Sequence[PoolRule],
    *,
    exclusive: bool,
) -> VirtualFunctions:
    """Return the usable functions of a PF by pool, in the order of the pools; others come last.

    The links `virtfnN` decide, not `sriov_numvfs`; their numbers may have gaps.
    """
    addresses_by_pool: dict[int | None, list[str]] = {
        position: [] for position in (*range(len(pools)), None)
    }
    strays: list[str] = []
    for index, address in pf.virtfns:
        vf = functions.get(address)
        if vf is None or not vf.is_present or vf.physfn != pf.address or address == pf.address:
            strays.append(address)
        elif is_usable(vf, exclusive=exclusive):
            addresses_by_pool[_pool(pf, name, vf, index, pools)].append(address)
    groups = tuple(
        VirtualFunctionGroup(
            labels=() if position is None else pools[position].labels,
            # the scheduler takes the smallest text first
            vfs=tuple(VirtualFunction(bus_id=address) for address in sorted(set(addresses))),
        )
        for position, addresses in addresses_by_pool.items()
        if addresses
    )
    usable = sum(len(group.vfs) for group in groups)
    return VirtualFunctions(
        groups=groups, enabled=len(pf.virtfns), usable=usable, strays=tuple(strays)
    )


class DeviceSource(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of an RDMA device's description."""

    key: str
    item: RdmaClass
    netdevs: tuple[str, ...]  # below or beside it
    function: RdmaPciFunction | None = None
    bond: tuple[str, ...] = ()  # network devices of its bond
    vfs: VirtualFunctions = VirtualFunctions()

    @property
    def vf_counts(self) -> tuple[tuple[str, int], ...]:
        """Return the virtual functions by state, for a PF that can have some."""
        total = self.function.totalvfs if self.function else None
        if total is None:
            return ()
        return ("enabled", self.vfs.enabled), ("usable", self.vfs.usable), ("total", total)

    def info(self, netdevs: tuple[str, ...], link_layer: str | None) -> tuple[str, ...]:
        """Return the values of `INFO_LABELS`; unknown ones are empty."""
        rdma_class = self.item
        driver = self.function.driver if self.function else rdma_class.soft_family
        guid = show_guid(rdma_class.node_guid or "")
        facts = (
            rdma_class.board_id,
            rdma_class.firmware,
            rdma_class.hca_type,
            guid,
            driver,
            link_layer,
        )
        return (rdma_class.name, *(fact or "" for fact in facts), ",".join(netdevs))


def source_of(nic: Nic, vfs: VirtualFunctions, scan: RdmaScan) -> DeviceSource:
    """Return the inputs for a NIC.

    Those of a bond have the network devices of all its functions.
    """
    bond_netdevs = tuple(dev for member in nic.members for dev in scan.functions[member].netdevs)
    return DeviceSource(
        key=nic.function.address,
        item=nic.primary,
        netdevs=tuple(dict.fromkeys((*nic.function.netdevs, *bond_netdevs))),
        function=nic.function,
        bond=bond_netdevs,
        vfs=vfs,
    )


def _is_pf(vf: RdmaPciFunction, scan: RdmaScan) -> bool:
    """Return whether a virtual function has a PF that is not a virtual function itself."""
    pf = scan.functions.get(vf.physfn or "")
    return (
        vf.physfn in scan.bus_addresses
        and vf.physfn != vf.address
        and (pf is None or pf.physfn is None)
    )


def problems_of(scan: RdmaScan, strays: Sequence[str]) -> tuple[Problem, ...]:
    """Return a problem for each function or name that is left out; at most sixteen of each kind."""
    orphans = (
        function.address
        for function in scan.functions.values()
        if function.physfn is not None and not _is_pf(function, scan)
    )
    kinds = (
        ("RdmaNameRefused", "not a name of an RDMA device", map(ascii, scan.refused_names)),
        ("StrayVirtualFunction", "named by a PF but does not point back", strays),
        ("OrphanVirtualFunction", "a virtual function without a PF that could be one", orphans),
    )
    return tuple(
        Problem(reason=reason, message=f"{name[:80]}: {explanation}")
        for reason, explanation, names in kinds
        for name in islice(names, MAX_PROBLEMS)
    )
