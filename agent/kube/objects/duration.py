"""Durations as Go writes them, and so `metav1.Duration`: `5m0s`, `1h`, `1.5h`, `300ms`."""

from __future__ import annotations

import re

MAX_CHARS = 64

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|ms|s|m|h)")
_WHOLE = re.compile(rf"([+-]?)((?:{_PART.pattern})+)")
_MICRO = ("\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s")


def parse_duration_s(text: str) -> float | None:
    """Return the seconds of a duration; `None` for what is none. `0` needs no unit."""
    if text in ("0", "+0", "-0"):
        return 0.0
    if len(text) > MAX_CHARS:
        return None
    for micro in _MICRO:
        text = text.replace(micro, "us")
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(match[2]))
    return -seconds if match[1] == "-" else seconds
