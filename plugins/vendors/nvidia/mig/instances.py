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
_SIZE = (1, bounds.MAX_BYTES // _MIB)  # bounds of memory in MiB, and of all other attributes
_INSTANCE_UNREAD = "InstanceUnread"

_MEMBERS = (
    *("memorySizeMB", "multiprocessorCount"),
    *("gpuInstanceSliceCount", "computeInstanceSliceCount"),
)


class MigLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The MIG instances of one card, its free placements, and problems."""

    partitions: tuple[DevicePartition, ...] = ()  # by GPU instance and compute instance
    free: FreeStarts = ()
    problems: tuple[Problem, ...] = ()


class _MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The answers for one MIG handle; numbers are `None` if the driver does not report them."""

    uuid: str
    gi: int | None
    ci: int | None
    place: GpuInstanceInfo | None
    sizes: dict[str, int]  # attributes by name that the driver reports


def read_mig_layout(
    card: NvmlCard,
    total_bytes: int | None,
    minor: int | None,
    caps: MigCapabilities,
    before: VendorDevice | None = None,
) -> MigLayout:
    """List the MIG devices of a card and the free placements; a bad slot hides no other slot.

    A slot is empty if its instance vanishes during the reading. An instance without a UUID, or
    with the UUID of another one, cannot be allocated: it is left out and reported as a problem.
    If the number of slots cannot be read now, the layout is that of `before`.
    """
    slots = card.number("nvmlDeviceGetMaxMigDeviceCount")
    if slots is None and before is not None:
        return MigLayout(partitions=before.partitions, free=before.free_slices)
    count = min(slots or 0, MAX_INSTANCES)
    table = read_profile_table(card, total_bytes)
    parts: dict[str, DevicePartition] = {}
    problems: list[Problem] = []
    places: dict[int, InstancePlacement] = {}
    for number in range(count):
        handle = call_or_none(card.nvml, "nvmlDeviceGetMigDeviceHandleByIndex", card.handle, number)
        slot = _slot(card, handle) if handle is not None else None
        if handle is None:
            continue
        if slot is None or slot.uuid in parts:
            fault = "has no UUID" if slot is None else f"repeats {slot.uuid}"
            message = f"{card.bus_id}: MIG slot {number} {fault}"
            problems.append(Problem(reason=_INSTANCE_UNREAD, message=message))
            continue
        if slot.place is not None:
            places[slot.place.id] = placement_of(slot.place, table.profile(slot.place.profile))
        access = caps.access(minor, slot.gi, slot.ci)
        parts[slot.uuid] = _partition(slot, table, total_bytes, access)
    used = table.occupied if table.occupied is not None else tuple(places.values())
    is_complete = table.occupied is not None or _all_placed(parts.values())
    return MigLayout(
        partitions=tuple(sorted(parts.values(), key=_order)),
        free=free_slices(table.profiles, used) if is_complete else (),
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
    old_ids = old_uuid(uuid)
    gi = _number(
        call_or_none(nvml, "nvmlDeviceGetGpuInstanceId", handle), old_ids[1] if old_ids else None
    )
    ci = _number(
        call_or_none(nvml, "nvmlDeviceGetComputeInstanceId", handle),
        old_ids[2] if old_ids else None,
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
    """Return an instance's attributes by the driver's names; a value of 0 is left out."""
    name = "nvmlDeviceGetAttributes_v2"
    attributes = call_or_none(card.nvml, name, handle)
    sizes = ((member, int(getattr(attributes, member, 0))) for member in _MEMBERS)
    return {m: n for m, n in sizes if n and card.check_bounds(f"{name} {m}", n, _SIZE) is not None}


def _number(number: object, default: int | None) -> int | None:
    return number if isinstance(number, int) else default


def _partition(
    slot: _MigDevice, table: MigProfileTable, total_bytes: int | None, access: InstanceAccess
) -> DevicePartition:
    memory_mb, cores = slot.sizes.get("memorySizeMB"), slot.sizes.get("multiprocessorCount")
    profile = _profile(slot, table, total_bytes)
    health = Health()
    if access.reason:
        health = Health(state=HealthState.SUSPECT, reason=access.reason, message=access.message)
    if profile is None:
        message = "the driver does not tell the instance's size"
        health = Health(state=HealthState.SUSPECT, reason=_INSTANCE_UNREAD, message=message)
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


def _profile(slot: _MigDevice, table: MigProfileTable, total_bytes: int | None) -> str | None:
    """Return the profile's name: the driver's, else one from slices and share of memory."""
    number = slot.place.profile if slot.place else -1
    profile = table.profile(number)
    gpu, compute = (
        slot.sizes.get("gpuInstanceSliceCount"),
        slot.sizes.get("computeInstanceSliceCount"),
    )
    if profile is not None and (number in table.driver_named or gpu is None):
        part = compute is not None and compute != profile.slices
        return f"{compute}c.{profile.name}" if part else profile.name
    memory_mb = slot.sizes.get("memorySizeMB")
    if gpu is None or not memory_mb or not total_bytes:
        return None
    suffix = dict(table.suffixes).get(number, "")
    return slice_name(gpu, compute or gpu, memory_mb, total_bytes, suffix)


NO_INSTANCE = 0xFFFFFFFF  # instance number of an event whose instance is unknown


def instances_of_event(
    partitions: Iterable[DevicePartition], gi: int, ci: int
) -> tuple[DevicePartition, ...]:
    """Return the instances that an event with these numbers concerns.

    With both numbers this is one instance, with a GPU instance alone all compute instances in
    it, and with neither number all instances of the card.
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
    """Return the JSON by minor; empty if no card has instances or free placements.

    If the JSON exceeds `MAX_ANNOTATION_BYTES`, the free placements are left out; if it is still
    too long, the result is empty.
    """
    listed_cards = [c for c in cards if c.minor is not None and (c.partitions or c.free_slices)]
    for free in (True, False):
        document = {str(card.minor): _card_entry(card, with_free=free) for card in listed_cards}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        if listed_cards and len(text) <= MAX_ANNOTATION_BYTES:
            return text
    return ""


def _card_entry(card: VendorDevice, *, with_free: bool) -> dict[str, object]:
    entry: dict[str, object] = {
        "uuid": card.uuid,
        "instances": [_instance_entry(part) for part in card.partitions],
        "free": {name: list(starts) for name, starts in card.free_slices} if with_free else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _instance_entry(part: DevicePartition) -> dict[str, object]:
    entry: dict[str, object] = {
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
    return {key: value for key, value in entry.items() if value is not None}
