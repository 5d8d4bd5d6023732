"""Compares desired and stored objects field by field, with their owners from `managedFields`.

Also here: merge patches that remove members, and fields that the server's version of a CRD lacks.
The server drops such fields silently from a merge patch or a whole object. It refuses an apply with
one of them with a 500 that names the field only in its message.
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
]  # lists in which each writer owns entries; by the member that identifies an entry

LIST_KEYS: ListKeys = {
    ("f:metadata", "f:ownerReferences"): "uid",
    ("f:status", "f:conditions"): "type",
}

ANNOTATIONS: FieldPath = ("f:metadata", "f:annotations")
LABELS: FieldPath = ("f:metadata", "f:labels")
QUANTITIES = frozenset({"resources", "capacity", "allocatable", "available"})
MAX_JSON_BYTES = 256 * 1024  # all annotations of an object together


def differences(
    desired: Mapping[str, object],
    stored: object,
    keyed: ListKeys = LIST_KEYS,
    path_prefix: FieldPath = (),
) -> Iterator[FieldPath]:
    """Yield the paths where `stored` differs from `desired`.

    Members that are only in `stored` are ignored, except within lists, which are compared as a
    whole. In lists of `keyed` each desired entry is compared alone.
    """
    stored_members = stored if isinstance(stored, Mapping) else {}
    for key, value in desired.items():
        path = (*path_prefix, f"f:{key}")
        current = stored_members.get(key)
        if isinstance(value, Mapping):
            yield from differences(value, current, keyed, path)
        elif path in keyed and isinstance(value, list):
            yield from _entries(value, current, keyed, path)
        elif not is_same_at(path, value, current):
            yield path


def _entries(
    desired: list[object], stored: object, keyed: ListKeys, at: FieldPath
) -> Iterator[FieldPath]:
    key = keyed[at]
    for entry in desired:
        if isinstance(entry, Mapping):
            current = find_entry(stored, key, entry.get(key))
            if current is None or any(differences(entry, current, keyed, (*at, "*"))):
                yield (*at, entry_member(key, entry.get(key)))


def find_entry(listed: object, key: str, value: object) -> Mapping[str, object] | None:
    """Return the entry of a list whose member `key` has that value."""
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping) and entry.get(key) == value:
            return entry
    return None


def entry_member(key: str, value: object) -> str:
    """Return the name of a list's entry in managedFields."""
    return "k:" + msgspec.json.encode({key: value}).decode()


def is_same_at(path: FieldPath, desired: object, stored: object) -> bool:
    """Return whether a field has the desired value; annotations may contain JSON."""
    if path[:-1] == ANNOTATIONS:
        return is_same_text(desired, stored)
    return is_same(desired, stored, quantity=any(member[2:] in QUANTITIES for member in path))


def is_same(desired: object, stored: object, *, quantity: bool = False) -> bool:
    """Return whether two values are equal: absent equals empty, and quantity 1000m equals 1."""
    if isinstance(desired, Mapping | list) and desired == stored:
        return True  # the usual case, and many times faster than a comparison of members
    if isinstance(desired, Mapping):
        stored_members = {} if stored is None else stored
        return isinstance(stored_members, Mapping) and all(
            is_same(
                desired.get(key), stored_members.get(key), quantity=quantity or key in QUANTITIES
            )
            for key in desired.keys() | stored_members.keys()
        )
    if isinstance(desired, list):
        if not isinstance(stored, list):
            return not desired and stored is None
        return len(desired) == len(stored) and all(
            is_same(one, other, quantity=quantity)
            for one, other in zip(desired, stored, strict=True)
        )
    if desired is None:
        return stored is None or stored in ({}, [])
    if desired == stored:
        return isinstance(desired, bool) == isinstance(stored, bool)
    return quantity and _is_same_amount(desired, stored)


def is_same_text(desired: object, stored: object) -> bool:
    """Return whether two annotations are equal, as text or as JSON."""
    if desired == stored:
        return True
    if not isinstance(desired, str) or not isinstance(stored, str):
        return False
    if desired[:1] not in "{[" or stored[:1] not in "{[" or len(stored) > MAX_JSON_BYTES:
        return False
    try:
        return bool(msgspec.json.decode(desired) == msgspec.json.decode(stored))
    except JSON_ERRORS:
        return False


def _is_same_amount(desired: object, stored: object) -> bool:
    first, second = _amount(desired), _amount(stored)
    return first is not None and first == second


def _amount(value: object) -> Decimal | None:
    """Return a quantity's value; `None` for anything else."""
    is_plain = isinstance(value, str | int) and not isinstance(value, bool)
    return parse_amount(str(value)) if is_plain else None


def render_path(path: FieldPath) -> str:
    """Return a path for people: .metadata.annotations["a/b"], .spec.devices."""
    text = ""
    for member in path:
        name = member[2:]
        plain = member.startswith("f:") and name.replace("-", "").replace("_", "").isalnum()
        text += f".{name}" if plain else f'["{name}"]' if member.startswith("f:") else f"[{name}]"
    return text


MAX_MANAGERS = 64  # of one object
UNTRACKED = "before-first-apply"  # the server's name for all writes without a manager's name
APPLY_OPERATION = "Apply"
_CONFLICT = re.compile(r'conflict with "((?:[^"\\]|\\.){1,128})"')


class FieldManager(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of managedFields."""

    name: str
    operation: str  # Apply, Update
    last_write_s: float | None  # server's wall clock at the manager's last change
    fields: Mapping[str, object]  # fieldsV1
    subresource: str = ""

    def owns(self, path: FieldPath) -> bool:
        """Return whether this manager owns the field, or a part of it."""
        nested: object = self.fields
        for member in path:
            if not isinstance(nested, Mapping) or member not in nested:
                return False
            nested = nested[member]
        return True


def metadata_of(stored: object) -> Mapping[str, object]:
    """Return an object's metadata; empty if it has none."""
    metadata = stored.get("metadata") if isinstance(stored, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def field_managers(stored: object) -> tuple[FieldManager, ...]:
    """Return the field managers of an object; skip invalid entries."""
    managers = []
    entries = metadata_of(stored).get("managedFields")
    for entry in entries[:MAX_MANAGERS] if isinstance(entries, list) else ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("manager"), str):
            continue
        fields = entry.get("fieldsV1")
        managers.append(
            FieldManager(
                name=str(entry["manager"]),
                operation=str(entry.get("operation", "")),
                last_write_s=unix_time(entry.get("time")),
                fields=fields if isinstance(fields, Mapping) else {},
                subresource=str(entry.get("subresource") or ""),
            )
        )
    return tuple(managers)


def unix_time(text: object) -> float | None:
    """Return the time of an RFC 3339 time stamp; `None` for anything else."""
    try:
        moment = dt.datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment.timestamp() if moment is not None and moment.tzinfo is not None else None


def surplus_fields(fields: object, desired: object, at: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield fields that a manager owns and that are no longer desired."""
    for member, nested in fields.items() if isinstance(fields, Mapping) else ():
        if member == "." or not isinstance(member, str):
            continue
        path = (*at, member)
        is_desired, value = _find_member(desired, member)
        if not is_desired:
            yield path
        elif nested:
            yield from surplus_fields(nested, value, path)


def _find_member(desired: object, member: str) -> tuple[bool, object]:
    kind, _, name = member.partition(":")
    if kind == "f":
        value = desired.get(name) if isinstance(desired, Mapping) else None
        return value is not None, value
    if kind != "k":
        return True, None  # an index or a member of a set, in lists that are compared as a whole
    try:
        keys = msgspec.json.decode(name)
    except JSON_ERRORS:
        return True, None
    if not isinstance(keys, dict) or len(keys) != 1:
        return True, None
    ((key, identity),) = keys.items()
    entry = find_entry(desired, key, identity)
    return entry is not None, entry


def conflicting_managers(error: Conflict) -> frozenset[str]:
    """Return the managers that a 409 names; none for an outdated resourceVersion."""
    texts = [cause.message for cause in error.causes] or [str(error)]
    return frozenset(match[1] for text in texts for match in _CONFLICT.finditer(text))


def surplus_members(desired: object, stored: object, at: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield stored members that are not desired, of mappings at any depth."""
    desired_members = desired if isinstance(desired, Mapping) else {}
    for key, current in stored.items() if isinstance(stored, Mapping) else ():
        path = (*at, f"f:{key}")
        if desired_members.get(key) is None:
            yield path
        elif isinstance(desired_members[key], Mapping):
            yield from surplus_members(desired_members[key], current, path)


def removal_patch(paths: Iterable[FieldPath]) -> JsonDict:
    """Return the merge patch that removes these members."""
    patch: JsonDict = {}
    for path in paths:
        nested: JsonDict = patch
        for member in path[:-1]:
            inner = nested.setdefault(member[2:], {})
            assert isinstance(inner, dict)  # noqa: S101 - no path is a prefix of another one
            nested = inner
        nested[path[-1][2:]] = None
    return patch


SchemaPath = tuple[str, ...]  # names of members, * for every entry of a list

MAX_SCHEMA_PATHS = 64

_UNDECLARED = re.compile(
    r"((?:\.[A-Za-z_][A-Za-z0-9_]*|\[[^\]\s]{0,64}\])+): field not declared in schema"
)

_MEMBER = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|(\[)")


def undeclared_fields(message: str) -> frozenset[SchemaPath]:
    """Return the fields that the message of a refused apply names."""
    return frozenset(
        tuple(member[1] or "*" for member in _MEMBER.finditer(match[1]))
        for match in list(_UNDECLARED.finditer(message))[:MAX_SCHEMA_PATHS]
    )


def missing_fields(desired: object, stored: object, at: SchemaPath = ()) -> Iterator[SchemaPath]:
    """Yield the desired fields that are not stored; fields with other values are not missing."""
    if isinstance(desired, Mapping) and isinstance(stored, Mapping):
        for key, value in desired.items():
            if key in stored:
                yield from missing_fields(value, stored[key], (*at, key))
            elif value not in (None, {}, []):
                yield (*at, key)
    elif isinstance(desired, list) and isinstance(stored, list) and len(desired) == len(stored):
        for one, other in zip(desired, stored, strict=True):
            yield from missing_fields(one, other, (*at, "*"))


def drop_fields(body: object, places: frozenset[SchemaPath]) -> object:
    """Return the body without those fields; the same object if there are none."""
    nested: dict[str, frozenset[SchemaPath]] = {
        head: frozenset(place[1:] for place in places if place and place[0] == head)
        for head in {place[0] for place in places if place}
    }
    if not nested:
        return body
    if isinstance(body, Mapping):
        return {
            key: drop_fields(value, nested.get(key, frozenset()))
            for key, value in body.items()
            if () not in nested.get(key, frozenset())
        }
    if isinstance(body, list) and "*" in nested:
        return [drop_fields(entry, nested["*"]) for entry in body]
    return body


def render_schema_path(place: SchemaPath) -> str:
    """Return a field for people: spec.devices[].conditions."""
    return ".".join(place).replace(".*", "[]")
