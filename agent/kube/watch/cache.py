"""The objects of a watch by key; a list that is not complete is kept aside.

What one reads is always a whole view: that of a complete list and every event since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec

from agent.errors import ParseError
from agent.kube.watch.machine import MAX_OBJECTS

log = logging.getLogger(__name__)

W = TypeVar("W")
T = TypeVar("T")


class DecodedObject(msgspec.Struct, Generic[W], frozen=True, kw_only=True, gc=False):
    """An object as it came; `body` is what is read of it, `None` when it cannot be read."""

    key: str  # namespace/name, or name
    uid: str
    version: str
    body: W | None
    error: str = ""  # why there is no body


class CachedObject(msgspec.Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """An object of the view."""

    uid: str
    version: str
    value: T


class WatchCache(Generic[W, T]):
    """A view by key. An object that cannot be read keeps its last good value, and is counted.

    `mapping` is replaced whole when a value differs, never edited: others may hold it.
    """

    def __init__(self, what: str, make: Callable[[W], T]) -> None:
        """Begin with nothing; `make` raises `ParseError` for what cannot be used."""
        self._what = what
        self._make = make
        self._known: dict[str, CachedObject[T]] = {}
        self._aside: dict[str, CachedObject[T]] = {}
        self._told: set[str] = set()  # keys of malformed objects that were said
        self._values: dict[str, T] = {}  # what `mapping` shows; never edited
        self.mapping: Mapping[str, T] = MappingProxyType(self._values)
        self.malformed = 0  # objects that could not be read, each time that they came

    def stage(self, objects: Iterable[DecodedObject[W]]) -> None:
        """Keep a part of a list aside; what is as it was known is not made again."""
        for found in objects:
            known = self._made(found)
            if known is not None:
                self._aside[found.key] = known

    def drop(self) -> None:
        """Forget what is aside."""
        self._aside = {}

    def replace(self) -> bool:
        """Make what is aside the view; say whether a value differs."""
        self._known, self._aside = self._aside, {}
        values = {key: known.value for key, known in self._known.items()}
        return values != self._values and self._show(values)

    def put(self, found: DecodedObject[W]) -> bool:
        """Add or replace one object; say whether its value differs."""
        before = self._known.get(found.key)
        known = self._made(found)
        if known is None or known is before:
            return False
        if before is None and len(self._known) >= MAX_OBJECTS:
            self._malformed(found.key, f"more than {MAX_OBJECTS} objects")
            return False
        self._known[found.key] = known
        if before is not None and before.value == known.value:
            return False
        return self._show({**self._values, found.key: known.value})

    def remove(self, found: DecodedObject[W]) -> bool:
        """Take one object away, unless the key is another object's by now."""
        self._told.discard(found.key)
        before = self._known.get(found.key)
        if before is None or found.uid not in ("", before.uid):
            return False
        del self._known[found.key]
        values = self._values.copy()
        del values[found.key]
        return self._show(values)

    def count_unreadable(self, why: str) -> None:
        """Count an object of which not even the name can be read."""
        self._malformed("", why)

    def _show(self, values: dict[str, T]) -> bool:
        self._values, self.mapping = values, MappingProxyType(values)
        return True

    def _made(self, found: DecodedObject[W]) -> CachedObject[T] | None:
        before = self._known.get(found.key)
        same = before if before is not None and before.uid == found.uid else None
        if same is not None and same.version == found.version != "":
            return same
        if found.body is None:
            self._malformed(found.key, found.error)
            return same
        try:
            value = self._make(found.body)
        except ParseError as error:
            self._malformed(found.key, str(error))
            return same
        self._told.discard(found.key)
        return CachedObject(uid=found.uid, version=found.version, value=value)

    def _malformed(self, key: str, why: str) -> None:
        self.malformed += 1
        if key in self._told or len(self._told) >= MAX_OBJECTS:
            return
        self._told.add(key)
        fields = {"resource": self._what, "object": key, "error": why}
        log.warning("malformed_object", extra=fields)
