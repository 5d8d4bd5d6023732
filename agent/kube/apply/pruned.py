"""Fields that the server's version of a CRD does not have.

Of a merge patch or a whole object they are dropped without a word; an apply with one of them is
refused, by servers up to now with a 500 that says so in its message only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

Place = tuple[str, ...]  # names of members, * for every entry of a list
MAX_PLACES = 64

_UNDECLARED = re.compile(
    r"((?:\.[A-Za-z_][A-Za-z0-9_]*|\[[^\]\s]{0,64}\])+): field not declared in schema"
)
_MEMBER = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|(\[)")


def undeclared(message: str) -> frozenset[Place]:
    """Return the fields that a refused apply is said to be refused for."""
    return frozenset(
        tuple(member[1] or "*" for member in _MEMBER.finditer(found[1]))
        for found in list(_UNDECLARED.finditer(message))[:MAX_PLACES]
    )


def missing(wanted: object, stored: object, at: Place = ()) -> Iterator[Place]:
    """Yield the fields that were wanted and are not there; nothing of what is there otherwise."""
    if isinstance(wanted, Mapping) and isinstance(stored, Mapping):
        for key, value in wanted.items():
            if key in stored:
                yield from missing(value, stored[key], (*at, key))
            elif value not in (None, {}, []):
                yield (*at, key)
    elif isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
        for one, other in zip(wanted, stored, strict=True):
            yield from missing(one, other, (*at, "*"))


def without(body: object, places: frozenset[Place]) -> object:
    """Return the body without those fields; the same one if there are none."""
    below: dict[str, frozenset[Place]] = {
        head: frozenset(place[1:] for place in places if place and place[0] == head)
        for head in {place[0] for place in places if place}
    }
    if not below:
        return body
    if isinstance(body, Mapping):
        return {
            key: without(value, below.get(key, frozenset()))
            for key, value in body.items()
            if () not in below.get(key, frozenset())
        }
    if isinstance(body, list) and "*" in below:
        return [without(entry, below["*"]) for entry in body]
    return body


def show_place(place: Place) -> str:
    """Write a field for people: spec.devices[].conditions."""
    return ".".join(place).replace(".*", "[]")
