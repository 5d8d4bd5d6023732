"""Reads NVIDIA's functions from sysfs and procfs, without the vendor's library."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from agent.host.files import read_text
from agent.snapshot.device import DeviceKind, DeviceNode, Health, HealthState, Pairs, VendorDevice
from agent.snapshot.host_files import HostFiles
from plugins.shared.pci_functions import SysfsFunction, find_functions, link_target_name
from plugins.vendors.nvidia.discovery.names import model_label

MODULE = "/sys/module/nvidia"
INFORMATION = "/proc/driver/nvidia/gpus"
_PCI_VENDORS = (b"0x10de",)
_DISPLAYS = ("0x0300", "0x0302")  # VGA and 3D; 0x0403 is the card's audio
_SWITCH = "0x0680"  # an NVSwitch
WSL, TEGRA = "wsl", "tegra"
NOT_YET = "NotYetAsked"
WSL_NODE = "/dev/dxg"
_OTHER_DRIVERS = {"vfio-pci": "BoundToVFIO", "nouveau": "BoundToNouveau", "nvgpu": "BoundToNvgpu"}


class NvidiaFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One display function of NVIDIA's. `reason` is empty when the driver `nvidia` has it."""

    bus_id: str | None  # None: not on PCI, or where sysfs does not show it
    driver: str | None
    reason: str = ""
    name: str = ""  # what names a card without a bus id
    uuid: str | None = None
    minor: int | None = None
    model: str | None = None
    is_excluded: bool = False
    node: DeviceNode | None = None
    platform: str = ""  # wsl, tegra; empty: a card on PCI

    @property
    def key(self) -> str:
        """What names the card across discoveries."""
        return self.bus_id or self.name


class NvidiaHardware(msgspec.Struct, frozen=True, kw_only=True):
    """What of NVIDIA's stands on the bus, in the order of addresses."""

    cards: tuple[NvidiaFunction, ...] = ()
    switches: int = 0  # NVSwitch functions
    platform: str = ""  # wsl, tegra: cards that are on no bus that sysfs shows


def find_hardware(host: HostFiles) -> NvidiaHardware:
    """Return the functions of NVIDIA's; unreadable ones are left out."""
    functions = find_functions(host, _PCI_VENDORS)
    classes = [
        (read_text(host, f"{function.folder}/class") or "").lower() for function in functions
    ]
    cards = tuple(
        _card(host, function)
        for function, code in zip(functions, classes, strict=True)
        if code.startswith(_DISPLAYS)
    )
    return NvidiaHardware(
        cards=cards,
        switches=sum(code.startswith(_SWITCH) for code in classes),
        platform=_platform(host, functions=bool(functions), cards=bool(cards)),
    )


def _platform(host: HostFiles, *, functions: bool, cards: bool) -> str:
    if not functions and host.exists(WSL_NODE):
        return WSL
    if cards:
        return ""
    family = (read_text(host, "/sys/devices/soc0/family") or "").lower()
    tegra = family.startswith("tegra") or host.exists("/etc/nv_tegra_release")
    return TEGRA if tegra else ""


def cards_without_bus(platform: str) -> tuple[NvidiaFunction, ...]:
    """Return what is known without the library of cards that no bus shows: that there is one."""
    if not platform:
        return ()
    return (NvidiaFunction(bus_id=None, driver=None, name=platform, platform=platform),)


def _card(host: HostFiles, function: SysfsFunction) -> NvidiaFunction:
    driver = link_target_name(host, f"{function.folder}/driver")
    virtual = link_target_name(host, f"{function.folder}/physfn") is not None
    reason = _reason(host, driver, virtual=virtual)
    if reason:
        return NvidiaFunction(bus_id=function.bus_id, driver=driver, reason=reason)
    return _read_bound(host, function.bus_id)


def _reason(host: HostFiles, driver: str | None, *, virtual: bool) -> str:
    if virtual:
        # a guest sees no physfn; here it is the host's view of a card shared out to guests
        return "VirtualFunction"
    if driver == "nvidia":
        return ""
    if driver is not None:
        return _OTHER_DRIVERS.get(driver, "BoundToOther")
    return "DriverNotBound" if host.exists(MODULE) else "DriverMissing"


def _read_bound(host: HostFiles, bus_id: str) -> NvidiaFunction:
    facts = parse_information(read_text(host, f"{INFORMATION}/{bus_id}/information") or "")
    minor = facts.get("Device Minor", "")
    number = int(minor) if minor.isdecimal() and len(minor) < 6 else None
    uuid = facts.get("GPU UUID", "")
    return NvidiaFunction(
        bus_id=bus_id,
        driver="nvidia",
        # a card that was not initialised shows no UUID, or one full of question marks
        uuid=uuid if uuid.startswith("GPU-") and "?" not in uuid else None,
        minor=number,
        model=model_label(facts.get("Model", "")),
        is_excluded=facts.get("GPU Excluded", "") == "Yes",
        node=read_node(host, f"/dev/nvidia{number}") if number is not None else None,
    )


def read_node(host: HostFiles, path: str) -> DeviceNode | None:
    """Return a device node with the numbers the kernel gave it; `None` if it is not there."""
    number = host.device_number(path)
    return DeviceNode(path=path, major=number[0], minor=number[1]) if number else None


def parse_information(content: str) -> dict[str, str]:
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
    NOT_YET: "seen in sysfs; NVML has not answered yet",
    "NoRecordedAnswers": "the recording holds no answers of NVML",
}


def describe_function(
    seen: NvidiaFunction, reason: str = NOT_YET, message: str = ""
) -> VendorDevice:
    """Describe a function by what was seen of it; `reason` says why there is no more."""
    why = seen.reason or ("Excluded" if seen.is_excluded else reason)
    state = HealthState.FAILED if seen.is_excluded else HealthState.SUSPECT
    told = message if message and why == reason else MESSAGES.get(why, "")
    return VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=seen.bus_id,
        uuid=seen.uuid,
        minor=seen.minor,
        vendor_minor=seen.minor,
        model=seen.model,
        managed=not seen.reason,
        health=Health(state=state, reason=why, message=told),
        facts=_facts(seen),
        nodes=(seen.node,) if seen.node else (),
    )


def _facts(seen: NvidiaFunction) -> Pairs:
    told = (("driver", seen.driver), ("platform", seen.platform))
    return tuple((key, value) for key, value in told if value)


def describe_recorded_function(seen: NvidiaFunction) -> VendorDevice:
    """Describe a function of a recorded host; who else had it is still worth saying."""
    found = describe_function(seen, "NoRecordedAnswers")
    if not seen.reason.startswith("Driver"):
        return found
    health = Health(
        state=HealthState.SUSPECT,
        reason="NoRecordedAnswers",
        message=f"{MESSAGES['NoRecordedAnswers']}; {found.health.message}",
    )
    return replace(found, health=health)
