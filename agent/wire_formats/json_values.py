"""JSON values as Python objects, their compact text, and repair of invalid JSON text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

JsonObject = Mapping[str, object]
JsonDict = dict[str, object]

# what msgspec raises for JSON that is malformed, not UTF-8, or nested too deeply
JSON_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)


def compact_json(document: object, *, sort_keys: bool = True) -> str:
    """Return JSON text without spaces."""
    text = json.dumps(document, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()  # foreign text may hold lone surrogates


_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"

# an escaped backslash comes first: the u after it is only a letter
_ESCAPES = re.compile(rb"\\\\|" + _HIGH + _LOW + rb"|(" + _HIGH + rb"|" + _LOW + rb")")


def repair_json(data: bytes) -> bytes:
    """Return JSON without half surrogate pairs and with valid UTF-8; costs several passes."""
    text = data.decode("utf-8", "replace").encode()
    return _ESCAPES.sub(lambda match: rb"\ufffd" if match[1] else match[0], text)
