"""Converts NVIDIA's bus ids and model names to the agent's spelling. Pure."""

from __future__ import annotations

import re

from agent.errors import ParseError
from agent.snapshot.pci import parse_address

MAX_LABEL = 63  # characters of a Kubernetes label value
_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
_INTEGRATED = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra|Jetson)\b|\(nvgpu\)", re.IGNORECASE)
_ENDS = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$")

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


def bus_id(text: str) -> str | None:
    """Return NVML's bus id as sysfs writes it (`00000000:3B:00.0` is `0000:3b:00.0`)."""
    try:
        address = parse_address(text)
    except ParseError:
        return None
    # NVML pads domains to eight digits; all zeros mean that there is no remote device
    return address if address != "0000:00:00.0" else None


def model_label(name: str) -> str | None:
    """Return a product name as a label value: `NVIDIA H100 80GB HBM3` is `H100-80GB-HBM3`."""
    text = _NOT_IN_LABEL.sub("-", name.removeprefix("NVIDIA ").replace(" ", "-"))
    return _ENDS.sub("", _ENDS.sub("", text)[:MAX_LABEL]) or None


def is_integrated(name: str) -> bool:
    """Return whether the product is a GPU that shares the machine's memory."""
    return _INTEGRATED.search(name) is not None


def cuda_version(number: int) -> str:
    """Format NVML's CUDA version: 12080 is 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}"
