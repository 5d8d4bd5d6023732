"""Foreign text made fit for an API server, which refuses a whole object for one bad character."""

from __future__ import annotations

import math
import re

from agent.clock import rfc3339
from agent.model.foreign.reasons import reason_of

MAX_LABEL = 63
MAX_MESSAGE = 1024  # the schema allows 32768
MAX_TEXT = 253

_NOT_LABEL = re.compile(r"[^-A-Za-z0-9_.]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]+")
_QUANTITY = re.compile(
    r"(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?"
)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")  # as `time_text` writes it
_YEAR_10000_S = 253_402_300_800
_NUMBER = re.compile(r"[+-]?[0-9.]*")  # of a quantity, before its suffix


def label_value(text: str) -> str:
    """Return a valid label value: others become `-`, ends are alphanumeric; maybe empty."""
    return _NOT_LABEL.sub("-", text).strip("-_.")[:MAX_LABEL].rstrip("-_.")


def reason(text: str) -> str:
    """Return a valid condition reason: words joined in CamelCase, `chip error` is `ChipError`."""
    return reason_of(text)


def message(text: str, original_reason: str) -> str:
    """Return a bounded message; a reason that had to be changed is kept in it word by word."""
    changed = reason(original_reason) != original_reason
    if changed and original_reason.strip() and original_reason not in text:
        text = f"{text} ({original_reason})" if text else original_reason
    return plain(text, MAX_MESSAGE)


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """Return text without control characters and lone surrogates, at most `limit` long."""
    cleaned = text.encode("utf-8", "replace").decode() if not text.isascii() else text
    return _CONTROL.sub(" ", cleaned)[:limit].strip()


def quantity(text: str) -> str | None:
    """Return a Kubernetes quantity unchanged; `None` for what an API server would refuse."""
    return text if len(text) <= MAX_LABEL and _QUANTITY.fullmatch(text) else None


def is_some(text: str) -> bool:
    """Say whether a text is a quantity of more than nothing."""
    number = _NUMBER.match(text)
    return (
        quantity(text) is not None
        and number is not None
        and not text.startswith("-")
        and any(digit in "123456789" for digit in number[0])
    )


def int32(value: int | None) -> int | None:
    """Return a number that fits the wire's int32; `None` for any other."""
    return value if value is not None and -(1 << 31) <= value < 1 << 31 else None


def known_time(wall_s: float | None) -> str | None:
    """Format a Unix time; `None` for one that no calendar holds."""
    if wall_s is not None and math.isfinite(wall_s) and 0 <= wall_s < _YEAR_10000_S:
        return rfc3339(wall_s)
    return None


def time_text(*candidates_s: float | None) -> str:
    """Format the first Unix time that a calendar holds; the epoch if none does."""
    known = (known_time(wall_s) for wall_s in candidates_s)
    return next((text for text in known if text is not None), rfc3339(0.0))
