"""Names of MIG profiles, made as `nvidia-smi` makes them. Pure."""

from __future__ import annotations

import math

_MIB = 1 << 20
_GIB = 1 << 30

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


def slices_of(profile: int) -> tuple[int, str]:
    """Return compute slices and name suffix of a GPU instance profile by its query index."""
    return _SLICES[profile]


def slice_name(
    gpu_slices: int, compute_slices: int, memory_mb: int, total_bytes: int, suffix: str = ""
) -> str:
    """Name a MIG instance from its slices, as `nvidia-smi` does.

    The memory in the name is the share of the card in eighths, rounded up, times the card's
    size in whole GiB, rounded half away from zero.
    """
    eighths = math.ceil(8 * memory_mb * _MIB / total_bytes)
    size = math.floor(eighths / 8 * math.ceil(total_bytes / _GIB) + 0.5)
    compute = "" if compute_slices == gpu_slices else f"{compute_slices}c."
    return f"{compute}{gpu_slices}g.{size}gb{suffix}"
