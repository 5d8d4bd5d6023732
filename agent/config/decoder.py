"""Decodes plain data into settings structs: checks keys, types and ranges."""

from __future__ import annotations

import difflib
import math
import typing
from collections.abc import Iterable, Mapping

import msgspec

from agent.errors import BadConfig
from agent.snapshot.settings import SettingRule, SettingTable

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def spelling_hint(name: str, names: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`; empty if no known name is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _decode_number(value: object, kind: type, key: str, rule: SettingRule) -> float | int:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
        raise BadConfig(f"{key}: must be a number")
    if kind is int and value != int(value):
        raise BadConfig(f"{key}: must be a whole number")
    low, high = rule.low, rule.high
    if low is not None and high is not None and not low <= value <= high:
        raise BadConfig(
            f"{key}: {value:g} is not in {low:g} to {high:g}{rule.unit and ' '}{rule.unit}"
        )
    return kind(value)  # type: ignore[no-any-return]  # int or float, chosen by the caller


def _decode_switch(value: object, key: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise BadConfig(f"{key}: must be true or false")


def _check_printable(value: str, key: str) -> None:
    """Raise `BadConfig` for line ends, control characters and bytes that are no UTF-8."""
    if not value.isprintable():
        raise BadConfig(f"{key}: {value[:80]!r} has a character that cannot be printed")


def _decode_text(value: object, key: str, rule: SettingRule) -> str:
    if isinstance(value, bool) and ("on" if value else "off") in rule.choices:
        value = "on" if value else "off"  # YAML 1.1 reads on and off as booleans
    if not isinstance(value, str):
        hint = ": put the word in quotes" if isinstance(value, bool) else ""
        raise BadConfig(f"{key}: must be text{hint}")
    _check_printable(value, key)
    if rule.choices and value not in rule.choices:
        allowed = ", ".join(rule.choices)
        raise BadConfig(
            f"{key}: {value!r} is not one of {allowed}{spelling_hint(value, rule.choices)}"
        )
    return value


def _decode_texts(value: object, key: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    # YAML reads 79 as a number, where a list of texts means what is written
    if not isinstance(value, list) or any(type(part) not in (str, int) for part in value):
        raise BadConfig(f"{key}: must be a list of texts")
    items = tuple(str(part).strip() for part in value)
    if "" in items:
        raise BadConfig(f"{key}: item {items.index('') + 1} is empty; remove it")
    for item in items:
        _check_printable(item, key)
    return items


def _decode_table(value: object, key: str) -> SettingTable:
    if isinstance(value, list) and all(isinstance(row, Mapping) for row in value):
        return tuple(value)
    raise BadConfig(f"{key}: must be a list of mappings")


def decode_value(value: object, kind: object, key: str, rule: SettingRule) -> object:
    """Return the value in its declared type; raise `BadConfig` that names the key."""
    if kind is bool:
        return _decode_switch(value, key)
    if kind in (int, float):
        return _decode_number(value, typing.cast("type", kind), key, rule)
    if kind is str:
        return _decode_text(value, key, rule)
    if kind == SettingTable:
        return _decode_table(value, key)
    return tuple(_decode_text(part, key, rule) for part in _decode_texts(value, key))


def field_rules(cls: type[msgspec.Struct]) -> dict[str, tuple[object, SettingRule]]:
    """Return type and rule of each setting of a section, in the order of declaration."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: typing.get_args(hints[name])[:2] for name in cls.__struct_fields__}


def decode_section(cls: type[msgspec.Struct], data: object, path: str = "") -> object:
    """Build a section from decoded YAML; raise `BadConfig` for keys that it does not have."""
    if not isinstance(data, Mapping):
        raise BadConfig(f"{path.rstrip('.') or 'settings'}: must be a mapping of keys to values")
    rules = cls.__struct_fields__
    values = {}
    for name, value in data.items():
        if name not in rules:
            raise BadConfig(f"{path}{name}: unknown key{spelling_hint(str(name), rules)}")
        kind, rule = field_rules(cls)[name]
        key = f"{path}{name}"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            values[name] = decode_section(kind, {} if value is None else value, f"{key}.")
        else:
            values[name] = decode_value(value, kind, key, rule)
    return cls(**values)
