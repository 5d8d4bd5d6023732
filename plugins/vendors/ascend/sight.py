"""Huawei's NPUs as sysfs shows them, without the driver's library."""

from __future__ import annotations

import msgspec

from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles, link_name, text
from agent.model.device import DeviceKind, Health, HealthState, VendorDevice
from agent.topology.address import parse_address, sort_key

DEVICES = "/sys/bus/pci/devices"
MAX_FUNCTIONS = 8192
VFIO = "vfio-pci"
MAKER = "huawei"
_ID = 6  # bytes of 0x19e5
_ACCELERATOR = "0x1200"
_NOT_NPUS = ("0x1710", "0x1711")  # management controllers
_NICS = "0xa22"

MESSAGES: dict[str, str] = {
    "NotYetAsked": "seen in sysfs; the driver's library has not answered yet",
    "NoRecordedAnswers": "the recording holds no answers of the driver's library",
    "BoundToVFIO": "bound to vfio-pci: a virtual machine's chip",
    "DriverError": "the driver does not list this function among its chips",
}
_NO_FAULTS = ("NotYetAsked", "NoRecordedAnswers", "UnsupportedGeneration")


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One NPU."""

    bus_id: str
    device_id: int | None
    driver: str | None


def look(host: HostFiles) -> tuple[Sighting, ...]:
    """Return the functions in the order of their addresses; unreadable ones are left out."""
    try:
        names = host.names(DEVICES)[:MAX_FUNCTIONS]
    except HostFileError:
        return ()
    found = [seen for name in names if (seen := _function(host, name)) is not None]
    return tuple(sorted(found, key=lambda seen: sort_key(seen.bus_id)))


def _function(host: HostFiles, name: str) -> Sighting | None:
    folder = f"{DEVICES}/{name}"
    try:
        # the machine may have thousands of functions: one short read decides for most
        if host.read(f"{folder}/vendor", _ID).lower() != b"0x19e5":
            return None
        bus_id = parse_address(name)
    except (HostFileError, ParseError):
        return None
    device = (text(host, f"{folder}/device", 64) or "").lower()
    if not _is_npu(text(host, f"{folder}/class", 64) or "", device):
        return None
    if _link(host, f"{folder}/physfn") is not None:
        return None  # a piece of a chip, which the chip itself lists
    driver = _link(host, f"{folder}/driver")
    number = device.removeprefix("0x")
    known = len(number) == 4 and all(digit in "0123456789abcdef" for digit in number)
    return Sighting(bus_id=bus_id, device_id=int(number, 16) if known else None, driver=driver)


def _is_npu(class_code: str, device: str) -> bool:
    if not class_code.lower().startswith(_ACCELERATOR):
        return False
    return device not in _NOT_NPUS and not device.startswith(_NICS)


def _link(host: HostFiles, path: str) -> str | None:
    try:
        return link_name(host, path)
    except HostFileError:
        return None


def device(seen: Sighting, reason: str = "NotYetAsked", message: str = "") -> VendorDevice:
    """Describe a function by what was seen of it; `reason` says why there is no more."""
    foreign = seen.driver == VFIO
    why = "BoundToVFIO" if foreign else reason
    known = reason in _NO_FAULTS or foreign
    return VendorDevice(
        kind=DeviceKind.NPU,
        vendor=MAKER,
        bus_id=seen.bus_id,
        managed=not foreign,
        health=Health(
            # without its driver a chip does nothing
            state=HealthState.SUSPECT if known else HealthState.FAILED,
            reason=why,
            message=message if message and not foreign else MESSAGES.get(why, why),
        ),
        facts=(("driver", seen.driver),) if seen.driver else (),
    )
