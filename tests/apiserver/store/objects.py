"""The objects: kept whole, replaced whole, one version counter for all, dependents collected."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from tests.apiserver.schema.kinds import Kind
from tests.apiserver.store.history import Change, History, Key, Object

FIRST_VERSION = 1000


class Store:
    """Objects by resource. Bodies are never edited after they were put in; `lock` guards all.

    `changed` is called after each write, with the lock held.
    """

    def __init__(self, kinds: Iterable[Kind], *, collects_garbage: bool = True) -> None:
        self.lock = threading.RLock()
        self.kinds: dict[str, Kind] = {kind.plural: kind for kind in kinds}
        self.objects: dict[str, dict[Key, Object]] = {}
        self.history = History(FIRST_VERSION)
        self.collects_garbage = collects_garbage
        self.changed: Callable[[], None] = lambda: None

    def of(self, kind: Kind) -> dict[Key, Object]:
        """Return the objects of a resource; not to be edited."""
        return self.objects.setdefault(kind.plural, {})

    def put(self, kind: Kind, key: Key, body: Object) -> Object:
        """Store a body under the next version; return it. The body becomes the store's."""
        with self.lock:
            before = self.of(kind).get(key)
            version = self.history.next_version()
            body["metadata"]["resourceVersion"] = str(version)
            self.of(kind)[key] = body
            self._note(kind, key, body, before, deleted=False)
            if self._is_orphan(body):
                self.delete(kind, key)
            return body

    def delete(self, kind: Kind, key: Key) -> Object:
        """Remove an object and, after it, what it owned; return its last state."""
        with self.lock:
            before = self.of(kind).pop(key)
            version = self.history.next_version()
            metadata = {**before["metadata"], "resourceVersion": str(version)}
            last = {**before, "metadata": metadata}
            self._note(kind, key, last, before, deleted=True)
            if self.collects_garbage:
                self._collect(before["metadata"].get("uid"))
            return last

    def remove_kind(self, plural: str) -> None:
        """Forget a resource with all of its objects, as removing its CRD does."""
        with self.lock:
            kind = self.kinds[plural]
            for key in list(self.of(kind)):
                self.delete(kind, key)
            del self.kinds[plural]
            self.changed()

    def add_kind(self, kind: Kind) -> None:
        """Serve a resource from now on; objects that are there stay."""
        with self.lock:
            self.kinds[kind.plural] = kind
            self.changed()

    def find(self, name: str) -> Kind | None:
        """Return a kind by its plural, kind, singular or short name."""
        lower = name.lower()
        for kind in self.kinds.values():
            if lower in (kind.plural, kind.kind.lower(), kind.singular, *kind.short_names):
                return kind
        return None

    def _note(
        self, kind: Kind, key: Key, body: Object, before: Object | None, *, deleted: bool
    ) -> None:
        change = Change(
            version=self.history.version,
            plural=kind.plural,
            group=kind.group,
            key=key,
            body=body,
            previous=before,
            deleted=deleted,
        )
        self.history.add(change)
        self.changed()

    def _is_orphan(self, body: Object) -> bool:
        """Return whether all owners are Nodes that are not there (any more)."""
        owners = _owners(body)
        if not self.collects_garbage or not owners:
            return False
        nodes = {node["metadata"]["uid"] for node in self.objects.get("nodes", {}).values()}
        return all(
            owner.get("kind") == "Node" and owner.get("uid") not in nodes for owner in owners
        )

    def _collect(self, uid: object) -> None:
        for kind in list(self.kinds.values()):
            for key, body in list(self.of(kind).items()):
                if any(owner.get("uid") == uid for owner in _owners(body)) and self._is_orphan(
                    body
                ):
                    self.delete(kind, key)


def _owners(body: Object) -> list[dict[str, Any]]:
    owners = body.get("metadata", {}).get("ownerReferences")
    return (
        [owner for owner in owners if isinstance(owner, dict)] if isinstance(owners, list) else []
    )


def new_uid() -> str:
    """Return a uid that no object had before."""
    return str(uuid.uuid4())


def now_text(now_s: float) -> str:
    """Return a time as objects carry it: whole seconds, UTC."""
    return datetime.fromtimestamp(int(now_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
