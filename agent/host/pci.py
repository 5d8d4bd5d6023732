"""Reads PCI functions from links and attributes in sysfs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError, ParseError
from agent.host.files import list_entries, read_text
from agent.snapshot.cpu import CpuSet
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pci import (
    PciFunction,
    PciLink,
    PciPath,
    PciTree,
    address_sort_key,
    parse_address,
    parse_device_link,
)
from agent.topology.pci_config import CONFIG_BYTES, PciConfig, parse_config
from agent.topology.pcie_link import parse_speed, parse_width
from agent.wire_formats.kernel_text import parse_cpu_list, parse_cpu_mask, parse_hex_id, parse_int

DEVICES = "/sys/bus/pci/devices"
_BRIDGE = 0x0604
_DEVICES = frozenset((0x02, 0x03, 0x0B, 0x12))  # network, display, processor, accelerator

# storage and encryption devices have virtual functions as well
_MANY_FUNCTIONS = frozenset((0x01, 0x10))
_BROADCOM = 0x1000  # its switches are identified by subsystem
_GONE_IDS = frozenset((0x0000, 0xFFFF))  # values of a function that is no longer on the bus
_MAX_NODE = 65535
_MAX_GROUP = (1 << 31) - 1
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})")
T = TypeVar("T")


def read_function(host: HostFiles, name: str, address: str) -> tuple[PciFunction | None, bool]:
    """Return the function, and whether its link text was valid.

    `None` means that the function was removed meanwhile. Facts that are not used are not read: of
    bridges the driver and the IOMMU group; of virtual functions the link, the local CPUs and the
    configuration space, which are those of the physical function; of other classes than bridges,
    network, display, processor and accelerator everything but place, class, ids and NUMA node
    (local CPUs if that is unknown), and the virtual functions of storage and encryption. The
    configuration space of a sleeping device (D3cold) is not read: the read would wake it.
    """
    at = f"{DEVICES}/{name}"
    link = read_link(host, at)
    path, is_link_valid = _path(link, name)
    class_code = _hex(host, f"{at}/class", 6)
    vendor_id = _hex(host, f"{at}/vendor", 4)
    node = _parse_or_none(read_text(host, f"{at}/numa_node"), _node)
    is_bridge = class_code is not None and class_code >> 8 == _BRIDGE
    is_device = class_code is None or class_code >> 16 in _DEVICES
    physfn = None if is_bridge else _address_of(host, f"{at}/physfn")
    reads_cpus = physfn is None and (is_device or node is None or node < 0)
    function = PciFunction(
        address=address,
        root=path.root,
        bridges=path.bridges,
        outer_bridges=path.outer_bridges,
        class_code=class_code,
        vendor_id=vendor_id,
        device_id=_hex(host, f"{at}/device", 4),
        numa_node=node,
        local_cpus=_local_cpus(host, at) if reads_cpus else None,
        physfn=physfn,
        driver=_last_part(host, f"{at}/driver") if is_device else None,
        iommu_group=_parse_or_none(_last_part(host, f"{at}/iommu_group"), _group)
        if is_device
        else None,
        gone=vendor_id in _GONE_IDS,
    )
    if (class_code is None or vendor_id is None or node is None) and not _exists(host, at, link):
        return None, is_link_valid
    return _read_details(host, at, function), is_link_valid


def _read_details(host: HostFiles, at: str, function: PciFunction) -> PciFunction:
    """Add the facts that only physical functions of some classes have."""
    if function.gone or function.physfn is not None:
        return function
    base = function.base_class
    if base == _BRIDGE:
        return _read_bridge(host, at, function)
    if base is None or base >> 8 in _DEVICES:
        return _read_device(host, at, function)
    return _read_virtual_functions(host, at, function) if base >> 8 in _MANY_FUNCTIONS else function


def read_link(host: HostFiles, path: str) -> str | None:
    """Return a link's text; `None` if it is not a link or cannot be read."""
    try:
        return host.link(path)
    except HostFileError:
        return None


def _path(link: str | None, name: str) -> tuple[PciPath, bool]:
    if link is None:
        return PciPath(), True  # a directory: the PCI path is unknown
    try:
        return parse_device_link(link, name), True
    except ParseError:
        return PciPath(), False


def _exists(host: HostFiles, at: str, link: str | None) -> bool:
    # a recorded link may have no target and still be the function's; a removed function has no link
    return read_link(host, at) is not None if link is not None else host.exists(at)


def _parse_or_none(raw: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        return None if raw is None else parse(raw)
    except ParseError:
        return None


def _node(raw: str) -> int:
    return parse_int(raw, -1, _MAX_NODE)


def _group(raw: str) -> int:
    return parse_int(raw, 0, _MAX_GROUP)


def _hex(host: HostFiles, path: str, digits: int) -> int | None:
    return _parse_or_none(read_text(host, path), lambda raw: parse_hex_id(raw, digits))


def _local_cpus(host: HostFiles, at: str) -> CpuSet | None:
    mask = read_text(host, f"{at}/local_cpus")
    if mask is not None:
        return _parse_or_none(mask, parse_cpu_mask)
    return _parse_or_none(read_text(host, f"{at}/local_cpulist"), parse_cpu_list)


def _last_part(host: HostFiles, path: str) -> str | None:
    link = read_link(host, path)
    return link.rstrip("/").rpartition("/")[2] if link else None


def _address_of(host: HostFiles, path: str) -> str | None:
    return _parse_or_none(_last_part(host, path), parse_address)


def _read_link_speed(host: HostFiles, at: str) -> PciLink:
    return PciLink(
        speed=parse_speed(read_text(host, f"{at}/current_link_speed")),
        width=parse_width(read_text(host, f"{at}/current_link_width")),
        max_speed=parse_speed(read_text(host, f"{at}/max_link_speed")),
        max_width=parse_width(read_text(host, f"{at}/max_link_width")),
    )


def _read_config(host: HostFiles, at: str) -> PciConfig:
    try:
        return parse_config(host.read(f"{at}/config", CONFIG_BYTES))
    except HostFileError:
        return PciConfig()


def _read_bridge(host: HostFiles, at: str, function: PciFunction) -> PciFunction:
    config = _read_config(host, at)
    has_subsystem = function.vendor_id == _BROADCOM
    return replace(
        function,
        link=_read_link_speed(host, at),
        port_type=config.port_type,
        acs_control=config.acs_control,
        ats_enabled=config.ats_enabled,
        subsystem_vendor_id=_hex(host, f"{at}/subsystem_vendor", 4) if has_subsystem else None,
        subsystem_device_id=_hex(host, f"{at}/subsystem_device", 4) if has_subsystem else None,
    )


def _read_device(host: HostFiles, at: str, function: PciFunction) -> PciFunction:
    power_state = read_text(host, f"{at}/power_state")
    config = _read_config(host, at) if power_state != "D3cold" else PciConfig()
    function = replace(
        function,
        link=_read_link_speed(host, at),
        power_state=power_state,
        port_type=config.port_type,
        acs_control=config.acs_control,
        ats_enabled=config.ats_enabled,
        subsystem_vendor_id=_hex(host, f"{at}/subsystem_vendor", 4),
        subsystem_device_id=_hex(host, f"{at}/subsystem_device", 4),
        revision=_hex(host, f"{at}/revision", 2),
    )
    return _read_virtual_functions(host, at, function)


def _read_virtual_functions(host: HostFiles, at: str, function: PciFunction) -> PciFunction:
    """Add SR-IOV facts; the links determine the functions, `sriov_numvfs` is only shown."""
    addresses: dict[int, str] = {}
    for name in list_entries(host, at):
        match = _VIRTFN.fullmatch(name)
        address = _address_of(host, f"{at}/{name}") if match else None
        if match and address is not None:
            addresses.setdefault(int(match[1]), address)
    total = _read_count(host, f"{at}/sriov_totalvfs")
    enabled = _read_count(host, f"{at}/sriov_numvfs") if total is not None or addresses else None
    return replace(
        function,
        virtfns=tuple(addresses[index] for index in sorted(addresses)),
        sriov_totalvfs=total,
        sriov_numvfs=enabled,
    )


def _read_count(host: HostFiles, path: str) -> int | None:
    return _parse_or_none(read_text(host, path), lambda raw: parse_int(raw, 0, 65535))


SWITCH_LINKS = "/sys/kernel/pci_switch_link/virtual_switch_links"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
MAX_FUNCTIONS = 8192


class _PciWarnings(msgspec.Struct):
    """Counts warnings, so that each kind gives one line."""

    counts: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)

    def add(self, kind: str, subject: str) -> None:
        first, count = self.counts.get(kind, (subject, 0))
        self.counts[kind] = (first, count + 1)

    def lines(self) -> tuple[str, ...]:
        return tuple(
            f"{kind}: {first}" + (f" and {count - 1} more" if count > 1 else "")
            for kind, (first, count) in sorted(self.counts.items())
        )


def read_pci(host: HostFiles) -> PciTree:
    """Read the PCI functions of a host; unreadable facts are absent or `None`, never an error.

    At most the first 8192 functions by name. `read_function` lists the facts of each class. Links
    are parsed as text, so a recorded tree need not contain their targets.
    """
    warnings = _PciWarnings()
    entries, skipped = _list_functions(host, warnings)
    functions: dict[str, PciFunction] = {}
    for address in sorted(entries, key=address_sort_key):
        function, is_link_valid = read_function(host, entries[address], address)
        if not is_link_valid:
            warnings.add("pci_link_mismatch", address)
        if function is None:
            warnings.add("pci_vanished", address)
        else:
            functions[address] = function
    functions = _relate_virtual_functions(functions, warnings)
    return PciTree(
        functions=MappingProxyType(functions),
        switch_links=_switch_links(host),
        iommu_types=_iommu_types(host, functions.values()),
        skipped=skipped,
        warnings=warnings.lines(),
    )


def _list_functions(host: HostFiles, warnings: _PciWarnings) -> tuple[dict[str, str], int]:
    """Return entry names by address, and the number of entries that are not PCI addresses."""
    try:
        names = host.names(DEVICES)
    except HostFileError as error:
        warnings.add("pci_unreadable", str(error))
        return {}, 0
    addresses: dict[str, str] = {}
    skipped = 0
    if len(names) >= MAX_FUNCTIONS:
        warnings.add("pci_limit", f"{MAX_FUNCTIONS} or more entries, the rest is left out")
    for name in names[:MAX_FUNCTIONS]:
        try:
            addresses.setdefault(parse_address(name), name)
        except ParseError:
            skipped += 1
    return addresses, skipped


def _relate_virtual_functions(
    functions: Mapping[str, PciFunction], warnings: _PciWarnings
) -> dict[str, PciFunction]:
    """Make both ends of SR-IOV consistent: a virtual function has one physical one, the first.

    A `virtfn` link counts if its target exists and has no virtual functions itself. A function with
    a `physfn` that does not list it is an orphan.
    """
    owners: dict[str, str] = {}
    related: dict[str, PciFunction] = {}
    for function in functions.values():
        virtual_functions = []
        for address in function.virtfns if function.physfn is None else ():
            target = functions.get(address)
            if target is None or target is function or target.virtfns:
                warnings.add("pci_bad_virtfn", f"{function.address} names {address}")
            elif owners.setdefault(address, function.address) != function.address:
                warnings.add("pci_vf_claimed_twice", address)
            elif address not in virtual_functions:
                virtual_functions.append(address)
        is_unchanged = tuple(virtual_functions) == function.virtfns
        related[function.address] = (
            function if is_unchanged else replace(function, virtfns=tuple(virtual_functions))
        )
    for address, owner in owners.items():
        if related[address].physfn != owner:
            related[address] = replace(related[address], physfn=owner)
    tree = PciTree(functions=related)
    for function in related.values():
        if tree.is_orphan(function):
            warnings.add("pci_orphan_vf", f"{function.address} of {function.physfn}")
    return related


def _switch_links(host: HostFiles) -> frozenset[tuple[str, str]]:
    """Return the pairs of switches that are cabled to each other, smaller address first."""
    pairs: set[tuple[str, str]] = set()
    for name in list_entries(host, SWITCH_LINKS):
        for peer in list_entries(host, f"{SWITCH_LINKS}/{name}"):
            try:
                a, b = sorted((parse_address(name), parse_address(peer)), key=address_sort_key)
            except ParseError:
                continue
            pairs.add((a, b))
    return frozenset(pairs)


def _iommu_types(host: HostFiles, functions: Iterable[PciFunction]) -> tuple[tuple[int, str], ...]:
    """Return the type of the IOMMU groups of physical devices."""
    groups = {f.iommu_group for f in functions if f.iommu_group is not None and f.physfn is None}
    types = ((group, read_text(host, f"{IOMMU_GROUPS}/{group}/type")) for group in sorted(groups))
    return tuple((group, kind) for group, kind in types if kind is not None)
