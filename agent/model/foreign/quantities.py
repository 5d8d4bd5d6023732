"""Kubernetes quantities of other programs: their values, and the form an API server gives back."""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

from agent.model.quantity import binary

MAX_TEXT = 63
MAX_VALUE = 2**63 - 1

_QUANTITY = re.compile(
    r"\+?([0-9]*)(?:\.([0-9]*))?(?:(Ki|Mi|Gi|Ti|Pi|Ei)|([numkMGTPE]?)|[eE]([+-]?[0-9]{1,2}))"
)
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_NANO = 10**9

MAX_EXPONENT = 30
_ANY = re.compile(
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
    """Parse a quantity; `None` for what is none, is negative or exceeds 63 bits.

    The text is that of apimachinery's `Quantity.String`: `65536Mi` is `64Gi`, `1000` is `1k`.
    What is finer than a byte or a billionth is rounded up.
    """
    found = _QUANTITY.fullmatch(text) if len(text) <= MAX_TEXT else None
    if found is None or not (found[1] or found[2]):
        return None
    digits, places = int((found[1] or "") + (found[2] or "")), len(found[2] or "")
    if found[3]:
        value = _up(digits << 10 * (1 + _BINARY.index(found[3])), 10**places)
        shown = binary(value) if value >= 1024 else _decimal(value * _NANO)
    else:
        power = 3 * (_DECIMAL.index(found[4] or "") - 3) if found[5] is None else int(found[5])
        nano = _up(digits * 10 ** max(0, 9 + power), 10 ** (places + max(0, -9 - power)))
        value = _up(nano, _NANO)
        shown = _decimal(nano) if found[5] is None else text.removeprefix("+")
    return Quantity(value, shown) if value <= MAX_VALUE else None


def _up(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _decimal(nano: int) -> str:
    if not nano:
        return "0"
    step = 0
    while nano % 1000 == 0 and step < len(_DECIMAL) - 1:
        nano //= 1000
        step += 1
    return f"{nano}{_DECIMAL[step]}"


def amount(text: str) -> Decimal | None:
    """Return a quantity's exact value, of either sign; `None` for what is none."""
    match = _ANY.fullmatch(text)
    if match is None:
        return None
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _FACTORS or not suffix:
        return number * _FACTORS.get(suffix, Decimal(1))
    exponent = int(suffix[1:])
    return number.scaleb(exponent) if abs(exponent) <= MAX_EXPONENT else None
