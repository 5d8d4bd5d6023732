"""Values with a structure: which fields they have, how two merge, in what two differ."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.apiserver.apply.paths import Path, field, item_key, item_value
from tests.apiserver.schema.shape import ANY, Shape

MISSING: Any = object()


class Difference(NamedTuple):
    """The fields in which a new value differs from the old one."""

    added: set[Path]
    modified: set[Path]
    removed: set[Path]


def field_set(shape: Shape, value: object) -> set[Path]:
    """Return the fields that an applied configuration speaks of."""
    result: set[Path] = set()
    _collect(shape, value, (), result)
    return result


def _collect(shape: Shape, value: object, path: Path, result: set[Path]) -> None:
    if isinstance(value, dict) and is_map(shape):
        for key, item in value.items():
            below = shape.field(key) or ANY
            there = (*path, field(key))
            _collect(below, item, there, result)
            if item is None or item == {} or key not in shape.fields:
                result.add(there)
    elif isinstance(value, list) and is_keyed(shape):
        for element, item in items_of(shape, value).items():
            _collect(shape.element or ANY, item, (*path, element), result)
            result.add((*path, element))
    elif path:
        result.add(path)


def merge(shape: Shape, live: object, config: object) -> object:
    """Return the live value with the configuration's fields laid over it."""
    if isinstance(live, dict) and isinstance(config, dict) and is_map(shape):
        merged = dict(live)
        for key, item in config.items():
            below = shape.field(key) or ANY
            merged[key] = merge(below, live[key], item) if key in live else item
        return merged
    if isinstance(live, list) and isinstance(config, list) and is_keyed(shape):
        items = items_of(shape, live)
        element = shape.element or ANY
        for key, item in items_of(shape, config).items():
            items[key] = merge(element, items[key], item) if key in items else item
        return list(items.values())
    return config


def compare(shape: Shape, old: object, new: object) -> Difference:
    """Return what differs between two whole objects."""
    difference = Difference(set(), set(), set())
    _compare(shape, old, new, (), difference)
    return difference


def _compare(shape: Shape, old: Any, new: Any, path: Path, difference: Difference) -> None:
    present = [value for value in (old, new) if value is not MISSING]
    if len(present) == 2 and old == new:
        return
    if is_map(shape) and all(isinstance(value, dict) for value in present):
        _compare_items(shape, _dict(old), _dict(new), path, difference)
    elif is_keyed(shape) and all(isinstance(value, list) for value in present):
        before = {} if old is MISSING else items_of(shape, old)
        after = {} if new is MISSING else items_of(shape, new)
        for element in before.keys() | after.keys():
            there = (*path, element)
            was, is_now = before.get(element, MISSING), after.get(element, MISSING)
            _compare(shape.element or ANY, was, is_now, there, difference)
    elif len(present) == 2:
        difference.modified.add(path)
    if path and len(present) == 1:
        (difference.added if old is MISSING else difference.removed).add(path)


def _compare_items(
    shape: Shape, old: dict[str, Any], new: dict[str, Any], path: Path, difference: Difference
) -> None:
    for key in old.keys() | new.keys():
        there = (*path, field(key))
        below = shape.field(key) or ANY
        _compare(below, old.get(key, MISSING), new.get(key, MISSING), there, difference)


def without(shape: Shape, value: object, removed: set[Path], owned: set[Path]) -> object:
    """Return the value without the fields of `gone`; what somebody owns inside stays.

    A map or an item that holds nothing more goes too, unless it is owned itself.
    """
    kept_above = {path[:depth] for path in owned for depth in range(1, len(path) + 1)}
    touched = {path[:depth] for path in removed for depth in range(1, len(path) + 1)}
    return _without(shape, value, (), removed - kept_above, touched - kept_above)


def _without(
    shape: Shape, value: object, path: Path, removed: set[Path], touched: set[Path]
) -> Any:
    if path in removed and not _has_parts(shape, value):
        return MISSING
    if isinstance(value, dict) and is_map(shape):
        records = {}
        for key, item in value.items():
            there = (*path, field(key))
            below = _without(shape.field(key) or ANY, item, there, removed, touched)
            if below is not MISSING:
                records[key] = below
        return MISSING if path in touched and not records else records
    if isinstance(value, list) and is_keyed(shape):
        element = shape.element or ANY
        parts = [
            _without(element, item, (*path, name), removed, touched)
            for name, item in items_of(shape, value).items()
        ]
        remaining = [part for part in parts if part is not MISSING]
        return MISSING if path in touched and value and not remaining else remaining
    return value


def is_map(shape: Shape) -> bool:
    """Return whether values here merge key by key."""
    return shape.kind in ("map", "any") and not shape.atomic


def is_keyed(shape: Shape) -> bool:
    """Return whether lists here merge item by item."""
    return shape.kind == "list" and not shape.atomic and bool(shape.keys or shape.unique)


def items_of(shape: Shape, value: list[Any]) -> dict[str, Any]:
    """Return a list's items by their elements of a path; of duplicates the last."""
    if shape.unique:
        return {item_value(item): item for item in value}
    return {item_key(item, shape.keys): item for item in value}


def _has_parts(shape: Shape, value: object) -> bool:
    if isinstance(value, dict):
        return is_map(shape) and bool(value)
    return isinstance(value, list) and is_keyed(shape) and bool(value)


def _dict(value: Any) -> dict[str, Any]:
    return {} if value is MISSING else value
