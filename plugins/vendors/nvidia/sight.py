"""NVIDIA's functions as sysfs and procfs show them, without the vendor's library."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles, link_name, text
from agent.model.device import DeviceKind, DeviceNode, Health, HealthState, VendorDevice
from agent.topology.address import parse_address, sort_key
from plugins.vendors.nvidia.names import model_label

DEVICES = "/sys/bus/pci/devices"
MODULE = "/sys/module/nvidia"
INFORMATION = "/proc/driver/nvidia/gpus"
MAX_FUNCTIONS = 8192
_ID = 6  # bytes of 0x10de
_DISPLAYS = ("0x0300", "0x0302")  # VGA and 3D; 0x0680 is an NVSwitch, 0x0403 the card's audio
_OTHERS = {"vfio-pci": "BoundToVFIO", "nouveau": "BoundToNouveau", "nvgpu": "BoundToNvgpu"}


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One display function of NVIDIA's. `reason` is empty when the driver `nvidia` has it."""

    bus_id: str
    driver: str | None
    reason: str = ""
    uuid: str | None = None
    minor: int | None = None
    model: str | None = None
    excluded: bool = False
    node: DeviceNode | None = None


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
        if host.read(f"{folder}/vendor", _ID).lower() != b"0x10de":
            return None
        bus_id = parse_address(name)
    except (HostFileError, ParseError):
        return None
    if not (text(host, f"{folder}/class") or "").lower().startswith(_DISPLAYS):
        return None
    driver = _link(host, f"{folder}/driver")
    reason = _reason(host, driver, virtual=_link(host, f"{folder}/physfn") is not None)
    if reason:
        return Sighting(bus_id=bus_id, driver=driver, reason=reason)
    return _bound(host, bus_id)


def _link(host: HostFiles, path: str) -> str | None:
    try:
        return link_name(host, path)
    except HostFileError:
        return None


def _reason(host: HostFiles, driver: str | None, *, virtual: bool) -> str:
    if virtual:
        # a guest sees no physfn; here it is the host's view of a card shared out to guests
        return "VirtualFunction"
    if driver == "nvidia":
        return ""
    if driver is not None:
        return _OTHERS.get(driver, "BoundToOther")
    return "DriverNotBound" if host.exists(MODULE) else "DriverMissing"


def _bound(host: HostFiles, bus_id: str) -> Sighting:
    facts = information(text(host, f"{INFORMATION}/{bus_id}/information") or "")
    minor = facts.get("Device Minor", "")
    number = int(minor) if minor.isdecimal() and len(minor) < 6 else None
    uuid = facts.get("GPU UUID", "")
    return Sighting(
        bus_id=bus_id,
        driver="nvidia",
        # a card that was not initialised shows no UUID, or one full of question marks
        uuid=uuid if uuid.startswith("GPU-") and "?" not in uuid else None,
        minor=number,
        model=model_label(facts.get("Model", "")),
        excluded=facts.get("GPU Excluded", "") == "Yes",
        node=_node(host, number),
    )


def _node(host: HostFiles, minor: int | None) -> DeviceNode | None:
    path = f"/dev/nvidia{minor}"
    number = host.device_number(path) if minor is not None else None
    return DeviceNode(path=path, major=number[0], minor=number[1]) if number else None


def information(content: str) -> dict[str, str]:
    """Split the driver's file on one card at the first colon of each line."""
    pairs = (line.partition(":") for line in content.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


MESSAGES: dict[str, str] = {
    "BoundToVFIO": "bound to vfio-pci: a virtual machine's card",
    "BoundToNouveau": "bound to nouveau: NVIDIA's driver cannot have it",
    "BoundToNvgpu": "bound to nvgpu: an integrated GPU",
    "BoundToOther": "bound to another driver",
    "DriverNotBound": "no driver has the function, though NVIDIA's is loaded",
    "DriverMissing": "NVIDIA's kernel module is not loaded",
    "VirtualFunction": "a virtual function seen from its host",
    "Excluded": "the driver was told to leave this card out",
    "NotYetAsked": "seen in sysfs; NVML has not answered yet",
    "NoRecordedAnswers": "the recording holds no answers of NVML",
}


def device(seen: Sighting, reason: str = "NotYetAsked", message: str = "") -> VendorDevice:
    """Describe a function by what was seen of it; `reason` says why there is no more."""
    why = seen.reason or ("Excluded" if seen.excluded else reason)
    state = HealthState.FAILED if seen.excluded else HealthState.SUSPECT
    told = message if message and why == reason else MESSAGES.get(why, "")
    return VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=seen.bus_id,
        uuid=seen.uuid,
        minor=seen.minor,
        model=seen.model,
        managed=not seen.reason,
        health=Health(state=state, reason=why, message=told),
        facts=(("driver", seen.driver),) if seen.driver else (),
        nodes=(seen.node,) if seen.node else (),
    )


def recorded(seen: Sighting) -> VendorDevice:
    """Describe a function of a recorded host; who else had it is still worth saying."""
    found = device(seen, "NoRecordedAnswers")
    if not seen.reason.startswith("Driver"):
        return found
    health = Health(
        state=HealthState.SUSPECT,
        reason="NoRecordedAnswers",
        message=f"{MESSAGES['NoRecordedAnswers']}; {found.health.message}",
    )
    return replace(found, health=health)
