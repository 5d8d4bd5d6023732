"""Compares desired and stored objects field by field.

Who wrote which field: `metadata.managedFields`, and the managers that a conflict names.

Merge patches that remove members.

Fields that the server's version of a CRD lacks. The server drops them silently from a merge patch
or a whole object; it refuses an apply with one of them, by a 500 that names the field in its
message only.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

import msgspec

from agent.kube.errors import Conflict
from agent.wire_formats.json_values import JSON_ERRORS, JsonDict
from agent.wire_formats.quantities import parse_amount

FieldPath = tuple[str, ...]  # members as managedFields name them: f:spec, k:{"uid":"…"}

ListKeys = Mapping[
    FieldPath, str
]  # lists of which each writer has entries of its own, by which member

LIST_KEYS: ListKeys = {
    ("f:metadata", "f:ownerReferences"): "uid",
    ("f:status", "f:conditions"): "type",
}

ANNOTATIONS: FieldPath = ("f:metadata", "f:annotations")

LABELS: FieldPath = ("f:metadata", "f:labels")

QUANTITIES = frozenset({"resources", "capacity", "allocatable", "available"})

MAX_JSON_BYTES = 256 * 1024  # all annotations of an object together


def differences(
    wanted: Mapping[str, object], stored: object, keyed: ListKeys = LIST_KEYS, at: FieldPath = ()
) -> Iterator[FieldPath]:
    """Yield where `stored` lacks what is wanted, or has it otherwise.

    What is there beside it is not looked at, except within lists, which are compared whole; of
    lists in `keyed` each wanted entry is looked for.
    """
    have = stored if isinstance(stored, Mapping) else {}
    for key, value in wanted.items():
        path = (*at, f"f:{key}")
        there = have.get(key)
        if isinstance(value, Mapping):
            yield from differences(value, there, keyed, path)
        elif path in keyed and isinstance(value, list):
            yield from _entries(value, there, keyed, path)
        elif not is_same_at(path, value, there):
            yield path


def _entries(
    wanted: list[object], stored: object, keyed: ListKeys, at: FieldPath
) -> Iterator[FieldPath]:
    key = keyed[at]
    for entry in wanted:
        if isinstance(entry, Mapping):
            there = find_entry(stored, key, entry.get(key))
            if there is None or any(differences(entry, there, keyed, (*at, "*"))):
                yield (*at, entry_member(key, entry.get(key)))


def find_entry(listed: object, key: str, value: object) -> Mapping[str, object] | None:
    """Return the entry of a list whose member `key` has that value."""
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping) and entry.get(key) == value:
            return entry
    return None


def entry_member(key: str, value: object) -> str:
    """Name an entry of a list as managedFields do."""
    return "k:" + msgspec.json.encode({key: value}).decode()


def is_same_at(path: FieldPath, wanted: object, stored: object) -> bool:
    """Say whether the value of a place is what is wanted; annotations may hold JSON."""
    if path[:-1] == ANNOTATIONS:
        return is_same_text(wanted, stored)
    return is_same(wanted, stored, quantity=any(member[2:] in QUANTITIES for member in path))


def is_same(wanted: object, stored: object, *, quantity: bool = False) -> bool:
    """Say whether two values are equal: absent is empty, and 1000m of a resource is 1."""
    if isinstance(wanted, Mapping | list) and wanted == stored:
        return True  # mostly so, and many times as fast as looking into them
    if isinstance(wanted, Mapping):
        have = {} if stored is None else stored
        return isinstance(have, Mapping) and all(
            is_same(wanted.get(key), have.get(key), quantity=quantity or key in QUANTITIES)
            for key in wanted.keys() | have.keys()
        )
    if isinstance(wanted, list):
        if not isinstance(stored, list):
            return not wanted and stored is None
        return len(wanted) == len(stored) and all(
            is_same(one, other, quantity=quantity)
            for one, other in zip(wanted, stored, strict=True)
        )
    if wanted is None:
        return stored is None or stored in ({}, [])
    if wanted == stored:
        return isinstance(wanted, bool) == isinstance(stored, bool)
    return quantity and _is_same_amount(wanted, stored)


def is_same_text(wanted: object, stored: object) -> bool:
    """Say whether two annotations are equal, as text or as the JSON that they hold."""
    if wanted == stored:
        return True
    if not isinstance(wanted, str) or not isinstance(stored, str):
        return False
    if wanted[:1] not in "{[" or stored[:1] not in "{[" or len(stored) > MAX_JSON_BYTES:
        return False
    try:
        return bool(msgspec.json.decode(wanted) == msgspec.json.decode(stored))
    except JSON_ERRORS:
        return False


def _is_same_amount(wanted: object, stored: object) -> bool:
    first, second = _amount(wanted), _amount(stored)
    return first is not None and first == second


def _amount(value: object) -> Decimal | None:
    """Return a quantity's value; `None` for anything else."""
    is_plain = isinstance(value, str | int) and not isinstance(value, bool)
    return parse_amount(str(value)) if is_plain else None


def render_path(path: FieldPath) -> str:
    """Write a place for people: .metadata.annotations["a/b"], .spec.devices."""
    text = ""
    for member in path:
        name = member[2:]
        plain = member.startswith("f:") and name.replace("-", "").replace("_", "").isalnum()
        text += f".{name}" if plain else f'["{name}"]' if member.startswith("f:") else f"[{name}]"
    return text


MAX_MANAGERS = 64  # of one object

UNTRACKED = "before-first-apply"  # the server's name for all that was written without a name

APPLY_OPERATION = "Apply"

_CONFLICT = re.compile(r'conflict with "((?:[^"\\]|\\.){1,128})"')


class FieldManager(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of managedFields."""

    name: str
    operation: str  # Apply, Update
    last_write_s: float | None  # wall clock of the server: its last write that changed something
    fields: Mapping[str, object]  # fieldsV1
    subresource: str = ""

    def owns(self, path: FieldPath) -> bool:
        """Say whether the place, or something in it, is this writer's."""
        below: object = self.fields
        for member in path:
            if not isinstance(below, Mapping) or member not in below:
                return False
            below = below[member]
        return True


def metadata_of(stored: object) -> Mapping[str, object]:
    """Return an object's metadata; empty if it has none."""
    found = stored.get("metadata") if isinstance(stored, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def field_managers(stored: object) -> tuple[FieldManager, ...]:
    """Return the writers of an object; what is no such entry is passed over."""
    found = []
    listed = metadata_of(stored).get("managedFields")
    for entry in listed[:MAX_MANAGERS] if isinstance(listed, list) else ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("manager"), str):
            continue
        fields = entry.get("fieldsV1")
        found.append(
            FieldManager(
                name=str(entry["manager"]),
                operation=str(entry.get("operation", "")),
                last_write_s=unix_time(entry.get("time")),
                fields=fields if isinstance(fields, Mapping) else {},
                subresource=str(entry.get("subresource") or ""),
            )
        )
    return tuple(found)


def unix_time(text: object) -> float | None:
    """Return the moment of an RFC 3339 time stamp; `None` of anything else."""
    try:
        moment = dt.datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment.timestamp() if moment is not None and moment.tzinfo is not None else None


def surplus_fields(fields: object, wanted: object, at: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield places that a writer has and that are no longer wanted."""
    for member, below in fields.items() if isinstance(fields, Mapping) else ():
        if member == "." or not isinstance(member, str):
            continue
        path = (*at, member)
        found, value = _look_up(wanted, member)
        if not found:
            yield path
        elif below:
            yield from surplus_fields(below, value, path)


def _look_up(wanted: object, member: str) -> tuple[bool, object]:
    kind, _, name = member.partition(":")
    if kind == "f":
        value = wanted.get(name) if isinstance(wanted, Mapping) else None
        return value is not None, value
    if kind != "k":
        return True, None  # an index or a member of a set: of lists that are compared whole
    try:
        keys = msgspec.json.decode(name)
    except JSON_ERRORS:
        return True, None
    if not isinstance(keys, dict) or len(keys) != 1:
        return True, None
    ((key, identity),) = keys.items()
    entry = find_entry(wanted, key, identity)
    return entry is not None, entry


def conflicting_managers(error: Conflict) -> frozenset[str]:
    """Return the writers that a 409 names; none for a resourceVersion that is not current."""
    texts = [cause.message for cause in error.causes] or [str(error)]
    return frozenset(match[1] for text in texts for match in _CONFLICT.finditer(text))


def surplus_members(wanted: object, stored: object, at: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the members that are stored and not wanted, of mappings at any depth."""
    want = wanted if isinstance(wanted, Mapping) else {}
    for key, there in stored.items() if isinstance(stored, Mapping) else ():
        path = (*at, f"f:{key}")
        if want.get(key) is None:
            yield path
        elif isinstance(want[key], Mapping):
            yield from surplus_members(want[key], there, path)


def removal_patch(paths: Iterable[FieldPath]) -> JsonDict:
    """Return the merge patch that removes these members."""
    patch: JsonDict = {}
    for path in paths:
        below: JsonDict = patch
        for member in path[:-1]:
            inner = below.setdefault(member[2:], {})
            assert isinstance(inner, dict)  # noqa: S101 - no place lies within another one
            below = inner
        below[path[-1][2:]] = None
    return patch


SchemaPath = tuple[str, ...]  # names of members, * for every entry of a list

MAX_SCHEMA_PATHS = 64

_UNDECLARED = re.compile(
    r"((?:\.[A-Za-z_][A-Za-z0-9_]*|\[[^\]\s]{0,64}\])+): field not declared in schema"
)

_MEMBER = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|(\[)")


def undeclared_fields(message: str) -> frozenset[SchemaPath]:
    """Return the fields that a refused apply is said to be refused for."""
    return frozenset(
        tuple(member[1] or "*" for member in _MEMBER.finditer(found[1]))
        for found in list(_UNDECLARED.finditer(message))[:MAX_SCHEMA_PATHS]
    )


def missing_fields(wanted: object, stored: object, at: SchemaPath = ()) -> Iterator[SchemaPath]:
    """Yield the fields that were wanted and are not there; nothing of what is there otherwise."""
    if isinstance(wanted, Mapping) and isinstance(stored, Mapping):
        for key, value in wanted.items():
            if key in stored:
                yield from missing_fields(value, stored[key], (*at, key))
            elif value not in (None, {}, []):
                yield (*at, key)
    elif isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
        for one, other in zip(wanted, stored, strict=True):
            yield from missing_fields(one, other, (*at, "*"))


def drop_fields(body: object, places: frozenset[SchemaPath]) -> object:
    """Return the body without those fields; the same one if there are none."""
    below: dict[str, frozenset[SchemaPath]] = {
        head: frozenset(place[1:] for place in places if place and place[0] == head)
        for head in {place[0] for place in places if place}
    }
    if not below:
        return body
    if isinstance(body, Mapping):
        return {
            key: drop_fields(value, below.get(key, frozenset()))
            for key, value in body.items()
            if () not in below.get(key, frozenset())
        }
    if isinstance(body, list) and "*" in below:
        return [drop_fields(entry, below["*"]) for entry in body]
    return body


def render_schema_path(place: SchemaPath) -> str:
    """Write a field for people: spec.devices[].conditions."""
    return ".".join(place).replace(".*", "[]")
