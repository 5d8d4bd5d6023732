"""Text of other programs: invalid characters become U+FFFD, codes become condition reasons."""

from __future__ import annotations

import re

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"

# an escaped backslash comes first: the u after it is only a letter
_ESCAPES = re.compile(rb"\\\\|" + _HIGH + _LOW + rb"|(" + _HIGH + rb"|" + _LOW + rb")")


def repair_json(data: bytes) -> bytes:
    """Return JSON without half surrogate pairs and with valid UTF-8; costs several passes."""
    text = data.decode("utf-8", "replace").encode()
    return _ESCAPES.sub(lambda match: rb"\ufffd" if match[1] else match[0], text)


MAX_REASON = 128  # the schema allows 1024; people read it in a table
UNKNOWN_REASON = "Unknown"  # the reason of a device whose vendor gives none
_NOT_REASON = re.compile(r"[^A-Za-z0-9_,:]+")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


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
