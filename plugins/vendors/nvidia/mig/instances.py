"""The MIG instances of one card: profile, placement, device files, events, annotation."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from agent.snapshot.device import DevicePartition, Health, HealthState, VendorDevice
from agent.snapshot.inventory import Problem
from plugins.vendors.nvidia.library import bounds
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.mig import GpuInstanceInfo, call_or_none, instance_info
from plugins.vendors.nvidia.mig.capabilities import InstanceAccess, MigCapabilities
from plugins.vendors.nvidia.mig.profile_names import old_uuid, slice_name
from plugins.vendors.nvidia.mig.profiles import (
    FreeStarts,
    InstancePlacement,
    MigProfileTable,
    free_slices,
    placement_of,
    read_profile_table,
)

MAX_INSTANCES = 56  # eight GPU instances of seven compute instances

_MIB = 1 << 20

_SIZE = (1, bounds.MAX_BYTES // _MIB)  # of memory in MiB, and of whatever else an instance has

_INSTANCE_UNREAD = "InstanceUnread"

_MEMBERS = (
    *("memorySizeMB", "multiprocessorCount"),
    *("gpuInstanceSliceCount", "computeInstanceSliceCount"),
)


class MigLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What MIG made of one card, and what is odd about it."""

    partitions: tuple[DevicePartition, ...] = ()  # by GPU instance and compute instance
    free: FreeStarts = ()
    problems: tuple[Problem, ...] = ()


class _MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What one MIG handle says; numbers are `None` where the driver does not tell."""

    uuid: str
    gi: int | None
    ci: int | None
    place: GpuInstanceInfo | None
    sizes: dict[str, int]  # attributes by name, as far as they are told


def read_mig_layout(
    card: NvmlCard, total_bytes: int | None, minor: int | None, caps: MigCapabilities
) -> MigLayout:
    """List the MIG devices of a card and what still fits; a bad slot hides no other.

    Slots are empty when instances go while we look. An instance without a UUID cannot be given
    to anybody and is left out with a problem, as is a second one with the same UUID.
    """
    menu = read_profile_table(card, total_bytes)
    count = min(card.number("nvmlDeviceGetMaxMigDeviceCount") or 0, MAX_INSTANCES)
    parts: dict[str, DevicePartition] = {}
    problems: list[Problem] = []
    places: dict[int, InstancePlacement] = {}
    for number in range(count):
        handle = call_or_none(card.nvml, "nvmlDeviceGetMigDeviceHandleByIndex", card.handle, number)
        slot = _slot(card, handle) if handle is not None else None
        if handle is None:
            continue
        if slot is None or slot.uuid in parts:
            told = "has no UUID" if slot is None else f"repeats {slot.uuid}"
            message = f"{card.bus_id}: MIG slot {number} {told}"
            problems.append(Problem(reason=_INSTANCE_UNREAD, message=message))
            continue
        if slot.place is not None:
            places[slot.place.id] = placement_of(slot.place, menu.profile(slot.place.profile))
        access = caps.access(minor, slot.gi, slot.ci)
        parts[slot.uuid] = _partition(slot, menu, total_bytes, access)
    used = menu.occupied if menu.occupied is not None else tuple(places.values())
    told_all = menu.occupied is not None or _all_placed(parts.values())
    return MigLayout(
        partitions=tuple(sorted(parts.values(), key=_order)),
        free=free_slices(menu.profiles, used) if told_all else (),
        problems=tuple(problems),
    )


def _order(part: DevicePartition) -> tuple[int, int, str]:
    gi = part.instance if part.instance is not None else MAX_INSTANCES
    return gi, part.compute_instance if part.compute_instance is not None else 0, part.uuid


def _all_placed(parts: Iterable[DevicePartition]) -> bool:
    return all(part.start is not None for part in parts)


def _slot(card: NvmlCard, handle: object) -> _MigDevice | None:
    nvml = card.nvml
    uuid = call_or_none(nvml, "nvmlDeviceGetUUID", handle)
    if not isinstance(uuid, str) or not uuid.strip():
        return None
    told = old_uuid(uuid)
    gi = _number(
        call_or_none(nvml, "nvmlDeviceGetGpuInstanceId", handle), told[1] if told else None
    )
    ci = _number(
        call_or_none(nvml, "nvmlDeviceGetComputeInstanceId", handle), told[2] if told else None
    )
    instance = (
        call_or_none(nvml, "nvmlDeviceGetGpuInstanceById", card.handle, gi) if gi is not None else 0
    )
    return _MigDevice(
        uuid=uuid.strip(),
        gi=gi,
        ci=ci,
        place=instance_info(nvml, instance) if instance else None,
        sizes=_sizes(card, handle),
    )


def _sizes(card: NvmlCard, handle: object) -> dict[str, int]:
    """Return what an instance has, by the driver's names; 0 is as good as not told."""
    name = "nvmlDeviceGetAttributes_v2"
    found = call_or_none(card.nvml, name, handle)
    told = ((member, int(getattr(found, member, 0))) for member in _MEMBERS)
    return {m: n for m, n in told if n and card.within(f"{name} {m}", n, _SIZE) is not None}


def _number(found: object, otherwise: int | None) -> int | None:
    return found if isinstance(found, int) else otherwise


def _partition(
    slot: _MigDevice, menu: MigProfileTable, total_bytes: int | None, access: InstanceAccess
) -> DevicePartition:
    memory_mb, cores = slot.sizes.get("memorySizeMB"), slot.sizes.get("multiprocessorCount")
    profile = _profile(slot, menu, total_bytes)
    health = Health()
    if access.reason:
        health = Health(state=HealthState.SUSPECT, reason=access.reason, message=access.message)
    if profile is None:
        told = "the driver does not tell the instance's size"
        health = Health(state=HealthState.SUSPECT, reason=_INSTANCE_UNREAD, message=told)
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


def _profile(slot: _MigDevice, menu: MigProfileTable, total_bytes: int | None) -> str | None:
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


NO_INSTANCE = 0xFFFFFFFF  # an event's instance number when the driver cannot tell


def instances_of_event(
    partitions: Iterable[DevicePartition], gi: int, ci: int
) -> tuple[DevicePartition, ...]:
    """Return the instances that an event with these numbers is about.

    With both numbers that instance, with the GPU instance alone all compute instances in it,
    and with neither all of the card.
    """
    return tuple(
        part
        for part in partitions
        if gi == NO_INSTANCE or (part.instance == gi and ci in (NO_INSTANCE, part.compute_instance))
    )


MIG_ANNOTATION = "xpu-agent.io/mig"

MAX_ANNOTATION_BYTES = 32 * 1024

_ANNOTATION_MIB = 1 << 20


def mig_annotation(cards: Iterable[VendorDevice]) -> str:
    """Return the JSON by minor; empty if no card has instances or room for one.

    What does not fit into `MAX_BYTES` is left out whole: free places first, then everything.
    """
    cut = [c for c in cards if c.minor is not None and (c.partitions or c.free_slices)]
    for free in (True, False):
        document = {str(card.minor): _card_entry(card, free=free) for card in cut}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        if cut and len(text) <= MAX_ANNOTATION_BYTES:
            return text
    return ""


def _card_entry(card: VendorDevice, *, free: bool) -> dict[str, object]:
    entry: dict[str, object] = {
        "uuid": card.uuid,
        "instances": [_instance_entry(part) for part in card.partitions],
        "free": {name: list(starts) for name, starts in card.free_slices} if free else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _instance_entry(part: DevicePartition) -> dict[str, object]:
    told: dict[str, object] = {
        "uuid": part.uuid,
        "profile": part.profile,
        "gi": part.instance,
        "ci": part.compute_instance,
        "start": part.start,
        "size": part.size,
        "memoryMiB": part.memory_bytes // _ANNOTATION_MIB
        if part.memory_bytes is not None
        else None,
        "sm": part.cores,
    }
    return {key: value for key, value in told.items() if value is not None}
