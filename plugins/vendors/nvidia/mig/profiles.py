"""MIG profiles and placements of a card: which fit, and how to place several. Pure."""

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

FreeStarts = tuple[tuple[str, tuple[int, ...]], ...]  # profile: memory slices where one may begin


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a card can make, as its driver says. A place is a start and a size in memory slices."""

    name: str
    id: int  # the driver's number
    slices: int  # compute slices
    most: int  # instances of it on one card
    places: tuple[tuple[int, int], ...] | None = None  # None: not told without rights


class InstancePlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that exists, or is planned."""

    profile: int  # `Profile.id`
    start: int
    size: int
    slices: int


def compute_slices(profiles: Sequence[MigProfile]) -> int:
    """Return how many compute slices the card has: what its largest profile takes."""
    return max((profile.slices for profile in profiles), default=0)


def free_starts(
    profile: MigProfile, used: Sequence[InstancePlacement], slices: int
) -> tuple[int, ...]:
    """Return where one more instance fits on a card of that many compute slices, ascending."""
    made = sum(item.profile == profile.id for item in used)
    left = slices - sum(item.slices for item in used)
    if made >= profile.most or left < profile.slices:
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
    """Return for each profile that still fits where, in the order of the profiles."""
    slices = compute_slices(profiles)
    found = ((profile.name, free_starts(profile, used, slices)) for profile in profiles)
    return tuple((name, starts) for name, starts in found if starts)


class MigProfileTable(msgspec.Struct, frozen=True, kw_only=True):
    """The profiles of one card, and the GPU instances it has."""

    profiles: tuple[MigProfile, ...] = ()
    suffixes: tuple[tuple[int, str], ...] = ()  # of names, by the driver's number
    named: frozenset[int] = frozenset()  # profiles whose name is the driver's own text
    occupied: tuple[InstancePlacement, ...] | None = None  # None: not told

    def profile(self, number: int) -> MigProfile | None:
        """Return a profile by the driver's number."""
        return next((profile for profile in self.profiles if profile.id == number), None)


def read_profile_table(card: NvmlCard, total_bytes: int | None) -> MigProfileTable:
    """Ask for every profile; one that the card has not, or will not tell, is left out."""
    profiles: list[MigProfile] = []
    suffixes: dict[int, str] = {}
    named: set[int] = set()
    for index in range(PROFILES):
        info = profile_info(card.nvml, card.handle, index)
        if info is None or info.id in suffixes or info.slices < 1:
            continue
        suffixes[info.id] = slices_of(index)[1]
        told = driver_profile_name(info.name)
        name = told or _profile_name(info, total_bytes, suffixes[info.id])
        if told:
            named.add(info.id)
        places = placements(card.nvml, card.handle, info.id)
        profiles.append(
            MigProfile(name=name, id=info.id, slices=info.slices, most=info.most, places=places)
        )
    return MigProfileTable(
        profiles=tuple(profiles),
        suffixes=tuple(suffixes.items()),
        named=frozenset(named),
        occupied=_read_placements(card, profiles),
    )


def _profile_name(info: GpuInstanceProfileInfo, total_bytes: int | None, suffix: str) -> str:
    if not total_bytes or info.memory_mb < 1:
        return f"{info.slices}g{suffix}"
    return slice_name(info.slices, info.slices, info.memory_mb, total_bytes, suffix)


def _read_placements(
    card: NvmlCard, profiles: Sequence[MigProfile]
) -> tuple[InstancePlacement, ...] | None:
    found: list[InstancePlacement] = []
    for profile in profiles:
        listed = gpu_instances(card.nvml, card.handle, profile.id, profile.most)
        if listed is None:
            return None
        found += [placement_of(info, profile) for info in listed]
    return tuple(found)


def placement_of(info: GpuInstanceInfo, profile: MigProfile | None) -> InstancePlacement:
    """Return the place that a GPU instance takes."""
    return InstancePlacement(
        profile=info.profile,
        start=info.start,
        size=info.size,
        slices=profile.slices if profile is not None else 0,
    )
