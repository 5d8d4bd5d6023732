"""Cleans text for the API server, which refuses an object with one invalid character."""

from __future__ import annotations

import math
import re

from agent.clock import rfc3339
from agent.wire_formats.foreign_text import condition_reason

MAX_LABEL = 63
MAX_MESSAGE = 1024  # the schema allows 32768
MAX_TEXT = 253

_NOT_LABEL = re.compile(r"[^-A-Za-z0-9_.]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]+")
_QUANTITY = re.compile(
    r"(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?"
)
TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")  # as `time_text` writes it
_YEAR_10000_S = 253_402_300_800
_NUMBER = re.compile(r"[+-]?[0-9.]*")  # of a quantity, before its suffix


def label_value(text: str) -> str:
    """Return a valid label value: others become `-`, ends are alphanumeric; maybe empty."""
    return _NOT_LABEL.sub("-", text).strip("-_.")[:MAX_LABEL].rstrip("-_.")


def reason_text(text: str) -> str:
    """Return a valid condition reason: words joined in CamelCase, `chip error` is `ChipError`."""
    return condition_reason(text)


def condition_message(text: str, original_reason: str) -> str:
    """Return a bounded message; a reason that had to be changed is kept in it word by word."""
    changed = reason_text(original_reason) != original_reason
    if changed and original_reason.strip() and original_reason not in text:
        text = f"{text} ({original_reason})" if text else original_reason
    return clean_text(text, MAX_MESSAGE)


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return text without control characters and lone surrogates, at most `limit` long."""
    cleaned = text.encode("utf-8", "replace").decode() if not text.isascii() else text
    return _CONTROL.sub(" ", cleaned)[:limit].strip()


def valid_quantity(text: str) -> str | None:
    """Return a Kubernetes quantity unchanged; `None` for what an API server would refuse."""
    return text if len(text) <= MAX_LABEL and _QUANTITY.fullmatch(text) else None


def is_positive_quantity(text: str) -> bool:
    """Return whether a text is a quantity greater than 0."""
    number = _NUMBER.match(text)
    return (
        valid_quantity(text) is not None
        and number is not None
        and not text.startswith("-")
        and any(digit in "123456789" for digit in number[0])
    )


def as_int32(value: int | None) -> int | None:
    """Return a number that fits the wire's int32; `None` for any other."""
    return value if value is not None and -(1 << 31) <= value < 1 << 31 else None


def format_time(wall_s: float | None) -> str | None:
    """Format a Unix time; `None` for one that no calendar holds."""
    if wall_s is not None and math.isfinite(wall_s) and 0 <= wall_s < _YEAR_10000_S:
        return rfc3339(wall_s)
    return None


def format_first_time(*candidates_s: float | None) -> str:
    """Format the first Unix time that a calendar holds; the epoch if none does."""
    formatted = (format_time(wall_s) for wall_s in candidates_s)
    return next((text for text in formatted if text is not None), rfc3339(0.0))
