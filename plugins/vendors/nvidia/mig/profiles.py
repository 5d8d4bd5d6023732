"""MIG profiles of a card, and the placements where one more instance fits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.mig import (
    GpuInstanceInfo,
    GpuInstanceProfileInfo,
    gpu_instances,
    placements,
    profile_info,
)
from plugins.vendors.nvidia.mig.profile_names import (
    PROFILES,
    driver_profile_name,
    slice_name,
    slices_of,
)

FreeStarts = tuple[tuple[str, tuple[int, ...]], ...]  # profile: first memory slices of free places


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile that a card offers. A place is a start and a size in memory slices."""

    name: str
    id: int  # the number that the driver uses
    slices: int  # compute slices
    max_instances: int  # on one card
    places: tuple[tuple[int, int], ...] | None = None  # None: unknown without rights


class InstancePlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The placement of a GPU instance that exists or is planned."""

    profile: int  # `MigProfile.id`
    start: int
    size: int
    slices: int


def compute_slices(profiles: Sequence[MigProfile]) -> int:
    """Return the card's number of compute slices, which is that of its largest profile."""
    return max((profile.slices for profile in profiles), default=0)


def free_starts(
    profile: MigProfile, used: Sequence[InstancePlacement], slices: int
) -> tuple[int, ...]:
    """Return the starts of free placements on a card with `slices` compute slices, ascending."""
    existing = sum(item.profile == profile.id for item in used)
    free_compute_slices = slices - sum(item.slices for item in used)
    if existing >= profile.max_instances or free_compute_slices < profile.slices:
        return ()
    return tuple(
        sorted(
            {
                start
                for start, size in profile.places or ()
                if all(
                    start + size <= item.start or item.start + item.size <= start for item in used
                )
            }
        )
    )


def free_slices(profiles: Sequence[MigProfile], used: Sequence[InstancePlacement]) -> FreeStarts:
    """Return the free starts of each profile that still fits, in the order of the profiles."""
    slices = compute_slices(profiles)
    candidates = ((profile.name, free_starts(profile, used, slices)) for profile in profiles)
    return tuple((name, starts) for name, starts in candidates if starts)


class MigProfileTable(msgspec.Struct, frozen=True, kw_only=True):
    """The profiles of one card and its existing GPU instances."""

    profiles: tuple[MigProfile, ...] = ()
    suffixes: tuple[tuple[int, str], ...] = ()  # (profile's number, suffix of its name)
    driver_named: frozenset[int] = frozenset()  # profiles whose name the driver reports
    occupied: tuple[InstancePlacement, ...] | None = None  # None: unknown

    def profile(self, number: int) -> MigProfile | None:
        """Return the profile with that number."""
        return next((profile for profile in self.profiles if profile.id == number), None)


def read_profile_table(card: NvmlCard, total_bytes: int | None) -> MigProfileTable:
    """Read all profiles; one that the card does not have or does not report is left out."""
    profiles: list[MigProfile] = []
    suffixes: dict[int, str] = {}
    driver_named: set[int] = set()
    for index in range(PROFILES):
        info = profile_info(card.nvml, card.handle, index)
        if info is None or info.id in suffixes or info.slices < 1:
            continue
        suffixes[info.id] = slices_of(index)[1]
        driver_name = driver_profile_name(info.name)
        name = driver_name or _profile_name(info, total_bytes, suffixes[info.id])
        if driver_name:
            driver_named.add(info.id)
        places = placements(card.nvml, card.handle, info.id)
        profiles.append(
            MigProfile(
                name=name,
                id=info.id,
                slices=info.slices,
                max_instances=info.max_instances,
                places=places,
            )
        )
    return MigProfileTable(
        profiles=tuple(profiles),
        suffixes=tuple(suffixes.items()),
        driver_named=frozenset(driver_named),
        occupied=_read_placements(card, profiles),
    )


def _profile_name(info: GpuInstanceProfileInfo, total_bytes: int | None, suffix: str) -> str:
    if not total_bytes or info.memory_mb < 1:
        return f"{info.slices}g{suffix}"
    return slice_name(info.slices, info.slices, info.memory_mb, total_bytes, suffix)


def _read_placements(
    card: NvmlCard, profiles: Sequence[MigProfile]
) -> tuple[InstancePlacement, ...] | None:
    occupied: list[InstancePlacement] = []
    for profile in profiles:
        infos = gpu_instances(card.nvml, card.handle, profile.id, profile.max_instances)
        if infos is None:
            return None
        occupied += [placement_of(info, profile) for info in infos]
    return tuple(occupied)


def placement_of(info: GpuInstanceInfo, profile: MigProfile | None) -> InstancePlacement:
    """Return the placement of a GPU instance."""
    return InstancePlacement(
        profile=info.profile,
        start=info.start,
        size=info.size,
        slices=profile.slices if profile is not None else 0,
    )
