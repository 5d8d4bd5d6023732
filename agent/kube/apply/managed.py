"""Who wrote which field: `metadata.managedFields`, and the conflicts a server tells of."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping

import msgspec

from agent.kube.apply.compare import Path, entry_of
from agent.kube.errors import Conflict

MAX_MANAGERS = 64  # of one object
UNTRACKED = "before-first-apply"  # the server's name for all that was written without a name
APPLY = "Apply"

_CONFLICT = re.compile(r'conflict with "((?:[^"\\]|\\.){1,128})"')


class Manager(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of managedFields."""

    name: str
    operation: str  # Apply, Update
    time_s: float | None  # wall clock of the server: its last write that changed something
    fields: Mapping[str, object]  # fieldsV1
    subresource: str = ""

    def owns(self, path: Path) -> bool:
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


def managers(stored: object) -> tuple[Manager, ...]:
    """Return the writers of an object; what is no such entry is passed over."""
    found = []
    listed = metadata_of(stored).get("managedFields")
    for entry in listed[:MAX_MANAGERS] if isinstance(listed, list) else ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("manager"), str):
            continue
        fields = entry.get("fieldsV1")
        found.append(
            Manager(
                name=str(entry["manager"]),
                operation=str(entry.get("operation", "")),
                time_s=unix_time(entry.get("time")),
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


def surplus(fields: object, wanted: object, at: Path = ()) -> Iterator[Path]:
    """Yield places that a writer has and that are no longer wanted."""
    for member, below in fields.items() if isinstance(fields, Mapping) else ():
        if member == "." or not isinstance(member, str):
            continue
        path = (*at, member)
        found, value = _look_up(wanted, member)
        if not found:
            yield path
        elif below:
            yield from surplus(below, value, path)


def _look_up(wanted: object, member: str) -> tuple[bool, object]:
    kind, _, name = member.partition(":")
    if kind == "f":
        value = wanted.get(name) if isinstance(wanted, Mapping) else None
        return value is not None, value
    if kind != "k":
        return True, None  # an index or a member of a set: of lists that are compared whole
    try:
        keys = msgspec.json.decode(name)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return True, None
    if not isinstance(keys, dict) or len(keys) != 1:
        return True, None
    ((key, identity),) = keys.items()
    entry = entry_of(wanted, key, identity)
    return entry is not None, entry


def accused(error: Conflict) -> frozenset[str]:
    """Return the writers that a 409 names; none for a resourceVersion that is not current."""
    texts = [cause.message for cause in error.causes] or [str(error)]
    return frozenset(match[1] for text in texts for match in _CONFLICT.finditer(text))
