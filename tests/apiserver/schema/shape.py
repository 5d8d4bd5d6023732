"""The structure of a kind: what its OpenAPI schema says, made ready for walking."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


class Shape:
    """One place in an object: its type, its bounds, and how two writers' values merge there.

    `kind` is one of `map`, `list`, `scalar` and `any` (whatever is there; maps merge, lists do
    not). Maps have `fields` (declared), `element` (all other keys), or keep unknown ones.
    """

    __slots__ = (
        "atomic",
        "default",
        "element",
        "enum",
        "fields",
        "format",
        "int_or_string",
        "keeps_unknown",
        "keys",
        "kind",
        "max_items",
        "max_length",
        "maximum",
        "min_items",
        "min_length",
        "minimum",
        "nullable",
        "pattern",
        "pattern_text",
        "required",
        "type",
        "unique",
        "with_defaults",
    )

    def __init__(self, schema: Schema) -> None:
        self.type: str = schema.get("type", "")
        self.int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
        self.keeps_unknown = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        self.nullable = bool(schema.get("nullable"))
        self.default: object = schema.get("default")
        self.fields = {key: Shape(below) for key, below in schema.get("properties", {}).items()}
        other = schema.get("additionalProperties")
        items = schema.get("items")
        below = items if items is not None else other
        self.element = Shape(below) if isinstance(below, Mapping) else None
        self.kind = _kind(self)
        if other is True:
            self.keeps_unknown = True
        self.required: tuple[str, ...] = tuple(schema.get("required", ()))
        self.enum: tuple[object, ...] = tuple(schema.get("enum", ()))
        self.format: str = schema.get("format", "")
        self.pattern_text: str = schema.get("pattern", "")
        self.pattern = re.compile(self.pattern_text) if self.pattern_text else None
        self.min_length: int | None = schema.get("minLength")
        self.max_length: int | None = schema.get("maxLength")
        self.minimum: float | None = schema.get("minimum")
        self.maximum: float | None = schema.get("maximum")
        self.min_items: int | None = schema.get("minItems")
        self.max_items: int | None = schema.get("maxItems")
        list_type = schema.get("x-kubernetes-list-type", "atomic")
        self.keys: tuple[str, ...] = tuple(schema.get("x-kubernetes-list-map-keys", ()))
        self.unique = list_type == "set"
        self.atomic = (self.kind == "list" and list_type == "atomic") or (
            schema.get("x-kubernetes-map-type") == "atomic"
        )
        self.with_defaults = tuple(
            (key, below.default) for key, below in self.fields.items() if below.default is not None
        )

    def field(self, key: str) -> Shape | None:
        """Return what a key of a map is, declared or not; `None` if there can be no such key."""
        if (result := self.fields.get(key)) is not None:
            return result
        if self.kind == "map" and self.element is not None:
            return self.element
        return ANY if self.keeps_unknown or self.kind == "any" else None


def _kind(shape: Shape) -> str:
    if shape.int_or_string:
        return "scalar"
    if shape.type == "object":
        bare = not shape.fields and shape.element is None
        return "any" if bare and shape.keeps_unknown else "map"
    if shape.type == "array":
        return "list"
    return "scalar" if shape.type else "any"


ANY = Shape({"x-kubernetes-preserve-unknown-fields": True})
