"""Arithmetic of sMLU slices: units of memory, profiles, handles, and what a grant asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from agent.errors import AgentError, ParseError

MIB = 1 << 20
_PROFILE = re.compile(r"(\d{1,3})_(\d{1,3})_(\d{1,6})")


class SliceRefused(AgentError):
    """A slice of that size cannot be; the message says why."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A slice: percent of the cores and units of memory of one card."""

    card: int
    core_percent: int
    units: int

    @property
    def text(self) -> str:
        """Spell it as the annotation of the profile does."""
        return f"{self.card}_{self.core_percent}_{self.units}"

    def memory_bytes(self, unit_mib: int) -> int:
        """Return the memory that the driver is asked for."""
        return self.units * unit_mib * MIB


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver cuts; `remain` slices of it are left."""

    id: int
    core_percent: int
    memory_bytes: int
    total: int
    remain: int


def unit_mib(setting: int, total_mib: int) -> int:
    """Return the unit of memory in MiB: as set, else a hundredth of the card's."""
    return setting if setting > 0 else total_mib // 100


def wanted(card: int, core_percent: int, memory_bytes: int, unit: int) -> tuple[Wanted, str]:
    """Return the slice for a grant and, if memory was lost by rounding down to units, a remark.

    Raises `SliceRefused` for cores outside 1 to 100 and memory of less than one unit.
    """
    if not 1 <= core_percent <= 100:
        raise SliceRefused(f"cores {core_percent} percent: a slice has 1 to 100 of one card")
    if unit < 1 or memory_bytes < unit * MIB:
        raise SliceRefused(f"memory {memory_bytes // MIB}Mi is less than one unit of {unit}Mi")
    units = memory_bytes // (unit * MIB)
    left = memory_bytes - units * unit * MIB
    remark = f"{units * unit}Mi of {memory_bytes // MIB}Mi: memory comes in units of {unit}Mi"
    return Wanted(card=card, core_percent=core_percent, units=units), remark if left else ""


def parse_profile(text: str) -> Wanted:
    """Read the annotation of a profile: card, percent of the cores, units of memory."""
    found = _PROFILE.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= 100 or not int(found[3]):
        raise ParseError("sMLU profile", text)
    return Wanted(card=int(found[1]), core_percent=int(found[2]), units=int(found[3]))


def handle_of(instance: int, card: int) -> int:
    """Return the driver's handle of an instance."""
    return instance << 8 | card


def choose(profiles: Iterable[Profile], core_percent: int, memory_bytes: int) -> Profile | None:
    """Return the profile to cut by, `None` if it has to be made first.

    Raises `SliceRefused` if it is there and none of it is left.
    """
    for profile in profiles:
        if (profile.core_percent, profile.memory_bytes) == (core_percent, memory_bytes):
            if profile.remain < 1:
                told = f"no free slot of this profile: all {profile.total} are taken"
                raise SliceRefused(told)
            return profile
    return None
