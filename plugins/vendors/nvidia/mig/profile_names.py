"""Builds and parses names of MIG profiles and instances as `nvidia-smi` spells them. Pure."""

from __future__ import annotations

import math
import re

import msgspec

from agent.errors import ParseError
from plugins.shared.resources import slice_resource_name

_MIB = 1 << 20
_GIB = 1 << 30
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_ATTRIBUTE = re.compile(r"[A-Za-z]([A-Za-z0-9.]*[A-Za-z0-9])?")
_OLD_UUID = re.compile(r"MIG-(GPU-[0-9A-Za-z-]{1,80})/([0-9]{1,4})/([0-9]{1,4})")

# query index of a GPU instance profile: compute slices and suffix of its name
_SLICES: dict[int, tuple[int, str]] = {
    0: (1, ""),
    1: (2, ""),
    2: (3, ""),
    3: (4, ""),
    4: (7, ""),
    5: (8, ""),
    6: (6, ""),
    7: (1, "+me"),
    8: (2, "+me"),
    9: (1, ""),
    10: (1, "+gfx"),
    11: (2, "+gfx"),
    12: (4, "+gfx"),
    13: (1, "-me"),
    14: (2, "-me"),
    15: (1, "+me.all"),
    16: (2, "+me.all"),
    17: (3, "+gfx"),
}
PROFILES = len(_SLICES)


class MigProfileName(msgspec.Struct, frozen=True, kw_only=True):
    """A profile's name in parts: `1c.3g.20gb+me` is one of three compute slices, 20 GB, `me`."""

    compute: int | None = None  # None: all compute slices of the GPU instance
    slices: int
    gigabytes: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def slices_of(profile: int) -> tuple[int, str]:
    """Return compute slices and name suffix of a GPU instance profile by its query index."""
    return _SLICES[profile]


def slice_name(
    gpu_slices: int, compute_slices: int, memory_mb: int, total_bytes: int, suffix: str = ""
) -> str:
    """Return a MIG instance's name from its slices, as `nvidia-smi` spells it.

    The memory in the name is the instance's share of the card in eighths, rounded up, times the
    card's size in whole GiB, rounded half away from zero.
    """
    eighths = math.ceil(8 * memory_mb * _MIB / total_bytes)
    size = math.floor(eighths / 8 * math.ceil(total_bytes / _GIB) + 0.5)
    compute = "" if compute_slices == gpu_slices else f"{compute_slices}c."
    return f"{compute}{gpu_slices}g.{size}gb{suffix}"


def driver_profile_name(text: str) -> str | None:
    """Return the name in the driver's text (`MIG 1g.10gb`); `None` if it holds no valid name."""
    name = text.removeprefix("MIG ").strip()
    try:
        parse_profile(name)
    except ParseError:
        return None
    return name


def parse_profile(text: str) -> MigProfileName:
    """Parse a profile's name; raises `ParseError` for any other text, also one with blanks."""
    mark = min((position for m in "+-" if (position := text.find(m)) >= 0), default=len(text))
    sizes, attributes = text[:mark].split("."), text[mark + 1 :].split(",")
    units = ("g", "gb") if len(sizes) == 2 else ("c", "g", "gb")
    if len(sizes) != len(units) or (mark < len(text) and not all(map(_is_attribute, attributes))):
        raise ParseError("MIG profile", text)
    numbers = [part.removesuffix(unit) for part, unit in zip(sizes, units, strict=True)]
    if any(
        not _NUMBER.fullmatch(number) or part != number + unit
        for part, number, unit in zip(sizes, numbers, units, strict=True)
    ):
        raise ParseError("MIG profile", text)
    names = tuple(attributes) if mark < len(text) else ()
    if len(set(names)) != len(names):
        raise ParseError("MIG profile", text)
    compute = int(numbers[0]) if len(units) == 3 else None
    added, removed = (names, ()) if text[mark : mark + 1] == "+" else ((), names)
    return MigProfileName(
        compute=compute,
        slices=int(numbers[-2]),
        gigabytes=int(numbers[-1]),
        added=added,
        removed=removed,
    )


def _is_attribute(text: str) -> bool:
    return _ATTRIBUTE.fullmatch(text) is not None


def old_uuid(text: str) -> tuple[str, int, int] | None:
    """Return card, GPU instance and compute instance from a UUID of drivers before 470.

    `None` for a UUID of newer drivers, which does not contain them.
    """
    match = _OLD_UUID.fullmatch(text)
    return (match[1], int(match[2]), int(match[3])) if match else None


def mig_resource_name(profile: str) -> str | None:
    """Return the resource for instances of a profile; `None` if the kubelet refuses its name."""
    return slice_resource_name(profile, "nvidia.com/mig-")
