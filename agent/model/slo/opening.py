"""A NodeSLO's spec from its JSON, part by part, so that no part costs more than it is worth."""

from __future__ import annotations

import msgspec

from agent.errors import ParseError
from agent.model.slo.reading import MAX_PART_BYTES, fields
from agent.model.slo.spec import NodeSlo

EXTENSIONS = "extensions"

_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder()


def opened(spec: msgspec.Raw) -> object:
    """Return the spec with every known part decoded; what is not an object stays as it is.

    A part that is too large stays `Raw`, which `Reading` refuses; so does one that cannot be
    decoded, of the extensions each for itself. Raises `ParseError` for a text that is no JSON.
    """
    try:
        parts = _PARTS.decode(spec)
    except msgspec.ValidationError:
        return None if bytes(spec).strip() == b"null" else spec
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ParseError(f"spec: {type(error).__name__}", "") from error
    known = fields(NodeSlo)
    return {
        name: (_extensions(part) if name == EXTENSIONS else _plain(part)) if name in known else part
        for name, part in parts.items()
    }


def _plain(part: msgspec.Raw) -> object:
    if len(memoryview(part)) > MAX_PART_BYTES:
        return part
    try:
        return _ANY.decode(part)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return part


def _extensions(part: msgspec.Raw) -> object:
    whole = _plain(part)
    if not isinstance(whole, msgspec.Raw) or len(memoryview(part)) > MAX_PART_BYTES:
        return whole
    try:
        return {name: _plain(one) for name, one in _PARTS.decode(part).items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return whole
