"""Edits of several vendors into one; what contradicts is refused, never settled by order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

from agent.model.grant.edits import ContainerEdits, MountEdit
from agent.model.grant.refusal import GrantRefused, Refusal

E = TypeVar("E")


def merged(edits: Sequence[ContainerEdits]) -> ContainerEdits:
    """Return all edits as one; equal ones once, mounts by depth.

    `GrantRefused` with `DeviceConflict` if one path, variable, limit or folder is to become two
    different things.
    """
    return ContainerEdits(
        nodes=_once(chain.from_iterable(e.nodes for e in edits), lambda node: node.path),
        mounts=by_depth(_once(chain.from_iterable(e.mounts for e in edits), lambda m: m.path)),
        env=_once(chain.from_iterable(e.env for e in edits), lambda pair: pair[0]),
        cdi=tuple(dict.fromkeys(chain.from_iterable(e.cdi for e in edits))),
        rlimits=_once(chain.from_iterable(e.rlimits for e in edits), lambda limit: limit.name),
        folders=_once(chain.from_iterable(e.folders for e in edits), lambda f: f.host_path),
        notes=tuple(dict.fromkeys(chain.from_iterable(e.notes for e in edits))),
    )


def by_depth(mounts: Iterable[MountEdit]) -> tuple[MountEdit, ...]:
    """Order mounts so that one below another comes after it and is not hidden by it."""
    return tuple(sorted(mounts, key=lambda mount: mount.path.rstrip("/").count("/")))


def _once(items: Iterable[E], name: Callable[[E], str]) -> tuple[E, ...]:
    found: dict[str, E] = {}
    for item in items:
        if found.setdefault(name(item), item) != item:
            raise GrantRefused(Refusal.DEVICE_CONFLICT, f"two answers for {name(item)}")
    return tuple(found.values())
