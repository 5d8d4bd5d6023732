"""Every setting as a table for people: key, default, unit, range, maturity, what it does."""

from __future__ import annotations

from agent.config.field import Table
from agent.config.load import Entry, Loaded, entries, value_of


def plain(value: object) -> str:
    """Write a value as it would stand in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(str(part) for part in value) + "]"
    return '""' if value == "" else f"{value:g}" if isinstance(value, float) else str(value)


def kind_name(entry: Entry) -> str:
    """Name the kind of value in words."""
    names: dict[object, str] = {str: "text", bool: "switch", float: "number", int: "whole number"}
    return names.get(entry.kind, "list of mappings" if entry.kind == Table else "list of texts")


def reference_rows() -> list[dict[str, str]]:
    """Return all settings with what may be known about each."""
    return [
        {
            "key": entry.key,
            "kind": kind_name(entry),
            "default": plain(entry.default),
            "unit": entry.rule.unit,
            "range": entry.rule.range_text,
            "maturity": entry.rule.maturity,
            "about": entry.rule.doc,
        }
        for entry in entries()
    ]


def effective_rows(loaded: Loaded) -> list[dict[str, str]]:
    """Return each setting's value in force and where it came from."""
    return [
        {
            "key": entry.key,
            "value": plain(value_of(loaded.settings, entry.key)),
            "origin": loaded.origins.get(entry.key, "default"),
        }
        for entry in entries()
    ]
