"""Huawei's NPUs as sysfs shows them, without the driver's library."""

from __future__ import annotations

import msgspec

from agent.host.files import HostFiles, text
from agent.model.device import DeviceKind, Health, HealthState, VendorDevice
from plugins.functions import Function, linked, made_by
from plugins.vendors.ascend.identity import BY_PCI_DEVICE

VFIO = "vfio-pci"
MAKER = "huawei"
FAMILY_LABEL = "xpu-agent.io/family"
_PCI_VENDORS = (b"0x19e5",)
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
    functions = made_by(host, _PCI_VENDORS)
    return tuple(seen for f in functions if (seen := _npu(host, f)) is not None)


def _npu(host: HostFiles, function: Function) -> Sighting | None:
    folder = function.folder
    device = (text(host, f"{folder}/device", 64) or "").lower()
    if not _is_npu(text(host, f"{folder}/class", 64) or "", device):
        return None
    if linked(host, f"{folder}/physfn") is not None:
        return None  # a piece of a chip, which the chip itself lists
    driver = linked(host, f"{folder}/driver")
    number = device.removeprefix("0x")
    known = len(number) == 4 and all(digit in "0123456789abcdef" for digit in number)
    device_id = int(number, 16) if known else None
    return Sighting(bus_id=function.bus_id, device_id=device_id, driver=driver)


def _is_npu(class_code: str, device: str) -> bool:
    if not class_code.lower().startswith(_ACCELERATOR):
        return False
    return device not in _NOT_NPUS and not device.startswith(_NICS)


def device(seen: Sighting, reason: str = "NotYetAsked", message: str = "") -> VendorDevice:
    """Describe a function by what was seen of it; `reason` says why there is no more."""
    foreign = seen.driver == VFIO
    why = "BoundToVFIO" if foreign else reason
    known = reason in _NO_FAULTS or foreign
    # the library may tell it apart from its kin; until then the PCI id is the best sign
    family = BY_PCI_DEVICE.get(seen.device_id if seen.device_id is not None else -1)
    told = (("driver", seen.driver), ("family", family))
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
        labels=((FAMILY_LABEL, family),) if family else (),
        facts=tuple((key, value) for key, value in told if value),
    )
