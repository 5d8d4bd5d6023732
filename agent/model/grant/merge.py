"""Edits of several vendors into one; what contradicts is refused, never settled by order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import TypeVar

from agent.model.grant.edits import NONE, ContainerEdits, MountEdit
from agent.model.grant.refusal import GrantRefused, Refusal

E = TypeVar("E")


def merged(edits: Sequence[ContainerEdits]) -> ContainerEdits:
    """Return all edits as one; equal ones once, mounts by depth.

    `GrantRefused` with `DeviceConflict` if one path, variable, limit or folder is to become two
    different things.
    """
    some = [one for one in edits if one != NONE]
    if not some:
        return NONE
    return ContainerEdits(
        nodes=_once([node for one in some for node in one.nodes], attrgetter("path")),
        mounts=by_depth(_once([m for one in some for m in one.mounts], attrgetter("path"))),
        env=_once([pair for one in some for pair in one.env], itemgetter(0)),
        cdi=tuple(dict.fromkeys([name for one in some for name in one.cdi])),
        rlimits=_once([limit for one in some for limit in one.rlimits], attrgetter("name")),
        folders=_once([f for one in some for f in one.folders], attrgetter("host_path")),
        notes=tuple(dict.fromkeys([note for one in some for note in one.notes])),
    )


def by_depth(mounts: Iterable[MountEdit]) -> tuple[MountEdit, ...]:
    """Order mounts so that one below another comes after it and is not hidden by it."""
    return tuple(sorted(mounts, key=lambda mount: mount.path.rstrip("/").count("/")))


def _once(items: Sequence[E], name: Callable[[E], str]) -> tuple[E, ...]:
    if not items:
        return ()
    found: dict[str, E] = {}
    for item in items:
        if found.setdefault(name(item), item) != item:
            raise GrantRefused(Refusal.DEVICE_CONFLICT, f"two answers for {name(item)}")
    return tuple(found.values())
