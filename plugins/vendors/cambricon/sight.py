"""Cambricon's functions as sysfs shows them, without the vendor's library."""

from __future__ import annotations

from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles, text
from agent.model.device import DeviceKind, DeviceNode, Health, HealthState, VendorDevice
from agent.topology.address import parse_address, sort_key

DEVICES = "/sys/bus/pci/devices"
MAX_FUNCTIONS = 8192
_ID = 6  # bytes of 0xcabc
_MESSAGES: dict[str, str] = {
    "NotYetAsked": "seen in sysfs; the driver's library has not answered yet",
    "NoRecordedAnswers": "the recording holds no answers of the driver's library",
}


def look(host: HostFiles) -> tuple[str, ...]:
    """Return the bus ids of accelerator functions, in order; virtual functions are left out."""
    try:
        names = host.names(DEVICES)[:MAX_FUNCTIONS]
    except HostFileError:
        return ()
    return tuple(sorted((n for name in names if (n := _ours(host, name))), key=sort_key))


def _ours(host: HostFiles, name: str) -> str | None:
    folder = f"{DEVICES}/{name}"
    try:
        # the machine may have thousands of functions: one short read decides for most
        if host.read(f"{folder}/vendor", _ID).lower() != b"0xcabc":
            return None
        if host.link(f"{folder}/physfn") is not None:
            return None
        bus_id = parse_address(name)
    except (HostFileError, ParseError):
        return None
    return bus_id if (text(host, f"{folder}/class") or "").startswith("0x12") else None


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
