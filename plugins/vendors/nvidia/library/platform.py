"""NVML calls for a card's place in its rack and for confidential computing."""

from __future__ import annotations

import ctypes

import msgspec

from agent.errors import DeviceGone, NotSupported
from plugins.vendors.nvidia.library.codes import GarbledAnswer, NvmlFault
from plugins.vendors.nvidia.library.nvml import Nvml

_PLATFORM_VERSION = 0x0200002C
_PEERS = {0: "direct", 1: "switch"}
_TEXTS = 4, 20, 36  # offsets of GUID, chassis serial number, and the numbers
_NUMBERS = ("slot", "tray", "host")


class PlatformInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A card's place in its rack; values that the driver leaves blank are absent."""

    facts: tuple[tuple[str, str], ...] = ()


def platform_info(nvml: Nvml, handle: object) -> PlatformInfo:
    """Read the card's place in its rack; raises the library's errors."""
    info = nvml.allocate("c_nvmlPlatformInfo_v2_t", 1)[0]
    setattr(info, "version", _PLATFORM_VERSION)  # noqa: B010 - a ctypes structure
    nvml.call("nvmlDeviceGetPlatformInfo", handle, ctypes.byref(info))
    return PlatformInfo(facts=read_platform(bytes(info)))


def read_platform(data: bytes) -> tuple[tuple[str, str], ...]:
    """Parse the structure's bytes; the binding would decode binary members as texts."""
    guid, serial, numbers = (
        data[_TEXTS[0] : _TEXTS[1]],
        data[_TEXTS[1] : _TEXTS[2]],
        data[_TEXTS[2] :],
    )
    chassis = serial.partition(b"\0")[0].decode("ascii", "replace").strip()
    pairs = [("ib-guid", guid.hex() if any(guid) else "")]
    pairs.append(("chassis-serial", chassis if chassis.isprintable() else ""))
    if chassis or any(guid):
        pairs += [(name, str(numbers[place])) for place, name in enumerate(_NUMBERS)]
        pairs.append(("peer-type", _PEERS.get(numbers[3], "")))
    return tuple((name, value) for name, value in pairs if value)


def is_waiting_for_ready_state(nvml: Nvml) -> bool:
    """Return whether confidential computing is on and the cards are not declared ready."""
    try:
        state = nvml.call("nvmlSystemGetConfComputeState")
        if not getattr(state, "ccFeature", 0):
            return False
        return nvml.call("nvmlSystemGetConfComputeGpusReadyState") == 0
    except (NotSupported, NvmlFault, DeviceGone, GarbledAnswer):
        return False  # drivers and cards without confidential computing return an error
