"""Who owns which fields: the managers of an object, and what an apply or an update does to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tests.apiserver.apply.paths import NOBODYS, Fields, Path, decode, dotted, encode
from tests.apiserver.apply.typed import compare, field_set, merge, without
from tests.apiserver.refusal import Cause, Refusal
from tests.apiserver.schema.shape import Shape

Object = dict[str, Any]


class Manager(msgspec.Struct, frozen=True, kw_only=True):
    """Whose fields these are. Two applies of one name are one manager in all versions."""

    name: str
    operation: str  # Apply or Update
    subresource: str = ""
    api_version: str = ""  # of an Update only


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one manager, and when they last changed."""

    fields: Fields
    api_version: str
    time: str


Managers = Mapping[Manager, Owned]


class Conflicts(Exception):
    """Others own fields that this apply would change."""

    def __init__(self, managers: list[tuple[Manager, Owned, Path]]) -> None:
        super().__init__("conflicts")
        self.found = managers

    def refusal(self) -> Refusal:
        """Return the 409 with one cause for each field."""
        causes = [
            Cause("FieldManagerConflict", f"conflict with {_named(who, owned)}", dotted(path))
            for who, owned, path in self.found
        ]
        if len(self.found) == 1:
            who, owned, path = self.found[0]
            summary = f"1 conflict: conflict with {_named(who, owned)}: {dotted(path)}"
        else:
            lines = []
            for name in sorted({_named(who, owned) for who, owned, _ in self.found}):
                lines.append(f"conflicts with {name}:")
                lines += [
                    f"- {dotted(p)}" for who, owned, p in self.found if _named(who, owned) == name
                ]
            summary = f"{len(self.found)} conflicts: " + "\n".join(lines)
        return Refusal(409, "Conflict", f"Apply failed with {summary}", causes=causes)


def apply(
    shape: Shape,
    live: Object,
    config: Object,
    managers: Managers,
    me: Manager,
    mine: Owned,
    *,
    force: bool,
) -> tuple[Object, dict[Manager, Owned]]:
    """Return the object and its managers after an apply; `mine` has no fields yet.

    Fields that only this manager owned and that the configuration leaves out are removed.
    Raise `Conflicts` where others own what would change, unless forced.
    """
    fields = frozenset(field_set(shape, config) - NOBODYS)
    last = managers[me].fields if me in managers else frozenset[Path]()
    after = {**managers, me: msgspec.structs.replace(mine, fields=fields)}
    merged = merge(shape, live, config)
    owned = set().union(*(entry.fields for entry in after.values()))
    if removed := set(last) - owned:
        merged = without(shape, merged, removed, owned)
    assert isinstance(merged, dict)
    return merged, _share(shape, live, merged, after, me, force=force)


def update(
    shape: Shape, live: Object, new: Object, managers: Managers, me: Manager, mine: Owned
) -> dict[Manager, Owned]:
    """Return the managers after a write of a whole object or a patch: it takes what it changes."""
    after = _share(shape, live, new, dict(managers), me, force=True)
    difference = compare(shape, live, new)
    changed = frozenset((difference.added | difference.modified) - NOBODYS)
    before = after[me].fields if me in after else frozenset[Path]()
    fields = (before - difference.removed) | changed
    if not fields:
        after.pop(me, None)
    elif fields != before:
        after[me] = msgspec.structs.replace(mine, fields=fields)
    return after


def _share(
    shape: Shape,
    live: Object,
    new: Object,
    managers: dict[Manager, Owned],
    me: Manager,
    *,
    force: bool,
) -> dict[Manager, Owned]:
    difference = compare(shape, live, new)
    changed = (difference.added | difference.modified) - NOBODYS
    clashes = {who: owned.fields & changed for who, owned in managers.items() if who != me}
    result = [
        (who, managers[who], path) for who, paths in clashes.items() for path in sorted(paths)
    ]
    if result and not force:
        raise Conflicts(result)
    after = {}
    for who, owned in managers.items():
        lost = difference.removed if who == me else clashes[who] | difference.removed
        fields = owned.fields - lost
        if fields == owned.fields:
            after[who] = owned
        elif fields:
            after[who] = msgspec.structs.replace(owned, fields=fields)
    return after


def read_managers(metadata: Object) -> dict[Manager, Owned]:
    """Return the managers of a stored object."""
    managers = {}
    for entry in metadata.get("managedFields") or ():
        operation = entry["operation"]
        who = Manager(
            name=entry["manager"],
            operation=operation,
            subresource=entry.get("subresource", ""),
            api_version=entry["apiVersion"] if operation == "Update" else "",
        )
        managers[who] = Owned(
            fields=decode(entry["fieldsV1"]), api_version=entry["apiVersion"], time=entry["time"]
        )
    return managers


def write_managers(managers: Managers) -> list[Object]:
    """Return `metadata.managedFields`: applies before updates, then by time, then by name."""
    entries = []
    for who, owned in sorted(
        managers.items(), key=lambda pair: (pair[0].operation, pair[1].time, pair[0].name)
    ):
        entry: Object = {
            "manager": who.name,
            "operation": who.operation,
            "apiVersion": owned.api_version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": encode(owned.fields),
        }
        if who.subresource:
            entry["subresource"] = who.subresource
        entries.append(entry)
    return entries


def _named(who: Manager, owned: Owned) -> str:
    name = f'"{who.name}"'
    if who.subresource:
        name += f' with subresource "{who.subresource}"'
    if who.operation == "Update":
        name += f" using {owned.api_version} at {owned.time}"
    return name
