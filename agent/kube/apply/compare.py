"""Whether the server has what is wanted: by value, however it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

import msgspec

from agent.model.foreign.quantities import amount

Path = tuple[str, ...]  # members as managedFields name them: f:spec, k:{"uid":"…"}
Keyed = Mapping[Path, str]  # lists of which each writer has entries of its own, by which member

KEYED: Keyed = {
    ("f:metadata", "f:ownerReferences"): "uid",
    ("f:status", "f:conditions"): "type",
}
ANNOTATIONS: Path = ("f:metadata", "f:annotations")
LABELS: Path = ("f:metadata", "f:labels")
QUANTITIES = frozenset({"resources", "capacity", "allocatable", "available"})
MAX_JSON_BYTES = 256 * 1024  # all annotations of an object together


def differences(
    wanted: Mapping[str, object], stored: object, keyed: Keyed = KEYED, at: Path = ()
) -> Iterator[Path]:
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
        elif not same_at(path, value, there):
            yield path


def _entries(wanted: list[object], stored: object, keyed: Keyed, at: Path) -> Iterator[Path]:
    key = keyed[at]
    for entry in wanted:
        if isinstance(entry, Mapping):
            there = entry_of(stored, key, entry.get(key))
            if there is None or any(differences(entry, there, keyed, (*at, "*"))):
                yield (*at, member_of(key, entry.get(key)))


def entry_of(listed: object, key: str, value: object) -> Mapping[str, object] | None:
    """Return the entry of a list whose member `key` has that value."""
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping) and entry.get(key) == value:
            return entry
    return None


def member_of(key: str, value: object) -> str:
    """Name an entry of a list as managedFields do."""
    return "k:" + msgspec.json.encode({key: value}).decode()


def same_at(path: Path, wanted: object, stored: object) -> bool:
    """Say whether the value of a place is what is wanted; annotations may hold JSON."""
    if path[:-1] == ANNOTATIONS:
        return same_text(wanted, stored)
    return same(wanted, stored, quantity=any(member[2:] in QUANTITIES for member in path))


def same(wanted: object, stored: object, *, quantity: bool = False) -> bool:
    """Say whether two values are equal: absent is empty, and 1000m of a resource is 1."""
    if isinstance(wanted, Mapping | list) and wanted == stored:
        return True  # mostly so, and many times as fast as looking into them
    if isinstance(wanted, Mapping):
        have = {} if stored is None else stored
        return isinstance(have, Mapping) and all(
            same(wanted.get(key), have.get(key), quantity=quantity or key in QUANTITIES)
            for key in wanted.keys() | have.keys()
        )
    if isinstance(wanted, list):
        if not isinstance(stored, list):
            return not wanted and stored is None
        return len(wanted) == len(stored) and all(
            same(one, other, quantity=quantity) for one, other in zip(wanted, stored, strict=True)
        )
    if wanted is None:
        return stored is None or stored in ({}, [])
    if wanted == stored:
        return isinstance(wanted, bool) == isinstance(stored, bool)
    return quantity and _same_amount(wanted, stored)


def same_text(wanted: object, stored: object) -> bool:
    """Say whether two annotations are equal, as text or as the JSON that they hold."""
    if wanted == stored:
        return True
    if not isinstance(wanted, str) or not isinstance(stored, str):
        return False
    if wanted[:1] not in "{[" or stored[:1] not in "{[" or len(stored) > MAX_JSON_BYTES:
        return False
    try:
        return bool(msgspec.json.decode(wanted) == msgspec.json.decode(stored))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _same_amount(wanted: object, stored: object) -> bool:
    first, second = _amount(wanted), _amount(stored)
    return first is not None and first == second


def _amount(value: object) -> Decimal | None:
    """Return a quantity's value; `None` for anything else."""
    is_plain = isinstance(value, str | int) and not isinstance(value, bool)
    return amount(str(value)) if is_plain else None


def show(path: Path) -> str:
    """Write a place for people: .metadata.annotations["a/b"], .spec.devices."""
    text = ""
    for member in path:
        name = member[2:]
        plain = member.startswith("f:") and name.replace("-", "").replace("_", "").isalnum()
        text += f".{name}" if plain else f'["{name}"]' if member.startswith("f:") else f"[{name}]"
    return text
