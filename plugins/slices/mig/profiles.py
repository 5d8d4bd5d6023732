"""What a card can be cut into and what occupies it, as its driver tells."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.instances import (
    InstanceInfo,
    ProfileInfo,
    gpu_instances,
    placements,
    profile_info,
)
from plugins.slices.mig.names import PROFILES, own_name, slice_name, slices_of
from plugins.slices.mig.placements import Occupied, Profile


class Menu(msgspec.Struct, frozen=True, kw_only=True):
    """The profiles of one card, and the GPU instances it has."""

    profiles: tuple[Profile, ...] = ()
    suffixes: tuple[tuple[int, str], ...] = ()  # of names, by the driver's number
    named: frozenset[int] = frozenset()  # profiles whose name is the driver's own text
    occupied: tuple[Occupied, ...] | None = None  # None: not told

    def profile(self, number: int) -> Profile | None:
        """Return a profile by the driver's number."""
        return next((profile for profile in self.profiles if profile.id == number), None)


def read_menu(card: Card, total_bytes: int | None) -> Menu:
    """Ask for every profile; one that the card has not, or will not tell, is left out."""
    profiles: list[Profile] = []
    suffixes: dict[int, str] = {}
    named: set[int] = set()
    for index in range(PROFILES):
        info = profile_info(card.nvml, card.handle, index)
        if info is None or info.id in suffixes or info.slices < 1:
            continue
        suffixes[info.id] = slices_of(index)[1]
        told = own_name(info.name)
        name = told or _formula(info, total_bytes, suffixes[info.id])
        if told:
            named.add(info.id)
        places = placements(card.nvml, card.handle, info.id)
        profiles.append(
            Profile(name=name, id=info.id, slices=info.slices, most=info.most, places=places)
        )
    return Menu(
        profiles=tuple(profiles),
        suffixes=tuple(suffixes.items()),
        named=frozenset(named),
        occupied=_occupied(card, profiles),
    )


def _formula(info: ProfileInfo, total_bytes: int | None, suffix: str) -> str:
    if not total_bytes or info.memory_mb < 1:
        return f"{info.slices}g{suffix}"
    return slice_name(info.slices, info.slices, info.memory_mb, total_bytes, suffix)


def _occupied(card: Card, profiles: Sequence[Profile]) -> tuple[Occupied, ...] | None:
    found: list[Occupied] = []
    for profile in profiles:
        listed = gpu_instances(card.nvml, card.handle, profile.id, profile.most)
        if listed is None:
            return None
        found += [occupant(info, profile) for info in listed]
    return tuple(found)


def occupant(info: InstanceInfo, profile: Profile | None) -> Occupied:
    """Return the place that a GPU instance takes."""
    return Occupied(
        profile=info.profile,
        start=info.start,
        size=info.size,
        slices=profile.slices if profile is not None else 0,
    )
