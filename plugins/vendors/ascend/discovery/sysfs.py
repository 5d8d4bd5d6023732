"""Reads Huawei's NPUs from sysfs, without the driver's library."""

from __future__ import annotations

import msgspec

from agent.host.files import read_text
from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from plugins.shared.pci_functions import SysfsFunction, find_functions, link_target_name
from plugins.vendors.ascend.discovery.models import BY_PCI_DEVICE

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


class AscendFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The PCI function of one NPU."""

    bus_id: str
    device_id: int | None
    driver: str | None


def find_npus(host: HostFiles) -> tuple[AscendFunction, ...]:
    """Return the NPUs' functions sorted by address; unreadable ones are left out."""
    functions = find_functions(host, _PCI_VENDORS)
    return tuple(npu for f in functions if (npu := _npu(host, f)) is not None)


def _npu(host: HostFiles, function: SysfsFunction) -> AscendFunction | None:
    folder = function.folder
    device = (read_text(host, f"{folder}/device", 64) or "").lower()
    if not _is_npu(read_text(host, f"{folder}/class", 64) or "", device):
        return None
    if link_target_name(host, f"{folder}/physfn") is not None:
        return None  # a virtual function: a part of a chip
    driver = link_target_name(host, f"{folder}/driver")
    number = device.removeprefix("0x")
    is_valid = len(number) == 4 and all(digit in "0123456789abcdef" for digit in number)
    device_id = int(number, 16) if is_valid else None
    return AscendFunction(bus_id=function.bus_id, device_id=device_id, driver=driver)


def _is_npu(class_code: str, device: str) -> bool:
    if not class_code.lower().startswith(_ACCELERATOR):
        return False
    return device not in _NOT_NPUS and not device.startswith(_NICS)


def describe_function(
    function: AscendFunction, reason: str = "NotYetAsked", message: str = ""
) -> VendorDevice:
    """Describe a function from sysfs alone; `reason` says why DCMI's values are missing."""
    is_vfio = function.driver == VFIO
    effective_reason = "BoundToVFIO" if is_vfio else reason
    is_suspect = reason in _NO_FAULTS or is_vfio
    # the PCI id is only a guess at the family, until the library reports the chip
    family = BY_PCI_DEVICE.get(function.device_id if function.device_id is not None else -1)
    facts = (("driver", function.driver), ("family", family))
    return VendorDevice(
        kind=DeviceKind.NPU,
        vendor=MAKER,
        bus_id=function.bus_id,
        managed=not is_vfio,
        health=Health(
            # without its driver a chip cannot work
            state=HealthState.SUSPECT if is_suspect else HealthState.FAILED,
            reason=effective_reason,
            message=message
            if message and not is_vfio
            else MESSAGES.get(effective_reason, effective_reason),
        ),
        labels=((FAMILY_LABEL, family),) if family else (),
        facts=tuple((key, value) for key, value in facts if value),
    )
