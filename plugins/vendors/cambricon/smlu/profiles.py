"""sMLU slices: what an allocation asks for, memory units, profiles and handles. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.errors import AgentError
from agent.snapshot.allocation import CORE, MEMORY, RATIO, AllocatedDevice
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.inventory import SliceRequest

MIB = 1 << 20
_WHOLE_PERCENT = 100


class SliceRefused(AgentError):
    """A requested slice cannot be created; the message says why."""


class SmluRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A slice: percent of the cores and units of memory of one card."""

    card: int
    core_percent: int
    units: int

    @property
    def text(self) -> str:
        """The request as in the annotation of the profile."""
        return f"{self.card}_{self.core_percent}_{self.units}"

    def memory_bytes(self, unit_mib: int) -> int:
        """Return the requested memory."""
        return self.units * unit_mib * MIB


class SmluProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A size of instances; `remain` more of them fit on the card."""

    id: int
    core_percent: int
    memory_bytes: int
    total: int
    remain: int


def unit_mib(setting: int, total_mib: int) -> int:
    """Return the memory unit in MiB: the setting, else a hundredth of the card's memory."""
    return setting if setting > 0 else total_mib // 100


def request_of(
    card: int, core_percent: int, memory_bytes: int, unit: int
) -> tuple[SmluRequest, str]:
    """Return the slice for an allocation, and a remark if its memory was rounded down to units.

    Raises `SliceRefused` for cores outside 1 to 100, and for memory of less than one unit.
    """
    if not 1 <= core_percent <= 100:
        raise SliceRefused(f"cores {core_percent} percent: a slice has 1 to 100 of one card")
    if unit < 1 or memory_bytes < unit * MIB:
        raise SliceRefused(f"memory {memory_bytes // MIB}Mi is less than one unit of {unit}Mi")
    units = memory_bytes // (unit * MIB)
    rest_bytes = memory_bytes - units * unit * MIB
    remark = f"{units * unit}Mi of {memory_bytes // MIB}Mi: memory comes in units of {unit}Mi"
    return SmluRequest(
        card=card, core_percent=core_percent, units=units
    ), remark if rest_bytes else ""


def handle_of(instance: int, card: int) -> int:
    """Return the driver's handle of an instance."""
    return instance << 8 | card


def choose_profile(
    profiles: Iterable[SmluProfile], core_percent: int, memory_bytes: int
) -> SmluProfile | None:
    """Return the profile of that size; `None` if it must be created first.

    Raises `SliceRefused` if all its slots are used.
    """
    for profile in profiles:
        if (profile.core_percent, profile.memory_bytes) == (core_percent, memory_bytes):
            if profile.remain < 1:
                message = f"no free slot of this profile: all {profile.total} are taken"
                raise SliceRefused(message)
            return profile
    return None


def slices_device(device: VendorDevice) -> bool:
    """Return whether the device is a card."""
    return device.kind is DeviceKind.MLU


def resolve_entry(
    entry: AllocatedDevice,
    device: VendorDevice,  # noqa: ARG001 - cards have no templates
) -> AllocatedDevice:
    """Return the entry unchanged: the scheduler writes all amounts."""
    return entry


def slice_request(pod: str, entry: AllocatedDevice, device: VendorDevice) -> SliceRequest | None:
    """Return the instance for a pod's entry; `None` for a whole card."""
    if not any((entry.amount(name) or _WHOLE_PERCENT) < _WHOLE_PERCENT for name in (CORE, RATIO)):
        return None
    return SliceRequest(
        pod=pod,
        device=device.key,
        core_percent=entry.amount(CORE),
        memory_bytes=entry.amount(MEMORY),
    )


def is_sliced_by_runtime(handler: str) -> bool:  # noqa: ARG001 - no runtime does
    """Return false: no runtime makes instances."""
    return False
