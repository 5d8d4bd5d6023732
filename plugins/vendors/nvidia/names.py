"""NVIDIA's spellings and ours: bus ids, model labels, profiles of MIG instances. Pure."""

from __future__ import annotations

import math
import re

from agent.errors import ParseError
from agent.topology.address import parse_address

MAX_LABEL = 63  # characters of a Kubernetes label value
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_ENDS = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$")
_MIB = 1 << 20
_GIB = 1 << 30

ARCHITECTURES: dict[int, str] = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

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


def bus_id(text: str) -> str | None:
    """Return NVML's bus id as sysfs writes it (`00000000:3B:00.0` is `0000:3b:00.0`)."""
    try:
        address = parse_address(text)
    except ParseError:
        return None
    # NVML pads domains to eight digits; all zero means that there is no remote
    return address if address != "0000:00:00.0" else None


def model_label(name: str) -> str | None:
    """Make a product name fit a label value: `NVIDIA H100 80GB HBM3` is `H100-80GB-HBM3`."""
    text = _FOREIGN.sub("-", name.removeprefix("NVIDIA ").replace(" ", "-"))
    return _ENDS.sub("", _ENDS.sub("", text)[:MAX_LABEL]) or None


def cuda_version(number: int) -> str:
    """Format NVML's CUDA version: 12080 is 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}"


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
