"""MIG calls that fill structures and lists of the caller."""

from __future__ import annotations

import ctypes

import msgspec

from agent.errors import DeviceGone, NotSupported
from plugins.vendors.nvidia.library.codes import GarbledAnswer, NvmlFault
from plugins.vendors.nvidia.library.nvml import Nvml

MAX_PLACES = 64
MAX_INSTANCES = 64


class GpuInstanceProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance profile as the driver tells it; `name` is empty with old drivers."""

    id: int
    slices: int
    most: int
    memory_mb: int
    name: str = ""


class GpuInstanceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance: its number, its profile's and its place in memory slices."""

    id: int
    profile: int
    start: int
    size: int


def call_or_none(nvml: Nvml, name: str, *args: object) -> object | None:
    """Call a function whose errors are normal: instances come and go while we look."""
    try:
        return nvml.call(name, *args)
    except (NotSupported, NvmlFault, DeviceGone, GarbledAnswer):
        return None


def profile_info(nvml: Nvml, handle: object, index: int) -> GpuInstanceProfileInfo | None:
    """Return what the card can make by query index, by the newest structure; `None`: not this."""
    for version in (2, 1):
        info = call_or_none(nvml, "nvmlDeviceGetGpuInstanceProfileInfo", handle, index, version)
        if info is None:
            continue
        name = getattr(info, "name", b"")
        return GpuInstanceProfileInfo(
            id=int(getattr(info, "id", -1)),
            slices=int(getattr(info, "sliceCount", 0)),
            most=int(getattr(info, "instanceCount", 0)),
            memory_mb=int(getattr(info, "memorySizeMB", 0)),
            name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
        )
    return None


def placements(nvml: Nvml, handle: object, profile: int) -> tuple[tuple[int, int], ...] | None:
    """Return (start, size) of every place of a profile; `None` without the right to ask."""
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    for ask in (nvml.call, nvml.call_symbol):
        count = ctypes.c_uint(0)
        try:
            ask(name, handle, profile, None, ctypes.byref(count))
            count.value = min(count.value, MAX_PLACES)
            places = nvml.allocate("c_nvmlGpuInstancePlacement_t", count.value)
            ask(name, handle, profile, places, ctypes.byref(count))
        except NotSupported:
            continue  # drivers before 470 have the plain symbol only
        except (NvmlFault, DeviceGone):
            return None
        filled = places[: min(count.value, len(places))]
        return tuple((int(place.start), int(place.size)) for place in filled)
    return None


def gpu_instances(
    nvml: Nvml, handle: object, profile: int, most: int
) -> tuple[GpuInstanceInfo, ...] | None:
    """List the GPU instances of a profile, those without compute instances too; `None`: refused."""
    count = ctypes.c_uint(0)
    room = nvml.allocate("c_nvmlGpuInstance_t", max(1, min(most, MAX_INSTANCES)))
    name = "nvmlDeviceGetGpuInstances"
    if call_or_none(nvml, name, handle, profile, room, ctypes.byref(count)) is None:
        return None
    found = (instance_info(nvml, instance) for instance in room[: min(count.value, len(room))])
    return tuple(info for info in found if info is not None)


def instance_info(nvml: Nvml, instance: object | None) -> GpuInstanceInfo | None:
    """Return what a GPU instance is; `None` without the right to ask."""
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
