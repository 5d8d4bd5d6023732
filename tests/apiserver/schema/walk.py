"""What a server does to an object on its way in: drop unknown fields, add defaults, check rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy

from tests.apiserver.refusal import Cause
from tests.apiserver.schema.shape import Shape

_DATE_TIME = re.compile(
    r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    r"([Zz]|[+-]\d\d:\d\d)"
)


class Findings:
    """What a walk found: rules broken, fields that were dropped, and values of the wrong type."""

    __slots__ = ("causes", "dropped", "mistyped")

    def __init__(self) -> None:
        self.causes: list[Cause] = []
        self.dropped: list[str] = []
        self.mistyped: list[str] = []  # in the words of an apply; doubles of keys are here too

    def add(self, reason: str, path: str, message: str) -> None:
        """Note a broken rule."""
        self.causes.append(Cause(reason, message, path or "<nil>"))

    def wrong_type(self, path: str, value: object, shape: Shape) -> None:
        """Note a value of another type, in the words of validation and in those of an apply."""
        reports = shape.type or "object"
        self.add(
            "FieldValueTypeInvalid",
            path,
            f"Invalid value: {_value_text(value)}: {path} in body must be of type {reports}: "
            f"{_named(value)}",
        )
        self.mistyped.append(f".{path}: expected {_expected(shape)}, got {_got(value)}")


def walk(shape: Shape, value: object, path: str, findings: Findings) -> object:
    """Return the value as it would be stored; what is wrong with it goes to `found`."""
    if shape.kind == "any":
        return value
    if shape.kind == "map":
        return _map(shape, value, path, findings)
    if shape.kind == "list":
        return _list(shape, value, path, findings)
    _scalar(shape, value, path, findings)
    return value


def _map(shape: Shape, value: object, path: str, findings: Findings) -> object:
    if not isinstance(value, dict):
        findings.wrong_type(path, value, shape)
        return value
    records: dict[str, object] = {}
    fields, element, lead = shape.fields, shape.element, f"{path}." if path else ""
    for key, item in value.items():
        below = fields.get(key, element)
        if below is None:
            if shape.keeps_unknown:
                records[key] = item
            else:
                findings.dropped.append(f"{lead}{key}")
        elif item is not None or below.nullable or below.kind == "any":
            records[key] = item if item is None else walk(below, item, f"{lead}{key}", findings)
    for key, default in shape.with_defaults:
        if key not in records:
            records[key] = deepcopy(default)
    for key in shape.required:
        if key not in records:
            findings.add("FieldValueRequired", f"{lead}{key}", "Required value")
    return records


def _list(shape: Shape, value: object, path: str, findings: Findings) -> object:
    if not isinstance(value, list):
        findings.wrong_type(path, value, shape)
        return value
    if shape.max_items is not None and len(value) > shape.max_items:
        message = f"Too many: {len(value)}: must have at most {shape.max_items} items"
        findings.add("FieldValueTooMany", path, message)
    if shape.min_items is not None and len(value) < shape.min_items:
        message = (
            f"Invalid value: {len(value)}: {path} in body should have at least "
            f"{shape.min_items} items"
        )
        findings.add("FieldValueInvalid", path, message)
    element = shape.element
    if element is None:
        return value
    records = [
        walk(element, item, f"{path}[{index}]", findings) for index, item in enumerate(value)
    ]
    _duplicates(shape, records, path, findings)
    return records


def _duplicates(shape: Shape, items: list[object], path: str, findings: Findings) -> None:
    """Note items that cannot be told apart; only an apply is refused for them."""
    if not shape.keys and not shape.unique:
        return
    observations: list[object] = []
    for item in items:
        named = item if isinstance(item, dict) else {}
        key = [named.get(name) for name in shape.keys] if shape.keys else item
        if key in observations:
            pairs = [f'{name}="{named.get(name)}"' for name in shape.keys] or [f'="{item}"']
            findings.mistyped.append(f".{path}: duplicate entries for key [{','.join(pairs)}]")
        observations.append(key)


def _scalar(shape: Shape, value: object, path: str, findings: Findings) -> None:
    if shape.int_or_string:
        fits = isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    else:
        fits = _TYPES[shape.type](value)
    if not fits:
        findings.wrong_type(path, value, shape)
        return
    if isinstance(value, str):
        _text(shape, value, path, findings)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _number(shape, value, path, findings)
    if shape.enum and value not in shape.enum:
        options = ", ".join(f'"{option}"' for option in shape.enum)
        message = f"Unsupported value: {_named(value)}: supported values: {options}"
        findings.add("FieldValueNotSupported", path, message)


def _text(shape: Shape, value: str, path: str, findings: Findings) -> None:
    if shape.max_length is not None and len(value) > shape.max_length:
        message = f"Too long: may not be more than {shape.max_length} bytes"
        findings.add("FieldValueTooLong", path, message)
    if shape.min_length is not None and len(value) < shape.min_length:
        message = f"{path} in body should be at least {shape.min_length} chars long"
        findings.add("FieldValueInvalid", path, f"Invalid value: {_named(value)}: {message}")
    if shape.pattern is not None and not shape.pattern.search(value):
        message = f"{path} in body should match '{shape.pattern_text}'"
        findings.add("FieldValueInvalid", path, f"Invalid value: {_named(value)}: {message}")
    if shape.format == "date-time" and not _DATE_TIME.fullmatch(value):
        message = f"{path} in body must be of type date-time: {_named(value)}"
        findings.add("FieldValueInvalid", path, f"Invalid value: {_named(value)}: {message}")


def _number(shape: Shape, value: float, path: str, findings: Findings) -> None:
    bits = {"int32": 31, "int64": 63}.get(shape.format, 63 if shape.type == "integer" else 0)
    if bits and not -(1 << bits) <= value < 1 << bits:
        message = f"{path} in body must be of type {shape.format or 'int64'}: {_named(value)}"
        findings.add("FieldValueInvalid", path, f"Invalid value: {value}: {message}")
    if shape.minimum is not None and value < shape.minimum:
        message = f"{path} in body should be greater than or equal to {shape.minimum}"
        findings.add("FieldValueInvalid", path, f"Invalid value: {value}: {message}")
    if shape.maximum is not None and value > shape.maximum:
        message = f"{path} in body should be less than or equal to {shape.maximum}"
        findings.add("FieldValueInvalid", path, f"Invalid value: {value}: {message}")


def _integer(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


_TYPES: dict[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": _integer,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}


def _named(value: object) -> str:
    for types, name in ((dict, '"object"'), (list, '"array"'), (bool, '"boolean"')):
        if isinstance(value, types):
            return name
    return '"null"' if value is None else f'"{str(value)[:200]}"'


def _value_text(value: object) -> str:
    if isinstance(value, (dict, list)):
        return _named(value)
    return str(value).lower() if isinstance(value, (bool, int, float)) else _named(value)


def _expected(shape: Shape) -> str:
    numeric = {"integer": "numeric (int or float)", "number": "numeric (int or float)"}
    if shape.kind == "scalar":
        return numeric.get(shape.type, shape.type or "scalar")
    return shape.kind


def _got(value: object) -> str:
    for types, name in ((bool, "boolean"), (str, "string"), (dict, "map"), (list, "list")):
        if isinstance(value, types):
            return name
    return "null" if value is None else type(value).__name__
