"""Kubernetes quantities in canonical form, so that a second writer sees no difference."""

from __future__ import annotations

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")


def _fold(value: int, factor: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while value and value % factor == 0 and step < len(suffixes) - 1:
        value //= factor
        step += 1
    return f"{value}{suffixes[step]}"


def binary(value_bytes: int) -> str:
    """Format bytes as BinarySI: the largest suffix that divides exactly (81559Mi, 1000, 0)."""
    return _fold(value_bytes, 1024, _BINARY)


def decimal(value: int) -> str:
    """Format a count as DecimalSI with factors of 1000 folded: 24, 1k."""
    return _fold(value, 1000, _DECIMAL)


def milli(value: float) -> str:
    """Format cores as DecimalSI with milli precision, truncated: 38.25 is 38250m, 46.0 is 46."""
    # the rounding guards against 0.0009999999 of a float that stands for 1m
    thousandths = int(round(value * 1e6) // 1000)
    return decimal(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"
