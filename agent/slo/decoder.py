"""Decodes JSON over a struct of defaults, field by field.

Invalid values are recorded and ignored.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from agent.snapshot.slo import (
    MAX_INT64,
    MAX_INVALID_FIELDS,
    Bandwidth,
    BlockDeviceConfig,
    DeviceName,
    DirectoryName,
    Extensions,
    Features,
    HostApplication,
    InvalidField,
    QuantityText,
    RelativePath,
)
from agent.wire_formats.quantities import parse_quantity

_S = TypeVar("_S", bound=msgspec.Struct)

# takes the value and its path; returns None for the default
ValueReader = Callable[["SloDecoder", object, str], object]

MAX_PART_BYTES = 128 * 1024  # bytes of JSON; no useful part is that long
MAX_VALUE_CHARS = 40  # characters of a foreign value
_MAX_PRINTED_BOUND = 2**31 + 1  # a larger bound is only that of the format, and not shown


class WireField(msgspec.Struct, frozen=True):
    """One field of a struct, with its name on the wire."""

    name: str
    wire: str
    type: object  # its type without None
    must_be: str  # its allowed values, in words
    plain: bool  # a number, a switch or a choice: its type alone decides which values are valid


class SloDecoder:
    """The decoding of one object: records refused values, and counts unknown fields.

    `readers` has a reader for each type that is neither a struct nor a plain value.
    """

    def __init__(self, readers: Mapping[object, ValueReader]) -> None:
        self._readers = readers
        self.invalid_fields: list[InvalidField] = []
        self.invalid_count = 0
        self.unknown_fields = 0

    def reject_value(self, path: str, must_be: str, value: object) -> None:
        """Record a refused value."""
        self.reject(path, f"must be {must_be}, is {describe_value(value)}")

    def reject(self, path: str, reason: str) -> None:
        """Record why a value is refused."""
        self.invalid_count += 1
        if len(self.invalid_fields) < MAX_INVALID_FIELDS:
            self.invalid_fields.append(InvalidField(path=path, why=reason))

    def overlay(self, base: _S, raw: object, path: str) -> _S:
        """Return `base` with the values of `raw` that are present and valid."""
        if not isinstance(raw, dict):
            self.reject_value(path, "an object", raw)
            return base
        fields_by_name = wire_fields(type(base))
        self.unknown_fields += sum(key not in fields_by_name for key in raw)
        changes: dict[str, object] = {}
        for wire, field in fields_by_name.items():
            value = raw.get(wire)
            if not _is_absent(value, field):
                decoded = self._take(field, getattr(base, field.name), value, f"{path}.{wire}")
                if decoded is not None:
                    changes[field.name] = decoded
        return msgspec.structs.replace(base, **changes) if changes else base

    def _take(self, field: WireField, default: object, value: object, path: str) -> object:
        """Return the value to use; `None` for the default."""
        if isinstance(value, msgspec.Raw):
            self.reject(path, f"must be JSON of {MAX_PART_BYTES // 1024} KiB at most")
            return None
        if field.plain:
            try:
                return msgspec.convert(value, type=field.type)
            except (msgspec.ValidationError, UnicodeEncodeError):  # of lone surrogates
                self.reject_value(path, field.must_be, value)
                return None
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            if isinstance(value, dict):
                base = default if isinstance(default, msgspec.Struct) else field.type()
                return self.overlay(base, value, path)
            self.reject_value(path, field.must_be, value)
            return None
        return self._readers[field.type](self, value, path)


def fold_names(shape: type[msgspec.Struct], raw: object) -> object:
    """Return JSON with the field names of the wire, in their case.

    Go's decoder ignores the case, and it decodes people's annotations.
    """
    if not isinstance(raw, Mapping):
        return raw
    fields = {field.wire.casefold(): field for field in wire_fields(shape).values()}
    folded: dict[object, object] = {}
    for name, value in raw.items():
        field = fields.get(name.casefold()) if isinstance(name, str) else None
        if field is None:
            folded[name] = value
        else:
            folded[field.wire] = _fold_value(field.type, value)
    return folded


def _fold_value(kind: object, value: object) -> object:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return fold_names(kind, value)
    items = get_args(kind)
    if get_origin(kind) is tuple and isinstance(value, list) and len(items) == 2:
        return [_fold_value(items[0], item) for item in value]
    return value


def _is_absent(value: object, field: WireField) -> bool:
    # Go's encoders leave out an empty choice, and its readers take it for the default
    return value is None or (value == "" and get_origin(field.type) is Literal)


@functools.cache
def wire_fields(shape: type[msgspec.Struct]) -> Mapping[str, WireField]:
    """Return a struct's fields by their names on the wire, in order."""
    fields = {}
    for field in msgspec.structs.fields(shape):
        kind = _without_none(field.type)
        fields[field.encode_name] = WireField(
            field.name, field.encode_name, kind, describe_type(kind), _is_plain(kind)
        )
    return fields


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


def describe_type(kind: object) -> str:
    """Return which values the type allows."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(choice for choice in get_args(kind) if choice)
    if get_origin(kind) is Annotated:
        meta = next(meta for meta in get_args(kind) if isinstance(meta, Meta))
        return meta.description or _describe_range(meta)
    return "true or false" if kind is bool else "an object"


def _describe_range(meta: Meta) -> str:
    low, high = meta.ge, meta.le
    bounded = high is not None and high < _MAX_PRINTED_BOUND
    if low is None or low < -_MAX_PRINTED_BOUND:
        return "a whole number"
    return f"a whole number from {low} to {high}" if bounded else f"a whole number from {low} on"


def describe_value(value: object) -> str:
    """Return a foreign value for people: short, without control characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 2**64 else "a huge number"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        text = ascii(value[:MAX_VALUE_CHARS])
        return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."
    if value is None:
        return "null"
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else "?"


MAX_TEXT = 1024
MAX_APPLICATIONS = 64
MAX_BLOCKS = 32  # of one class
MAX_FEATURES = 64
MAX_EXTENSIONS = 32
MAX_EXTENSION_BYTES = 64 * 1024  # bytes of JSON of all extensions together
MAX_DEPTH = 32  # levels of lists and objects
# names of the kernel's features, which are written to a file of it
_FEATURE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_TEXT_PATTERN = r"[^{}\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{{}}}"  # but what, and how often
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_EXTENSION_KEY = re.compile(r"[!-~]{1,128}")


def _pattern_reader(kind: object, pattern: str) -> ValueReader:
    """Return a reader of text that matches the whole pattern."""
    allowed = re.compile(pattern)

    def read(reading: SloDecoder, raw: object, path: str) -> object:
        if isinstance(raw, str) and len(raw) <= MAX_TEXT and allowed.fullmatch(raw):
            return raw
        reading.reject_value(path, describe_type(kind), raw)
        return None

    return read


def read_bandwidth(reading: SloDecoder, raw: object, path: str) -> object:
    """Read a percentage or a quantity."""
    if type(raw) is int and 0 <= raw <= 100:
        return raw
    if isinstance(raw, str) and parse_quantity(raw) is not None:
        return raw
    reading.reject_value(path, "a percentage from 0 to 100 or a quantity as text", raw)
    return None


def read_quantity(reading: SloDecoder, raw: object, path: str) -> object:
    """Read a quantity, which may also be a number."""
    text = str(raw) if type(raw) is int and 0 <= raw <= MAX_INT64 else raw
    if isinstance(text, str) and parse_quantity(text) is not None:
        return text
    reading.reject_value(path, describe_type(QuantityText), raw)
    return None


def read_blocks(reading: SloDecoder, raw: object, path: str) -> object:
    """Read block devices; one without a valid name or type is left out."""
    blocks = []
    for item, place in _items(reading, raw, path, MAX_BLOCKS):
        names = {key: item[key] for key in ("name", "type") if key in item}
        before = reading.invalid_count
        named = reading.overlay(BlockDeviceConfig(), names, place)
        if before == reading.invalid_count and _has_name(reading, named.name, place):
            rest = {key: value for key, value in item.items() if key not in names}
            blocks.append(reading.overlay(named, rest, place))
    return tuple(blocks)


def read_applications(reading: SloDecoder, raw: object, path: str) -> object:
    """Read host applications; one whose cgroup is uncertain is left out."""
    applications: dict[str, HostApplication] = {}
    for item, place in _items(reading, raw, path, MAX_APPLICATIONS):
        before = reading.invalid_count
        rest = {key: value for key, value in item.items() if key != "priority"}
        one = reading.overlay(HostApplication(), rest, place)
        if before < reading.invalid_count or not _has_name(reading, one.name, place):
            continue
        if one.cgroup_path is not None and not one.cgroup_path.parts:
            # all that is below the base would count as one application
            reading.reject(f"{place}.cgroupPath", "names no directory below its base")
        elif one.name in applications:
            reading.reject(f"{place}.name", "another application before has this name")
        else:
            priority = {"priority": item.get("priority")}
            applications[one.name] = reading.overlay(one, priority, place)
    return tuple(applications.values())


def _has_name(reading: SloDecoder, name: str, place: str) -> bool:
    if not name:
        reading.reject(f"{place}.name", "is missing")
    return bool(name)


def _items(
    reading: SloDecoder, raw: object, path: str, most: int
) -> Iterator[tuple[dict[object, object], str]]:
    """Yield the objects of a list with their paths."""
    if not isinstance(raw, list):
        reading.reject_value(path, "a list", raw)
        return
    for number, item in enumerate(raw[:most]):
        place = f"{path}[{number}]"
        if isinstance(item, dict):
            yield item, place
        else:
            reading.reject_value(place, "an object", item)
    if len(raw) > most:
        reading.reject(path, f"has {len(raw)} items, of which the first {most} are used")


def read_features(reading: SloDecoder, raw: object, path: str) -> object:
    """Read the kernel's scheduler features, by name."""
    features = []
    for key, value, place in _entries(reading, raw, path, MAX_FEATURES, _FEATURE):
        if isinstance(value, bool):
            features.append((key, value))
        elif value is not None:
            reading.reject_value(place, "true or false", value)
    return tuple(features)


def read_extensions(reading: SloDecoder, raw: object, path: str) -> object:
    """Read the parts of third parties: each one stays JSON, whatever its content is."""
    extensions, remaining_bytes = [], MAX_EXTENSION_BYTES
    for key, value, place in _entries(reading, raw, path, MAX_EXTENSIONS, _EXTENSION_KEY):
        if value is None:
            continue
        text = None if isinstance(value, msgspec.Raw) else _sorted_json(value, remaining_bytes)
        if text is None:
            kib = MAX_EXTENSION_BYTES // 1024
            reading.reject(
                place, f"must be JSON, with all others {kib} KiB and {MAX_DEPTH} levels at most"
            )
        else:
            extensions.append((key, text))
            remaining_bytes -= len(text)
    return tuple(extensions)


def _entries(
    reading: SloDecoder, raw: object, path: str, most: int, allowed: re.Pattern[str]
) -> Iterator[tuple[str, object, str]]:
    """Yield key, value and path of the members of a free-form object, by key."""
    if not isinstance(raw, dict):
        reading.reject_value(path, "an object", raw)
        return
    good = sorted(key for key in raw if isinstance(key, str) and allowed.fullmatch(key))
    if len(good) < len(raw):
        reading.reject(path, f"has {len(raw) - len(good)} keys that are no names")
    for key in good[:most]:
        yield key, raw[key], f"{path}[{key[:MAX_VALUE_CHARS]!r}]"
    if len(good) > most:
        reading.reject(path, f"has {len(good)} keys, of which the first {most} are used")


def _sorted_json(value: object, most: int) -> str | None:
    """Return JSON with sorted keys; `None` for invalid, too long or too deep text."""
    try:
        text = msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return text.decode() if len(text) <= most and _is_shallow(text) else None


def _is_shallow(text: bytes) -> bool:
    """Return whether JSON has at most the allowed levels; each pass removes the innermost one."""
    left = _JSON_STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    return not left


VALUE_READERS: Mapping[object, ValueReader] = {
    # a path may leave out both ends, but never leads up or starts at the root
    DirectoryName: _pattern_reader(
        DirectoryName, r"(?!\.{1,2}\Z)" + _TEXT_PATTERN.format("/", "1,128")
    ),
    RelativePath: _pattern_reader(
        RelativePath, r"(?!/)(?!(?:.*/)?\.\.(?:/|\Z))" + _TEXT_PATTERN.format("", f"0,{MAX_TEXT}")
    ),
    DeviceName: _pattern_reader(DeviceName, _TEXT_PATTERN.format("", "1,253")),
    Bandwidth: read_bandwidth,
    QuantityText: read_quantity,
    tuple[BlockDeviceConfig, ...]: read_blocks,
    tuple[HostApplication, ...]: read_applications,
    Features: read_features,
    Extensions: read_extensions,
}
