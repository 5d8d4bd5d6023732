"""Instances of a card that is cut up by MIG, as far as listing them goes."""

from __future__ import annotations

from agent.errors import DeviceGone, NotSupported
from agent.model.device import DevicePartition
from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.library import GarbledAnswer, NvmlFault
from plugins.slices.mig.names import PROFILES, slice_name, slices_of

MAX_INSTANCES = 56  # eight GPU instances of seven compute instances
_MIB = 1 << 20


def instances(card: Card, total_bytes: int | None) -> tuple[DevicePartition, ...]:
    """List the MIG devices by (GPU instance, compute instance); empty slots are skipped."""
    count = min(card.number("nvmlDeviceGetMaxMigDeviceCount") or 0, MAX_INSTANCES)
    suffixes = _suffixes(card)
    found: list[tuple[int, int, DevicePartition]] = []
    for slot in range(count):
        handle = _quiet(card, "nvmlDeviceGetMigDeviceHandleByIndex", card.handle, slot)
        if handle is None:
            continue
        uuid = _quiet(card, "nvmlDeviceGetUUID", handle)
        attributes = _quiet(card, "nvmlDeviceGetAttributes_v2", handle)
        if not isinstance(uuid, str) or attributes is None:
            continue
        gi = _quiet(card, "nvmlDeviceGetGpuInstanceId", handle)
        ci = _quiet(card, "nvmlDeviceGetComputeInstanceId", handle)
        suffix = suffixes.get(_profile_id(card, gi), "")
        partition = _partition(uuid, attributes, total_bytes, suffix)
        order = (gi if isinstance(gi, int) else -1, ci if isinstance(ci, int) else -1)
        found.append((*order, partition))
    return tuple(part for _, _, part in sorted(found, key=lambda item: item[:2]))


def _quiet(card: Card, name: str, *args: object) -> object | None:
    # errors of one slot are normal: instances come and go while we look
    try:
        return card.nvml.call(name, *args)
    except (NotSupported, NvmlFault, DeviceGone, GarbledAnswer):
        return None


def _suffixes(card: Card) -> dict[int, str]:
    """Map the driver's profile numbers to suffixes of names: media engines, graphics."""
    known: dict[int, str] = {}
    for index in range(PROFILES):
        for version in (2, 1):
            info = _quiet(card, "nvmlDeviceGetGpuInstanceProfileInfo", card.handle, index, version)
            if info is not None:
                known[int(getattr(info, "id", -1))] = slices_of(index)[1]
                break
    return known


def _profile_id(card: Card, gi: object) -> int:
    instance = _quiet(card, "nvmlDeviceGetGpuInstanceById", card.handle, gi)
    info = _quiet(card, "nvmlGpuInstanceGetInfo", instance) if instance is not None else None
    return int(getattr(info, "profileId", -1))


def _partition(
    uuid: str, attributes: object, total_bytes: int | None, suffix: str
) -> DevicePartition:
    gpu = int(getattr(attributes, "gpuInstanceSliceCount", 0))
    compute = int(getattr(attributes, "computeInstanceSliceCount", 0))
    memory_mb = int(getattr(attributes, "memorySizeMB", 0))
    name = slice_name(gpu, compute, memory_mb, total_bytes, suffix) if total_bytes else f"{gpu}g"
    return DevicePartition(uuid=uuid, profile=name, memory_bytes=memory_mb * _MIB or None)
