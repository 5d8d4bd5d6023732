"""NVML calls for MIG: profiles, placements and GPU instances."""

from __future__ import annotations

import ctypes

import msgspec

from agent.errors import DeviceGone, NotSupported
from plugins.vendors.nvidia.library.codes import GarbledAnswer, NvmlFault
from plugins.vendors.nvidia.library.nvml import Nvml

MAX_PLACES = 64
MAX_INSTANCES = 64


class GpuInstanceProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance profile as the driver reports it; old drivers report no name."""

    id: int
    slices: int
    max_instances: int
    memory_mb: int
    name: str = ""


class GpuInstanceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance: its number, its profile's number, its placement in memory slices."""

    id: int
    profile: int
    start: int
    size: int


def call_or_none(nvml: Nvml, name: str, *args: object) -> object | None:
    """Call a function whose errors are normal: instances may appear and vanish meanwhile."""
    try:
        return nvml.call(name, *args)
    except (NotSupported, NvmlFault, DeviceGone, GarbledAnswer):
        return None


def profile_info(nvml: Nvml, handle: object, index: int) -> GpuInstanceProfileInfo | None:
    """Return the profile with a query index; `None` if the card does not have it."""
    for version in (2, 1):
        info = call_or_none(nvml, "nvmlDeviceGetGpuInstanceProfileInfo", handle, index, version)
        if info is None:
            continue
        name = getattr(info, "name", b"")
        return GpuInstanceProfileInfo(
            id=int(getattr(info, "id", -1)),
            slices=int(getattr(info, "sliceCount", 0)),
            max_instances=int(getattr(info, "instanceCount", 0)),
            memory_mb=int(getattr(info, "memorySizeMB", 0)),
            name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
        )
    return None


def placements(nvml: Nvml, handle: object, profile: int) -> tuple[tuple[int, int], ...] | None:
    """Return (start, size) of every placement of a profile; `None` without the right to read."""
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    for call in (nvml.call, nvml.call_symbol):
        count = ctypes.c_uint(0)
        try:
            call(name, handle, profile, None, ctypes.byref(count))
            count.value = min(count.value, MAX_PLACES)
            places = nvml.allocate("c_nvmlGpuInstancePlacement_t", count.value)
            call(name, handle, profile, places, ctypes.byref(count))
        except NotSupported:
            continue  # drivers before 470 have the plain symbol only
        except (NvmlFault, DeviceGone):
            return None
        filled = places[: min(count.value, len(places))]
        return tuple((int(place.start), int(place.size)) for place in filled)
    return None


def gpu_instances(
    nvml: Nvml, handle: object, profile: int, max_instances: int
) -> tuple[GpuInstanceInfo, ...] | None:
    """List a profile's GPU instances, with or without compute instances; `None` if refused."""
    count = ctypes.c_uint(0)
    buffer = nvml.allocate("c_nvmlGpuInstance_t", max(1, min(max_instances, MAX_INSTANCES)))
    name = "nvmlDeviceGetGpuInstances"
    if call_or_none(nvml, name, handle, profile, buffer, ctypes.byref(count)) is None:
        return None
    infos = (instance_info(nvml, instance) for instance in buffer[: min(count.value, len(buffer))])
    return tuple(info for info in infos if info is not None)


def instance_info(nvml: Nvml, instance: object | None) -> GpuInstanceInfo | None:
    """Return number, profile and placement of a GPU instance; `None` without the right to read."""
    info = call_or_none(nvml, "nvmlGpuInstanceGetInfo", instance) if instance is not None else None
    place = getattr(info, "placement", None)
    if info is None or place is None:
        return None
    return GpuInstanceInfo(
        id=int(getattr(info, "id", -1)),
        profile=int(getattr(info, "profileId", -1)),
        start=int(place.start),
        size=int(place.size),
    )
