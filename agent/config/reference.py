"""The reference table of all settings: key, default, unit, range, maturity, description."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from agent.config.decoder import field_rules
from agent.config.settings import Settings, settings_type
from agent.config.sources import LoadedSettings
from agent.snapshot.settings import SettingRule, SettingTable
from agent.snapshot.vendor import VendorDescription


class SettingEntry(msgspec.Struct, frozen=True):
    """One setting with its dotted key; `kind` is its type."""

    key: str
    kind: object
    default: object
    rule: SettingRule


def setting_entries(cls: type[msgspec.Struct], prefix: str = "") -> Iterator[SettingEntry]:
    """Yield every setting, in the order of declaration."""
    defaults = cls()
    for name, (kind, rule) in field_rules(cls).items():
        key = f"{prefix}{name}"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from setting_entries(kind, f"{key}.")
        else:
            yield SettingEntry(key, kind, getattr(defaults, name), rule)


def setting_value(settings: Settings, key: str) -> object:
    """Return the value of a dotted key."""
    value: object = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def format_value(value: object) -> str:
    """Format a value as in a settings file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(str(part) for part in value) + "]"
    return '""' if value == "" else f"{value:g}" if isinstance(value, float) else str(value)


def kind_text(entry: SettingEntry) -> str:
    """Return the name of a type for people."""
    names: dict[object, str] = {str: "text", bool: "switch", float: "number", int: "whole number"}
    return names.get(
        entry.kind, "list of mappings" if entry.kind == SettingTable else "list of texts"
    )


def reference_rows(vendors: Iterable[VendorDescription]) -> list[dict[str, str]]:
    """Return all settings, with those of `vendors`, and their properties."""
    return [
        {
            "key": entry.key,
            "kind": kind_text(entry),
            "default": format_value(entry.default),
            "unit": entry.rule.unit,
            "range": entry.rule.range_text,
            "maturity": entry.rule.maturity,
            "about": entry.rule.doc,
        }
        for entry in setting_entries(settings_type(tuple(vendors)))
    ]


def effective_rows(loaded: LoadedSettings) -> list[dict[str, str]]:
    """Return each setting's value in force and its origin."""
    return [
        {
            "key": entry.key,
            "value": format_value(setting_value(loaded.settings, entry.key)),
            "origin": loaded.origins.get(entry.key, "default"),
        }
        for entry in setting_entries(type(loaded.settings))
    ]
