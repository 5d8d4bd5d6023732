"""JSON values as Python objects, and their compact text."""

from __future__ import annotations

import json
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
