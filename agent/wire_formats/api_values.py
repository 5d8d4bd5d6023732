"""Values of objects as the API server accepts them: texts, numbers, times, the owner.

The API server refuses an object with one invalid character.
"""

from __future__ import annotations

import math
import re

from agent.clock import rfc3339
from agent.wire_formats.json_values import JsonDict

MAX_LABEL = 63
MAX_REASON = 128  # the schema allows 1024; people read it in a table
UNKNOWN_REASON = "Unknown"  # the reason of a device whose vendor gives none
MAX_MESSAGE = 1024  # the schema allows 32768
MAX_TEXT = 253

_NOT_LABEL = re.compile(r"[^-A-Za-z0-9_.]+")
_NOT_REASON = re.compile(r"[^A-Za-z0-9_,:]+")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]+")
_QUANTITY = re.compile(
    r"(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?"
)
TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")  # as `format_time` writes it
_YEAR_10000_S = 253_402_300_800
_NUMBER = re.compile(r"[+-]?[0-9.]*")  # of a quantity, before its suffix


def label_value(text: str) -> str:
    """Return a valid label value: others become `-`, ends are alphanumeric; maybe empty."""
    return _NOT_LABEL.sub("-", text).strip("-_.")[:MAX_LABEL].rstrip("-_.")


def condition_reason(text: str) -> str:
    """Return a valid condition reason: words joined in CamelCase, `chip error` is `ChipError`."""
    if len(text) <= MAX_REASON and _REASON.fullmatch(text):
        return text
    words = [word for word in _NOT_REASON.split(text) if word]
    joined = "".join(word[0].upper() + word[1:] for word in words).strip(",:_")
    if not joined:
        return UNKNOWN_REASON
    if not joined[0].isalpha():
        joined = f"Code{joined}"
    return joined[:MAX_REASON].rstrip(",:_")


def condition_message(text: str, original_reason: str) -> str:
    """Return a bounded message; it contains a reason that had to be changed, unchanged."""
    changed = condition_reason(original_reason) != original_reason
    if changed and original_reason.strip() and original_reason not in text:
        text = f"{text} ({original_reason})" if text else original_reason
    return clean_text(text, MAX_MESSAGE)


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return text without control characters and lone surrogates, cut to `limit` characters."""
    cleaned = text.encode("utf-8", "replace").decode() if not text.isascii() else text
    return _CONTROL.sub(" ", cleaned)[:limit].strip()


def valid_quantity(text: str) -> str | None:
    """Return a Kubernetes quantity unchanged; `None` if an API server would refuse it."""
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
    """Format a Unix time; `None` for a time outside of the calendar."""
    if wall_s is not None and math.isfinite(wall_s) and 0 <= wall_s < _YEAR_10000_S:
        return rfc3339(wall_s)
    return None


def format_first_time(*candidates_s: float | None) -> str:
    """Format the first of these Unix times that is within the calendar; the epoch if none is."""
    formatted = (format_time(wall_s) for wall_s in candidates_s)
    return next((text for text in formatted if text is not None), rfc3339(0.0))


def owner_metadata(node_name: str, uid: str) -> JsonDict:
    """Return the part of the metadata that makes the Node the owner; empty without a uid.

    The API server deletes an object with its owner. The object does not block the Node's deletion.
    That would matter for foreground deletion only, and with `OwnerReferencesPermissionEnforcement`
    it needs the permission to write `nodes/finalizers`.
    """
    if not uid:
        return {}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": uid}
    return {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}]}
