"""The MIG instances of one card: which, of what profile, where, and by which device files."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.model.device import DevicePartition, Health, HealthState
from agent.model.inventory import Problem
from plugins.bindings.nvml import bounds
from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.instances import InstanceInfo, instance_info, quiet
from plugins.slices.mig.caps import Access, Capabilities
from plugins.slices.mig.names import old_uuid, slice_name
from plugins.slices.mig.placements import Occupied, Starts, free_slices
from plugins.slices.mig.profiles import Menu, occupant, read_menu

MAX_INSTANCES = 56  # eight GPU instances of seven compute instances
_MIB = 1 << 20
_SIZE = (1, bounds.MAX_BYTES // _MIB)  # of memory in MiB, and of whatever else an instance has
_UNREAD = "InstanceUnread"
_MEMBERS = (
    *("memorySizeMB", "multiprocessorCount"),
    *("gpuInstanceSliceCount", "computeInstanceSliceCount"),
)


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """What MIG made of one card, and what is odd about it."""

    partitions: tuple[DevicePartition, ...] = ()  # by GPU instance and compute instance
    free: Starts = ()
    problems: tuple[Problem, ...] = ()


class _Slot(msgspec.Struct, frozen=True, kw_only=True):
    """What one MIG handle says; numbers are `None` where the driver does not tell."""

    uuid: str
    gi: int | None
    ci: int | None
    place: InstanceInfo | None
    sizes: dict[str, int]  # attributes by name, as far as they are told


def read_cut(card: Card, total_bytes: int | None, minor: int | None, caps: Capabilities) -> Cut:
    """List the MIG devices of a card and what still fits; a bad slot hides no other.

    Slots are empty when instances go while we look. An instance without a UUID cannot be given
    to anybody and is left out with a problem, as is a second one with the same UUID.
    """
    menu = read_menu(card, total_bytes)
    count = min(card.number("nvmlDeviceGetMaxMigDeviceCount") or 0, MAX_INSTANCES)
    parts: dict[str, DevicePartition] = {}
    problems: list[Problem] = []
    places: dict[int, Occupied] = {}
    for number in range(count):
        handle = quiet(card.nvml, "nvmlDeviceGetMigDeviceHandleByIndex", card.handle, number)
        slot = _slot(card, handle) if handle is not None else None
        if handle is None:
            continue
        if slot is None or slot.uuid in parts:
            told = "has no UUID" if slot is None else f"repeats {slot.uuid}"
            message = f"{card.bus_id}: MIG slot {number} {told}"
            problems.append(Problem(reason=_UNREAD, message=message))
            continue
        if slot.place is not None:
            places[slot.place.id] = occupant(slot.place, menu.profile(slot.place.profile))
        access = caps.access(minor, slot.gi, slot.ci)
        parts[slot.uuid] = _partition(slot, menu, total_bytes, access)
    used = menu.occupied if menu.occupied is not None else tuple(places.values())
    told_all = menu.occupied is not None or _all_placed(parts.values())
    return Cut(
        partitions=tuple(sorted(parts.values(), key=_order)),
        free=free_slices(menu.profiles, used) if told_all else (),
        problems=tuple(problems),
    )


def _order(part: DevicePartition) -> tuple[int, int, str]:
    gi = part.instance if part.instance is not None else MAX_INSTANCES
    return gi, part.compute_instance if part.compute_instance is not None else 0, part.uuid


def _all_placed(parts: Iterable[DevicePartition]) -> bool:
    return all(part.start is not None for part in parts)


def _slot(card: Card, handle: object) -> _Slot | None:
    nvml = card.nvml
    uuid = quiet(nvml, "nvmlDeviceGetUUID", handle)
    if not isinstance(uuid, str) or not uuid.strip():
        return None
    told = old_uuid(uuid)
    gi = _number(quiet(nvml, "nvmlDeviceGetGpuInstanceId", handle), told[1] if told else None)
    ci = _number(quiet(nvml, "nvmlDeviceGetComputeInstanceId", handle), told[2] if told else None)
    instance = quiet(nvml, "nvmlDeviceGetGpuInstanceById", card.handle, gi) if gi is not None else 0
    return _Slot(
        uuid=uuid.strip(),
        gi=gi,
        ci=ci,
        place=instance_info(nvml, instance) if instance else None,
        sizes=_sizes(card, handle),
    )


def _sizes(card: Card, handle: object) -> dict[str, int]:
    """Return what an instance has, by the driver's names; 0 is as good as not told."""
    name = "nvmlDeviceGetAttributes_v2"
    found = quiet(card.nvml, name, handle)
    told = ((member, int(getattr(found, member, 0))) for member in _MEMBERS)
    return {m: n for m, n in told if n and card.within(f"{name} {m}", n, _SIZE) is not None}


def _number(found: object, otherwise: int | None) -> int | None:
    return found if isinstance(found, int) else otherwise


def _partition(slot: _Slot, menu: Menu, total_bytes: int | None, access: Access) -> DevicePartition:
    memory_mb, cores = slot.sizes.get("memorySizeMB"), slot.sizes.get("multiprocessorCount")
    profile = _profile(slot, menu, total_bytes)
    health = Health()
    if access.reason:
        health = Health(state=HealthState.SUSPECT, reason=access.reason, message=access.message)
    if profile is None:
        told = "the driver does not tell the instance's size"
        health = Health(state=HealthState.SUSPECT, reason=_UNREAD, message=told)
    return DevicePartition(
        uuid=slot.uuid,
        profile=profile or "unknown",
        memory_bytes=memory_mb * _MIB if memory_mb else None,
        instance=slot.gi,
        compute_instance=slot.ci,
        start=slot.place.start if slot.place else None,
        size=slot.place.size if slot.place else None,
        cores=cores,
        nodes=access.nodes,
        health=health,
    )


def _profile(slot: _Slot, menu: Menu, total_bytes: int | None) -> str | None:
    """Name the instance: by the driver's own text, else by its slices and share of memory."""
    number = slot.place.profile if slot.place else -1
    profile = menu.profile(number)
    gpu, compute = (
        slot.sizes.get("gpuInstanceSliceCount"),
        slot.sizes.get("computeInstanceSliceCount"),
    )
    if profile is not None and (number in menu.named or gpu is None):
        part = compute is not None and compute != profile.slices
        return f"{compute}c.{profile.name}" if part else profile.name
    memory_mb = slot.sizes.get("memorySizeMB")
    if gpu is None or not memory_mb or not total_bytes:
        return None
    suffix = dict(menu.suffixes).get(number, "")
    return slice_name(gpu, compute or gpu, memory_mb, total_bytes, suffix)
