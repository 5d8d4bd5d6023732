"""Codes of other programs as reasons of a condition, which an API server accepts."""

from __future__ import annotations

import re

MAX_REASON = 128  # the schema allows 1024; people read it in a table
UNKNOWN = "Unknown"  # the reason of a device whose vendor gives none

_NOT_REASON = re.compile(r"[^A-Za-z0-9_,:]+")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def reason_of(text: str) -> str:
    """Return a valid condition reason: words joined in CamelCase, `chip error` is `ChipError`."""
    if len(text) <= MAX_REASON and _REASON.fullmatch(text):
        return text
    words = [word for word in _NOT_REASON.split(text) if word]
    joined = "".join(word[0].upper() + word[1:] for word in words).strip(",:_")
    if not joined:
        return UNKNOWN
    if not joined[0].isalpha():
        joined = f"Code{joined}"
    return joined[:MAX_REASON].rstrip(",:_")
