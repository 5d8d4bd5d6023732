"""Reads NVIDIA's PCI functions from sysfs and procfs, without the vendor's library."""

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
    """One display function. `reason` is empty if it is bound to the driver `nvidia`."""

    bus_id: str | None  # None: not on PCI, or not listed in sysfs
    driver: str | None
    reason: str = ""
    name: str = ""  # name of a card without a bus id
    uuid: str | None = None
    minor: int | None = None
    model: str | None = None
    is_excluded: bool = False
    node: DeviceNode | None = None
    platform: str = ""  # wsl, tegra; empty: a card on PCI

    @property
    def key(self) -> str:
        """The device key, which is stable across discoveries."""
        return self.bus_id or self.name


class NvidiaHardware(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA's cards and switches on the PCI bus, sorted by address."""

    cards: tuple[NvidiaFunction, ...] = ()
    switches: int = 0  # NVSwitch functions
    platform: str = ""  # wsl, tegra: platforms whose cards sysfs does not list


def find_hardware(host: HostFiles) -> NvidiaHardware:
    """Return NVIDIA's functions; unreadable ones are left out."""
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
    """Return one function for a platform whose cards sysfs does not list; else nothing."""
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
        # guests have no physfn link, so this is a host that shares the card with guests
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
        # a card that is not initialised has no UUID, or one with question marks
        uuid=uuid if uuid.startswith("GPU-") and "?" not in uuid else None,
        minor=number,
        model=model_label(facts.get("Model", "")),
        is_excluded=facts.get("GPU Excluded", "") == "Yes",
        node=read_node(host, f"/dev/nvidia{number}") if number is not None else None,
    )


def read_node(host: HostFiles, path: str) -> DeviceNode | None:
    """Return a device node with its major and minor; `None` if it does not exist."""
    number = host.device_number(path)
    return DeviceNode(path=path, major=number[0], minor=number[1]) if number else None


def parse_information(content: str) -> dict[str, str]:
    """Parse the driver's file of one card: a name and a value, separated by a colon, per line."""
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
    function: NvidiaFunction, reason: str = NOT_YET, message: str = ""
) -> VendorDevice:
    """Describe a function from sysfs alone; `reason` says why NVML's values are missing."""
    effective_reason = function.reason or ("Excluded" if function.is_excluded else reason)
    state = HealthState.FAILED if function.is_excluded else HealthState.SUSPECT
    text = message if message and effective_reason == reason else MESSAGES.get(effective_reason, "")
    return VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=function.bus_id,
        uuid=function.uuid,
        minor=function.minor,
        vendor_minor=function.minor,
        model=function.model,
        managed=not function.reason,
        health=Health(state=state, reason=effective_reason, message=text),
        facts=_facts(function),
        nodes=(function.node,) if function.node else (),
    )


def _facts(function: NvidiaFunction) -> Pairs:
    facts = (("driver", function.driver), ("platform", function.platform))
    return tuple((key, value) for key, value in facts if value)


def describe_recorded_function(function: NvidiaFunction) -> VendorDevice:
    """Describe a function of a recorded host; the message names another driver, if it had one."""
    device = describe_function(function, "NoRecordedAnswers")
    if not function.reason.startswith("Driver"):
        return device
    health = Health(
        state=HealthState.SUSPECT,
        reason="NoRecordedAnswers",
        message=f"{MESSAGES['NoRecordedAnswers']}; {device.health.message}",
    )
    return replace(device, health=health)
