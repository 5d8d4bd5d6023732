"""PCI functions that are accelerators without a plug-in of ours, read from sysfs."""

from __future__ import annotations

import msgspec

from agent.errors import ParseError
from agent.host.files import HostFiles, text
from agent.model.device import DeviceKind, Health, HealthState, Pairs, VendorDevice
from agent.topology.text import parse_hex_id
from plugins.functions import Function, linked, made_by
from plugins.vendors.accelerators.makers import FPGA, MAKERS, Maker, maker_of

VFIO = "vfio-pci"
_WANTED = frozenset(f"0x{number:04x}".encode() for number, m in MAKERS.items() if not m.driven)

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


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator."""

    bus_id: str
    maker: Maker
    vendor_id: int
    device_id: int | None
    driver: str | None


def look(host: HostFiles) -> tuple[Sighting, ...]:
    """Return the functions in the order of their addresses; unreadable ones are left out."""
    functions = made_by(host, _WANTED)
    return tuple(seen for f in functions if (seen := _accelerator(host, f)) is not None)


def _accelerator(host: HostFiles, function: Function) -> Sighting | None:
    folder = function.folder
    vendor_id, device_id = int(function.maker, 16), _hex(host, f"{folder}/device", 4)
    virtual = linked(host, f"{folder}/physfn") is not None
    maker = maker_of(vendor_id, device_id, _hex(host, f"{folder}/class", 6), virtual=virtual)
    if maker is None:
        return None
    return Sighting(
        bus_id=function.bus_id,
        maker=maker,
        vendor_id=vendor_id,
        device_id=device_id,
        driver=linked(host, f"{folder}/driver"),
    )


def _hex(host: HostFiles, path: str, digits: int) -> int | None:
    try:
        return parse_hex_id(text(host, path, 64) or "", digits)
    except ParseError:
        return None


def unmanaged(seen: Sighting, model: str | None = None) -> VendorDevice:
    """Describe a function that is listed, and granted to nobody."""
    own = seen.maker.models.get(seen.device_id) if seen.device_id is not None else None
    health = _FPGA if seen.maker.role == FPGA else _UNMANAGED
    return VendorDevice(
        kind=DeviceKind.XPU,
        vendor=seen.maker.label,
        bus_id=seen.bus_id,
        uuid=f"{seen.maker.label}-{seen.bus_id}",
        model=model or own or None,
        managed=False,
        health=_VFIO if seen.driver == VFIO else health,
        facts=_facts(seen),
    )


def _facts(seen: Sighting) -> Pairs:
    device = "????" if seen.device_id is None else f"{seen.device_id:04x}"
    facts = {
        "pci_id": f"{seen.vendor_id:04x}:{device}",
        "driver": seen.driver,
        "role": seen.maker.role if seen.maker.role == FPGA else None,
    }
    return tuple((name, value) for name, value in facts.items() if value)
