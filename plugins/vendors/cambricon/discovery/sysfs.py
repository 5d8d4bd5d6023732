"""Reads Cambricon's PCI functions from sysfs, without the vendor's library."""

from __future__ import annotations

from agent.host.files import read_text
from agent.snapshot.device import DeviceKind, DeviceNode, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from plugins.shared.pci_functions import find_functions, link_target_name

_PCI_VENDORS = (b"0xcabc",)
_ACCELERATOR = "0x12"
_MESSAGES: dict[str, str] = {
    "NotYetAsked": "seen in sysfs; the driver's library has not answered yet",
    "NoRecordedAnswers": "the recording holds no answers of the driver's library",
}


def find_cards(host: HostFiles) -> tuple[str, ...]:
    """Return the bus ids of accelerator functions, in order; virtual functions are left out."""
    return tuple(
        function.bus_id
        for function in find_functions(host, _PCI_VENDORS)
        if link_target_name(host, f"{function.folder}/physfn") is None
        and (read_text(host, f"{function.folder}/class") or "").startswith(_ACCELERATOR)
    )


def describe_function(
    bus_id: str,
    reason: str = "NotYetAsked",
    message: str = "",
    state: HealthState = HealthState.SUSPECT,
) -> VendorDevice:
    """Describe a function from sysfs alone; `reason` says why the library's values are missing."""
    text = message or _MESSAGES.get(reason, "")
    health = Health(state=state, reason=reason, message=text)
    return VendorDevice(kind=DeviceKind.MLU, vendor="cambricon", bus_id=bus_id, health=health)


def read_node(host: HostFiles, path: str) -> tuple[DeviceNode, ...]:
    """Return a device node with its major and minor; empty if it does not exist."""
    number = host.device_number(path)
    return (DeviceNode(path=path, major=number[0], minor=number[1]),) if number else ()
