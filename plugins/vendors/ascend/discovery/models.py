"""Families, model names and sizes of chip models. Pure."""

from __future__ import annotations

import re

import msgspec

A3, A5, B910, A910, P310, B310, S310 = "A3", "A5", "910B", "910A", "310P", "310B", "310"
UNKNOWN = "unknown"
WITH_HBM = (A910, B910, A3)

_A3_BOARDS = frozenset((0xB0, 0xB1, 0xB2, 0xB3, 0xB4, 0x81, 0x83, 0xD1, 0xD3))
PCIE_BOARDS = frozenset((0x28, 0x29, 0x33, 0x3C, 0x69))  # 910B boards without HCCS
BY_PCI_DEVICE: dict[int, str] = {
    0xD803: A3,
    0xD802: B910,
    0xD801: A910,
    0xD500: P310,
    0xD100: S310,
}
_310P = re.compile(r"310P\d?|I2\d?")
_910B = re.compile(r"(?:910B|A2G)\d")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")
DUO = "Atlas 300I Duo"
DUO_MODEL = "Ascend-310P3-300I-DUO"  # the value that Koordinator's scheduler knows
MAX_LABEL = 63


class ChipModel(msgspec.Struct, frozen=True):
    """Sizes from the maker's documents; `None` is not documented."""

    cores: int | None
    cpus: int | None
    memory_mb: int | None


MODELS: dict[str, ChipModel] = {
    "910": ChipModel(None, 0, 32768),
    "910A": ChipModel(None, 0, 32768),
    "910B": ChipModel(None, 0, 32768),
    "910ProA": ChipModel(None, 0, 32768),
    "910ProB": ChipModel(None, 0, 32768),
    "910B1": ChipModel(None, None, 65536),
    "910B2": ChipModel(24, 6, 65536),
    "910B3": ChipModel(20, 7, 65536),
    "910B4": ChipModel(20, 7, 32768),
    "910B4-1": ChipModel(20, 7, 65536),
    "910C": ChipModel(None, 7, 65536),
    "310P3": ChipModel(8, 7, 21527),
}


def short_name(name: str) -> str:
    """Return the driver's name of a chip without the prefix `Ascend`."""
    return name.removeprefix("Ascend").strip(" -")


def family_of(name: str | None, board_id: int | None, pci_device: int | None) -> str:
    """Return the family of a chip from its board, its name, or its PCI device id.

    The name `910B` without a digit belongs to the first generation (910A).
    """
    short = short_name(name or "")
    if board_id in _A3_BOARDS:
        return A3
    if short.startswith("950"):
        return A5
    if _310P.match(short):
        return P310
    if "310" in short:
        return B310 if "310B" in short else S310
    if _910B.match(short):
        return B910
    device_family = BY_PCI_DEVICE.get(pci_device if pci_device is not None else -1)
    return device_family or (A910 if short.startswith("910") else UNKNOWN)


def model_of(family: str, name: str | None) -> str:
    """Return the chip's key in `MODELS` and in the vNPU templates."""
    short = short_name(name or "")
    return "910C" if family == A3 and short in ("", "910") else short


def model_label(family: str, name: str | None, product: str | None) -> str | None:
    """Return the value of the label `gpu-model`; `None` for a chip without a name."""
    if family == P310 and product == DUO:
        return DUO_MODEL
    short = model_of(family, name)
    if not short:
        return None
    return _UNFIT.sub("-", f"Ascend-{short}")[:MAX_LABEL].rstrip("._-")


def template_model(family: str, name: str | None) -> str:
    """Return the chip's key in the table of vNPU templates."""
    return A910 if family == A910 else model_of(family, name)
