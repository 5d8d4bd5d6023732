"""Reads accelerators without a plug-in from sysfs."""

from __future__ import annotations

import msgspec

from agent.errors import ParseError
from agent.host.files import read_text
from agent.snapshot.device import DeviceKind, Health, HealthState, Pairs, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.wire_formats.kernel_text import parse_hex_id
from plugins.shared.pci_functions import SysfsFunction, find_functions, link_target_name
from plugins.vendors.accelerators.makers import FPGA, MAKERS, Maker, maker_of

VFIO = "vfio-pci"
_WANTED = frozenset(
    f"0x{number:04x}".encode() for number, m in MAKERS.items() if not m.has_vendor_plugin
)

_UNMANAGED = Health(
    reason="NoVendorPlugin",
    message="known by its PCI identity only: device-info files or settings can describe it",
)
_FPGA = Health(reason="NoVendorPlugin", message="what an FPGA does is known to its user only")
_VFIO = Health(
    state=HealthState.SUSPECT,
    reason="BoundToVFIO",
    message="bound to vfio-pci: a virtual machine's device",
)


class AcceleratorFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator."""

    bus_id: str
    maker: Maker
    vendor_id: int
    device_id: int | None
    driver: str | None


def find_accelerators(host: HostFiles) -> tuple[AcceleratorFunction, ...]:
    """Return the functions in the order of their addresses; unreadable ones are left out."""
    functions = find_functions(host, _WANTED)
    return tuple(
        accelerator
        for function in functions
        if (accelerator := _accelerator(host, function)) is not None
    )


def _accelerator(host: HostFiles, function: SysfsFunction) -> AcceleratorFunction | None:
    folder = function.folder
    vendor_id, device_id = int(function.vendor_id, 16), _hex(host, f"{folder}/device", 4)
    virtual = link_target_name(host, f"{folder}/physfn") is not None
    maker = maker_of(vendor_id, device_id, _hex(host, f"{folder}/class", 6), virtual=virtual)
    if maker is None:
        return None
    return AcceleratorFunction(
        bus_id=function.bus_id,
        maker=maker,
        vendor_id=vendor_id,
        device_id=device_id,
        driver=link_target_name(host, f"{folder}/driver"),
    )


def _hex(host: HostFiles, path: str, digits: int) -> int | None:
    try:
        return parse_hex_id(read_text(host, path, 64) or "", digits)
    except ParseError:
        return None


def describe_unmanaged(function: AcceleratorFunction, model: str | None = None) -> VendorDevice:
    """Describe a function that is listed only: it cannot be allocated."""
    known_model = (
        function.maker.models.get(function.device_id) if function.device_id is not None else None
    )
    health = _FPGA if function.maker.role == FPGA else _UNMANAGED
    return VendorDevice(
        kind=DeviceKind.XPU,
        vendor=function.maker.label,
        bus_id=function.bus_id,
        uuid=f"{function.maker.label}-{function.bus_id}",
        model=model or known_model or None,
        managed=False,
        health=_VFIO if function.driver == VFIO else health,
        facts=_facts(function),
    )


def _facts(function: AcceleratorFunction) -> Pairs:
    device = "????" if function.device_id is None else f"{function.device_id:04x}"
    facts = {
        "pci_id": f"{function.vendor_id:04x}:{device}",
        "driver": function.driver,
        "role": function.maker.role if function.maker.role == FPGA else None,
    }
    return tuple((name, value) for name, value in facts.items() if value)
