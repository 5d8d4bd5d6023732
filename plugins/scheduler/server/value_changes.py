"""Watches of the whole cluster that report each object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from agent.clock import Clock
from agent.kube.api import ApiClient
from agent.kube.watch.cache import ObjectChanges
from agent.kube.watch.decoder import WatchedKind
from agent.kube.watch.machine import ListLimits
from agent.kube.watch.reflector import Reflector, WatchScope

CLUSTER_LIMITS = ListLimits(objects=200_000, pages=512, bytes=2 << 30)
T = TypeVar("T")


class ValueChanges(Generic[T]):
    """Objects of one kind.

    `set_value` gets an object's name and value, and `None` when it is removed.
    """

    def __init__(self, set_value: Callable[[str, T | None], None]) -> None:
        self._set_value = set_value
        self._names: set[str] = set()

    def replace_objects(self, values: Mapping[str, T]) -> None:
        """Store a complete list."""
        for name in self._names - values.keys():
            self._set_value(name, None)
        self._names = set(values)
        for name, value in values.items():
            self._set_value(name, value)

    def set_object(self, key: str, value: T) -> None:
        """Store a new or changed object."""
        self._names.add(key)
        self._set_value(key, value)

    def remove_object(self, key: str, value: T) -> None:  # noqa: ARG002 - as its Protocol
        """Remove an object."""
        self._names.discard(key)
        self._set_value(key, None)


def watch_values(
    kind: WatchedKind[Any, T],
    api: ApiClient,
    clock: Clock,
    set_value: Callable[[str, T | None], None],
) -> Reflector[Any, T]:
    """Return a watch of all objects of a kind."""
    return watch_changes(kind, api, clock, ValueChanges(set_value))


def watch_changes(
    kind: WatchedKind[Any, Any],
    api: ApiClient,
    clock: Clock,
    changes: ObjectChanges[Any],
    *,
    recent: bool = False,
) -> Reflector[Any, Any]:
    """Return a watch of all objects of a kind; `recent`: its lists are of the most recent state."""
    return Reflector(
        kind,
        api,
        on_change=_ignore_objects,
        clock=clock,
        scope=WatchScope(limits=CLUSTER_LIMITS, recent=recent),
        changes=changes,
    )


def _ignore_objects(_: Mapping[str, object]) -> None:
    """Do nothing: single changes are reported."""
