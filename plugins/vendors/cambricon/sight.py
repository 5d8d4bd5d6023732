"""Cambricon's functions as sysfs shows them, without the vendor's library."""

from __future__ import annotations

from agent.host.files import HostFiles, text
from agent.model.device import DeviceKind, DeviceNode, Health, HealthState, VendorDevice
from plugins.functions import linked, made_by

_PCI_VENDORS = (b"0xcabc",)
_ACCELERATOR = "0x12"
_MESSAGES: dict[str, str] = {
    "NotYetAsked": "seen in sysfs; the driver's library has not answered yet",
    "NoRecordedAnswers": "the recording holds no answers of the driver's library",
}


def look(host: HostFiles) -> tuple[str, ...]:
    """Return the bus ids of accelerator functions, in order; virtual functions are left out."""
    return tuple(
        function.bus_id
        for function in made_by(host, _PCI_VENDORS)
        if linked(host, f"{function.folder}/physfn") is None
        and (text(host, f"{function.folder}/class") or "").startswith(_ACCELERATOR)
    )


def device(
    bus_id: str,
    reason: str = "NotYetAsked",
    message: str = "",
    state: HealthState = HealthState.SUSPECT,
) -> VendorDevice:
    """Describe a function of which no more is known, and say why."""
    told = message or _MESSAGES.get(reason, "")
    health = Health(state=state, reason=reason, message=told)
    return VendorDevice(kind=DeviceKind.MLU, vendor="cambricon", bus_id=bus_id, health=health)


def node(host: HostFiles, path: str) -> tuple[DeviceNode, ...]:
    """Return a device node with its numbers; empty if it is not there."""
    number = host.device_number(path)
    return (DeviceNode(path=path, major=number[0], minor=number[1]),) if number else ()
