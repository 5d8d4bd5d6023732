"""Kubernetes quantities: canonical rendering, parsing, and the form that an API server returns."""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")

_DECIMAL_SUFFIXES = ("", "k", "M", "G", "T", "P", "E")


def _fold(value: int, factor: int, suffixes: tuple[str, ...]) -> str:
    if value % factor:  # nearly every measured value
        return str(value)
    step = 0
    while value and value % factor == 0 and step < len(suffixes) - 1:
        value //= factor
        step += 1
    return f"{value}{suffixes[step]}"


def format_binary(value_bytes: int) -> str:
    """Format bytes as BinarySI: the largest suffix that divides exactly (81559Mi, 1000, 0)."""
    return _fold(value_bytes, 1024, _BINARY_SUFFIXES)


def format_decimal(value: int) -> str:
    """Format a count as DecimalSI with factors of 1000 folded: 24, 1k."""
    return _fold(value, 1000, _DECIMAL_SUFFIXES)


def format_milli(value: float) -> str:
    """Format cores as DecimalSI with milli precision, truncated: 38.25 is 38250m, 46.0 is 46."""
    # the rounding guards against 0.0009999999 of a float that stands for 1m
    thousandths = int(round(value * 1e6) // 1000)
    return f"{thousandths}m" if thousandths % 1000 else format_decimal(thousandths // 1000)


MAX_TEXT = 63

MAX_VALUE = 2**63 - 1

_QUANTITY = re.compile(
    r"\+?([0-9]*)(?:\.([0-9]*))?(?:(Ki|Mi|Gi|Ti|Pi|Ei)|([numkMGTPE]?)|[eE]([+-]?[0-9]{1,2}))"
)

_BINARY_UNITS = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_UNITS = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_NANO = 10**9
MAX_EXPONENT = 30

_SIGNED_QUANTITY = re.compile(
    r"([+-]?[0-9]{1,40}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?"
)

_FACTORS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** (i + 1) for i, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Decimal(1024) ** (i + 1) for i, suffix in enumerate("KMGTPE")},
}


class Quantity(msgspec.Struct, frozen=True):
    """A quantity that is not negative."""

    value: int  # rounded up, as Kubernetes does
    text: str  # canonical


def parse_quantity(text: str) -> Quantity | None:
    """Parse a quantity; `None` if it is invalid, negative or exceeds 63 bits.

    The text is that of apimachinery's `Quantity.String`: `65536Mi` is `64Gi`, `1000` is `1k`. Parts
    of a byte or of a billionth are rounded up.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None or not (match[1] or match[2]):
        return None
    digits, places = int((match[1] or "") + (match[2] or "")), len(match[2] or "")
    if match[3]:
        value = _round_up(digits << 10 * (1 + _BINARY_UNITS.index(match[3])), 10**places)
        canonical = format_binary(value) if value >= 1024 else _format_nano(value * _NANO)
    else:
        power = (
            3 * (_DECIMAL_UNITS.index(match[4] or "") - 3) if match[5] is None else int(match[5])
        )
        nano = _round_up(digits * 10 ** max(0, 9 + power), 10 ** (places + max(0, -9 - power)))
        value = _round_up(nano, _NANO)
        canonical = _format_nano(nano) if match[5] is None else text.removeprefix("+")
    return Quantity(value, canonical) if value <= MAX_VALUE else None


def _round_up(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _format_nano(nano: int) -> str:
    if not nano:
        return "0"
    step = 0
    while nano % 1000 == 0 and step < len(_DECIMAL_UNITS) - 1:
        nano //= 1000
        step += 1
    return f"{nano}{_DECIMAL_UNITS[step]}"


def parse_amount(text: str) -> Decimal | None:
    """Return a quantity's exact value, which may be negative; `None` if it is invalid."""
    match = _SIGNED_QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _FACTORS or not suffix:
        return number * _FACTORS.get(suffix, Decimal(1))
    exponent = int(suffix[1:])
    return number.scaleb(exponent) if abs(exponent) <= MAX_EXPONENT else None
