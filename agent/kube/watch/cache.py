"""The objects of a watch by key.

A list that is not complete yet is staged aside, so that the view always consists of a complete list
and every event since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import msgspec

from agent.errors import ParseError
from agent.kube.watch.machine import NODE_LIMITS

log = logging.getLogger(__name__)

W = TypeVar("W")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class DecodedObject(msgspec.Struct, Generic[W], frozen=True, kw_only=True, gc=False):
    """An object from the server; `body` is its decoded content, `None` if it is unreadable."""

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


class ObjectChanges(Protocol[T_contra]):
    """Receives each change of a view that is too large to be replaced whole. Raises nothing."""

    def replace_objects(self, values: Mapping[str, T_contra]) -> None:
        """Take all objects of a complete list; others are gone."""
        ...

    def set_object(self, key: str, value: T_contra) -> None:
        """Take an object that is new or differs."""
        ...

    def remove_object(self, key: str, value: T_contra) -> None:
        """Forget an object; `value` is what it was."""
        ...


class WatchCache(Generic[W, T]):
    """A view by key. An unreadable object keeps its last good value, and is counted.

    `mapping` is replaced as a whole when a value differs, never edited, because callers may keep
    it. With `changes` it is edited, and each change is reported.
    """

    def __init__(
        self,
        description: str,
        make: Callable[[W], T],
        *,
        max_objects: int = NODE_LIMITS.objects,
        changes: ObjectChanges[T] | None = None,
    ) -> None:
        """Start empty; `make` raises `ParseError` for an object that cannot be used."""
        self._description = description
        self._make = make
        self._max_objects = max_objects
        self._changes = changes
        self._objects: dict[str, CachedObject[T]] = {}
        self._staged: dict[str, CachedObject[T]] = {}
        self._logged_keys: set[str] = set()  # keys of malformed objects that were logged
        self._values: dict[str, T] = {}  # the content of `mapping`; never edited
        self.mapping: Mapping[str, T] = MappingProxyType(self._values)
        self.malformed = 0  # unreadable objects, each arrival counted

    def stage(self, objects: Iterable[DecodedObject[W]]) -> None:
        """Store a part of a list aside; unchanged objects are not converted again."""
        for decoded in objects:
            cached = self._cached(decoded)
            if cached is not None:
                self._staged[decoded.key] = cached

    def drop(self) -> None:
        """Forget the staged objects."""
        self._staged = {}

    def replace(self) -> bool:
        """Make the staged objects the view; return whether a value differs."""
        self._objects, self._staged = self._staged, {}
        values = {key: cached.value for key, cached in self._objects.items()}
        if self._changes is not None:
            self._changes.replace_objects(values)
        return values != self._values and self._set_values(values)

    def update(self, decoded: DecodedObject[W]) -> bool:
        """Add or replace one object; return whether its value differs."""
        before = self._objects.get(decoded.key)
        cached = self._cached(decoded)
        if cached is None or cached is before:
            return False
        if before is None and len(self._objects) >= self._max_objects:
            self._malformed(decoded.key, f"more than {self._max_objects} objects")
            return False
        self._objects[decoded.key] = cached
        if before is not None and before.value == cached.value:
            return False
        if self._changes is not None:
            self._values[decoded.key] = cached.value
            self._changes.set_object(decoded.key, cached.value)
            return True
        return self._set_values({**self._values, decoded.key: cached.value})

    def remove(self, decoded: DecodedObject[W]) -> bool:
        """Remove one object, unless the key belongs to another object by now."""
        self._logged_keys.discard(decoded.key)
        before = self._objects.get(decoded.key)
        if before is None or decoded.uid not in ("", before.uid):
            return False
        del self._objects[decoded.key]
        if self._changes is not None:
            del self._values[decoded.key]
            self._changes.remove_object(decoded.key, before.value)
            return True
        values = self._values.copy()
        del values[decoded.key]
        return self._set_values(values)

    def count_unreadable(self, error: str) -> None:
        """Count an object without a readable name."""
        self._malformed("", error)

    def _set_values(self, values: dict[str, T]) -> bool:
        self._values, self.mapping = values, MappingProxyType(values)
        return True

    def _cached(self, decoded: DecodedObject[W]) -> CachedObject[T] | None:
        before = self._objects.get(decoded.key)
        unchanged = before if before is not None and before.uid == decoded.uid else None
        if unchanged is not None and unchanged.version == decoded.version != "":
            return unchanged
        if decoded.body is None:
            self._malformed(decoded.key, decoded.error)
            return unchanged
        try:
            value = self._make(decoded.body)
        except ParseError as error:
            self._malformed(decoded.key, str(error))
            return unchanged
        self._logged_keys.discard(decoded.key)
        return CachedObject(uid=decoded.uid, version=decoded.version, value=value)

    def _malformed(self, key: str, error: str) -> None:
        self.malformed += 1
        if key in self._logged_keys or len(self._logged_keys) >= self._max_objects:
            return
        self._logged_keys.add(key)
        fields = {"resource": self._description, "object": key, "error": error}
        log.warning("malformed_object", extra=fields)
