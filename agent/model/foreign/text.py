"""JSON whose strings hold what no text can: mended as Go's decoder does, to the letter U+FFFD."""

from __future__ import annotations

import re

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# an escaped backslash comes first: the u after it is only a letter
_ESCAPES = re.compile(rb"\\\\|" + _HIGH + _LOW + rb"|(" + _HIGH + rb"|" + _LOW + rb")")


def mended(data: bytes) -> bytes:
    """Return JSON without half surrogate pairs and with valid UTF-8; costs several passes."""
    text = data.decode("utf-8", "replace").encode()
    return _ESCAPES.sub(lambda found: rb"\ufffd" if found[1] else found[0], text)
