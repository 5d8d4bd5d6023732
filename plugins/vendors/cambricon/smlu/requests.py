"""The sMLU instance that an allocation of a part of a card requests."""

from __future__ import annotations

from agent.snapshot.allocation import CORE, MEMORY, RATIO, AllocatedDevice
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.inventory import SliceRequest

_WHOLE_PERCENT = 100


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
