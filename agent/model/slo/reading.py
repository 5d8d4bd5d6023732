"""Foreign JSON over a struct of defaults, field by field; every value that is wrong is noted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from agent.model.slo.view import MAX_REFUSED, Refusal

S = TypeVar("S", bound=msgspec.Struct)
# takes the value and its path; returns None for the default
Reader = Callable[["Reading", object, str], object]

MAX_PART_BYTES = 128 * 1024  # of JSON; no part of use has that
MAX_SHOWN = 40  # characters of a foreign value
_SHOWN_BOUND = 2**31 + 1  # a greater one is the format's, which tells nobody anything


class Field(msgspec.Struct, frozen=True):
    """One field of a struct, as the wire has it."""

    name: str
    wire: str
    type: object  # without None
    must_be: str  # in words
    plain: bool  # a number, a switch or a choice: the type alone tells what counts


class Reading:
    """One reading of one object: what was refused, and how many fields were not known.

    `readers` has a reader for each type that is neither a struct nor a plain value.
    """

    def __init__(self, readers: Mapping[object, Reader]) -> None:
        self._readers = readers
        self.refused: list[Refusal] = []
        self.refused_count = 0
        self.unknown_fields = 0

    def refuse(self, path: str, must_be: str, value: object) -> None:
        """Note a value that is not used."""
        self.note(path, f"must be {must_be}, is {shown(value)}")

    def note(self, path: str, why: str) -> None:
        """Note why something is not used."""
        self.refused_count += 1
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(Refusal(path=path, why=why))

    def over(self, base: S, raw: object, where: str) -> S:
        """Return `base` with the values of `raw` that are present and right."""
        if not isinstance(raw, dict):
            self.refuse(where, "an object", raw)
            return base
        known = fields(type(base))
        self.unknown_fields += sum(key not in known for key in raw)
        found: dict[str, object] = {}
        for wire, field in known.items():
            value = raw.get(wire)
            if not _absent(value, field):
                taken = self._take(field, getattr(base, field.name), value, f"{where}.{wire}")
                if taken is not None:
                    found[field.name] = taken
        return msgspec.structs.replace(base, **found) if found else base

    def _take(self, field: Field, default: object, value: object, where: str) -> object:
        """Return the value to use; `None` for the default."""
        if isinstance(value, msgspec.Raw):
            self.note(where, f"must be JSON of {MAX_PART_BYTES // 1024} KiB at most")
            return None
        if field.plain:
            try:
                return msgspec.convert(value, type=field.type)
            except (msgspec.ValidationError, UnicodeEncodeError):  # of lone surrogates
                self.refuse(where, field.must_be, value)
                return None
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            if isinstance(value, dict):
                base = default if isinstance(default, msgspec.Struct) else field.type()
                return self.over(base, value, where)
            self.refuse(where, field.must_be, value)
            return None
        return self._readers[field.type](self, value, where)


def _absent(value: object, field: Field) -> bool:
    # Go's encoders leave out an empty choice, and its readers take it for the default
    return value is None or (value == "" and get_origin(field.type) is Literal)


@functools.cache
def fields(shape: type[msgspec.Struct]) -> Mapping[str, Field]:
    """Return a struct's fields by their names on the wire, in order."""
    found = {}
    for one in msgspec.structs.fields(shape):
        kind = _without_none(one.type)
        found[one.encode_name] = Field(
            one.name, one.encode_name, kind, in_words(kind), _is_plain(kind)
        )
    return found


def _is_plain(kind: object) -> bool:
    if get_origin(kind) is Annotated:
        return get_args(kind)[0] is int
    return kind is bool or get_origin(kind) is Literal


def _without_none(kind: object) -> object:
    """Return the type of a field that may also be `None`."""
    options = [option for option in get_args(kind) if option is not type(None)]
    if type(None) in get_args(kind) and len(options) == 1:
        return options[0]
    return kind


def in_words(kind: object) -> str:
    """Return what a value of the type must be."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(choice for choice in get_args(kind) if choice)
    if get_origin(kind) is Annotated:
        meta = next(meta for meta in get_args(kind) if isinstance(meta, Meta))
        return meta.description or _range(meta)
    return "true or false" if kind is bool else "an object"


def _range(meta: Meta) -> str:
    low, high = meta.ge, meta.le
    bounded = high is not None and high < _SHOWN_BOUND
    if low is None or low < -_SHOWN_BOUND:
        return "a whole number"
    return f"a whole number from {low} to {high}" if bounded else f"a whole number from {low} on"


def shown(value: object) -> str:
    """Return a foreign value for people, in few characters and without control characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 2**64 else "a huge number"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        text = ascii(value[:MAX_SHOWN])
        return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
    if value is None:
        return "null"
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else "?"
