"""Renders JSON data as a YAML document in block style, with safely quoted strings.

The first Device file waits for this module, and a YAML library takes longer to load than all other
steps between the vendors' answers and that file. Tests read the output with PyYAML, under YAML 1.1
and as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

# certainly a string under YAML 1.1 and 1.2; all other texts are quoted
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_/.-]*")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def to_yaml(data: object) -> bytes:
    """Return one document; keys in their given order, lines never folded."""
    return "".join(_block(data, "")).encode("utf-8", "replace")


def _block(value: object, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(f"{indent}{_text(str(key))}:", item, indent)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for item in value:
            yield from _item(item, indent)
    else:
        yield f"{indent}{_scalar(value)}\n"


def _entry(head: str, item: object, indent: str) -> Iterator[str]:
    """Yield `key: scalar`, or the key and its block below; lists start at the key's own column."""
    if not isinstance(item, Mapping | list | tuple) or not item:
        yield f"{head} {_scalar(item)}\n"
        return
    yield f"{head}\n"
    yield from _block(item, indent if isinstance(item, list | tuple) else f"{indent}  ")


def _item(item: object, indent: str) -> Iterator[str]:
    """Yield `- ` with the first line of a block, then its other lines."""
    lines = _block(item, f"{indent}  ")
    yield f"{indent}- {next(lines)[len(indent) + 2 :]}"
    yield from lines


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return _float(value) if isinstance(value, float) else json.dumps(value)


def _float(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if value != value else ".inf" if value > 0 else "-.inf"  # noqa: PLR0124 - NaN
    mantissa, e, exponent = repr(value).partition("e")
    # YAML 1.1 reads 1e+20 as a string, so numbers need a point
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}"


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if text.isascii() and text.isprintable():
        return "'" + text.replace("'", "''") + "'"  # JSON in the text stays readable
    quoted = json.dumps(text, ensure_ascii=False)
    if text.isprintable():
        return quoted
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
