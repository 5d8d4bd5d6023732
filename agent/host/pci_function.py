"""One PCI function from sysfs: as few files as its class leaves to ask."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from agent.errors import HostFileError, ParseError
from agent.host.attributes import entries
from agent.host.files import HostFiles, text
from agent.topology.address import PciPath, parse_address, split_link
from agent.topology.cpu import CpuSet
from agent.topology.link import parse_speed, parse_width
from agent.topology.pci import PciFunction, PciLink
from agent.topology.pci_config import WHOLE, ConfigFacts, read_config
from agent.topology.text import parse_cpu_list, parse_cpu_mask, parse_hex_id, parse_int

DEVICES = "/sys/bus/pci/devices"

_BRIDGE = 0x0604
_DEVICES = frozenset((0x02, 0x03, 0x0B, 0x12))  # network, display, processor, accelerator
_MANY_FUNCTIONS = frozenset((0x01, 0x10))  # storage and encryption have virtual functions, too
_BROADCOM = 0x1000  # the one maker whose switches are told apart by subsystem
_GONE = frozenset((0x0000, 0xFFFF))  # what a function that fell off the bus answers
_MAX_NODE = 65535
_MAX_GROUP = (1 << 31) - 1
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})")

T = TypeVar("T")


def read_function(host: HostFiles, name: str, address: str) -> tuple[PciFunction | None, bool]:
    """Return the function, and whether its link text could be believed.

    `None` is a function that vanished while it was read. Not asked, because nobody uses it:
    of bridges the driver and the IOMMU group; of virtual functions the link, the local CPUs
    and the configuration space, which are those of the physical one; of neither bridges nor
    network, display, processor or accelerator functions everything but place, class, ids and
    memory node (local CPUs if that is unknown), and the virtual functions of storage and
    encryption. The configuration space of a sleeping device (D3cold) is left alone: reading
    it would wake it.
    """
    at = f"{DEVICES}/{name}"
    link = link_text(host, at)
    path, believed = _path(link, name)
    class_code = _hex(host, f"{at}/class", 6)
    vendor_id = _hex(host, f"{at}/vendor", 4)
    node = _value(text(host, f"{at}/numa_node"), _node)
    is_bridge = class_code is not None and class_code >> 8 == _BRIDGE
    is_device = class_code is None or class_code >> 16 in _DEVICES
    physfn = None if is_bridge else _address_of(host, f"{at}/physfn")
    asks_cpus = physfn is None and (is_device or node is None or node < 0)
    function = PciFunction(
        address=address,
        root=path.root,
        bridges=path.bridges,
        outer_bridges=path.outer_bridges,
        class_code=class_code,
        vendor_id=vendor_id,
        device_id=_hex(host, f"{at}/device", 4),
        numa_node=node,
        local_cpus=_local_cpus(host, at) if asks_cpus else None,
        physfn=physfn,
        driver=_last_part(host, f"{at}/driver") if is_device else None,
        iommu_group=_value(_last_part(host, f"{at}/iommu_group"), _group) if is_device else None,
        gone=vendor_id in _GONE,
    )
    if (class_code is None or vendor_id is None or node is None) and not _still_there(
        host, at, link
    ):
        return None, believed
    return _completed(host, at, function), believed


def _completed(host: HostFiles, at: str, function: PciFunction) -> PciFunction:
    """Add what only physical functions of some classes are asked."""
    if function.gone or function.physfn is not None:
        return function
    base = function.base_class
    if base == _BRIDGE:
        return _bridge(host, at, function)
    if base is None or base >> 8 in _DEVICES:
        return _device(host, at, function)
    return _with_virtual(host, at, function) if base >> 8 in _MANY_FUNCTIONS else function


def link_text(host: HostFiles, path: str) -> str | None:
    """Return a link's text; `None` for what is no link or cannot be read."""
    try:
        return host.link(path)
    except HostFileError:
        return None


def _path(link: str | None, name: str) -> tuple[PciPath, bool]:
    if link is None:
        return PciPath(), True  # a directory: the tree is known to nobody
    try:
        return split_link(link, name), True
    except ParseError:
        return PciPath(), False


def _still_there(host: HostFiles, at: str, link: str | None) -> bool:
    # a recorded link may lead nowhere and still be the function's; a vanished one is no more
    return link_text(host, at) is not None if link is not None else host.exists(at)


def _value(raw: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        return None if raw is None else parse(raw)
    except ParseError:
        return None


def _node(raw: str) -> int:
    return parse_int(raw, -1, _MAX_NODE)


def _group(raw: str) -> int:
    return parse_int(raw, 0, _MAX_GROUP)


def _hex(host: HostFiles, path: str, digits: int) -> int | None:
    return _value(text(host, path), lambda raw: parse_hex_id(raw, digits))


def _local_cpus(host: HostFiles, at: str) -> CpuSet | None:
    mask = text(host, f"{at}/local_cpus")
    if mask is not None:
        return _value(mask, parse_cpu_mask)
    return _value(text(host, f"{at}/local_cpulist"), parse_cpu_list)


def _last_part(host: HostFiles, path: str) -> str | None:
    link = link_text(host, path)
    return link.rstrip("/").rpartition("/")[2] if link else None


def _address_of(host: HostFiles, path: str) -> str | None:
    return _value(_last_part(host, path), parse_address)


def _link(host: HostFiles, at: str) -> PciLink:
    return PciLink(
        speed=parse_speed(text(host, f"{at}/current_link_speed")),
        width=parse_width(text(host, f"{at}/current_link_width")),
        max_speed=parse_speed(text(host, f"{at}/max_link_speed")),
        max_width=parse_width(text(host, f"{at}/max_link_width")),
    )


def _config(host: HostFiles, at: str) -> ConfigFacts:
    try:
        return read_config(host.read(f"{at}/config", WHOLE))
    except HostFileError:
        return ConfigFacts()


def _bridge(host: HostFiles, at: str, function: PciFunction) -> PciFunction:
    config = _config(host, at)
    told_apart = function.vendor_id == _BROADCOM
    return replace(
        function,
        link=_link(host, at),
        port_type=config.port_type,
        acs_control=config.acs_control,
        ats_enabled=config.ats_enabled,
        subsystem_vendor_id=_hex(host, f"{at}/subsystem_vendor", 4) if told_apart else None,
        subsystem_device_id=_hex(host, f"{at}/subsystem_device", 4) if told_apart else None,
    )


def _device(host: HostFiles, at: str, function: PciFunction) -> PciFunction:
    power_state = text(host, f"{at}/power_state")
    config = _config(host, at) if power_state != "D3cold" else ConfigFacts()
    function = replace(
        function,
        link=_link(host, at),
        power_state=power_state,
        port_type=config.port_type,
        acs_control=config.acs_control,
        ats_enabled=config.ats_enabled,
        subsystem_vendor_id=_hex(host, f"{at}/subsystem_vendor", 4),
        subsystem_device_id=_hex(host, f"{at}/subsystem_device", 4),
        revision=_hex(host, f"{at}/revision", 2),
    )
    return _with_virtual(host, at, function)


def _with_virtual(host: HostFiles, at: str, function: PciFunction) -> PciFunction:
    """Add what SR-IOV says; the links count, `sriov_numvfs` is only a fact."""
    found: dict[int, str] = {}
    for name in entries(host, at):
        match = _VIRTFN.fullmatch(name)
        address = _address_of(host, f"{at}/{name}") if match else None
        if match and address is not None:
            found.setdefault(int(match[1]), address)
    total = _count(host, f"{at}/sriov_totalvfs")
    enabled = _count(host, f"{at}/sriov_numvfs") if total is not None or found else None
    return replace(
        function,
        virtfns=tuple(found[index] for index in sorted(found)),
        sriov_totalvfs=total,
        sriov_numvfs=enabled,
    )


def _count(host: HostFiles, path: str) -> int | None:
    return _value(text(host, path), lambda raw: parse_int(raw, 0, 65535))
