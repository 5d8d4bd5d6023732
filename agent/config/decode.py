"""From plain data to settings: every key known, every value of its type and in its range."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping

import msgspec

from agent.config.field import Rule, Table
from agent.config.sections import Settings
from agent.errors import BadConfig

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or nothing when no known name is near."""
    import difflib  # noqa: PLC0415 - for those who err

    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _number(value: object, kind: type, key: str, rule: Rule) -> float | int:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadConfig(f"{key}: must be a number")
    if kind is int and value != int(value):
        raise BadConfig(f"{key}: must be a whole number")
    low, high = rule.low, rule.high
    if low is not None and high is not None and not low <= value <= high:
        raise BadConfig(
            f"{key}: {value:g} is not in {low:g} to {high:g}{rule.unit and ' '}{rule.unit}"
        )
    return kind(value)  # type: ignore[no-any-return]  # int or float, chosen by the caller


def _switch(value: object, key: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise BadConfig(f"{key}: must be true or false")


def _text(value: object, key: str, rule: Rule) -> str:
    if isinstance(value, bool) and rule.choices and "on" in rule.choices:
        value = "on" if value else "off"  # YAML 1.1 reads on and off as booleans
    if not isinstance(value, str):
        raise BadConfig(f"{key}: must be text")
    if rule.choices and value not in rule.choices:
        allowed = ", ".join(rule.choices)
        raise BadConfig(f"{key}: {value!r} is not one of {allowed}{nearest(value, rule.choices)}")
    return value


def _texts(value: object, key: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part for part in value.split(",") if part)
    # YAML reads 79 as a number, where a list of texts means what is written
    if isinstance(value, list) and all(type(part) in (str, int) for part in value):
        return tuple(str(part) for part in value)
    raise BadConfig(f"{key}: must be a list of texts")


def _table(value: object, key: str) -> Table:
    if isinstance(value, list) and all(isinstance(row, Mapping) for row in value):
        return tuple(value)
    raise BadConfig(f"{key}: must be a list of mappings")


def decode_value(value: object, kind: object, key: str, rule: Rule) -> object:
    """Return the value as its declared type; raise `BadConfig` that names the key."""
    if kind is bool:
        return _switch(value, key)
    if kind in (int, float):
        return _number(value, typing.cast("type", kind), key, rule)
    if kind is str:
        return _text(value, key, rule)
    if kind == Table:
        return _table(value, key)
    return tuple(_text(part, key, rule) for part in _texts(value, key))


def declared(cls: type[msgspec.Struct]) -> dict[str, tuple[object, Rule]]:
    """Return type and rule of each setting of a section, in the order of declaration."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: typing.get_args(hints[name])[:2] for name in cls.__struct_fields__}


def from_mapping(cls: type[msgspec.Struct], data: object, where: str = "") -> object:
    """Build a section from decoded YAML, refusing keys that it does not have."""
    if not isinstance(data, Mapping):
        raise BadConfig(f"{where.rstrip('.') or 'settings'}: must be a mapping of keys to values")
    known = cls.__struct_fields__
    values = {}
    for name, value in data.items():
        if name not in known:
            raise BadConfig(f"{where}{name}: unknown key{nearest(str(name), known)}")
        kind, rule = declared(cls)[name]
        key = f"{where}{name}"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            values[name] = from_mapping(kind, {} if value is None else value, f"{key}.")
        else:
            values[name] = decode_value(value, kind, key, rule)
    return cls(**values)


def settings_from(data: object) -> Settings:
    """Build the whole settings from plain data; raise `BadConfig`."""
    result = from_mapping(Settings, data)
    assert isinstance(result, Settings)  # noqa: S101 - of the class just given
    return result
