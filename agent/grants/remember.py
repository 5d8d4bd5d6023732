"""What many questions need is made once, and again when what it was made of is replaced."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Generic, TypeVar

from agent.model.snapshot import NodeSnapshot

T = TypeVar("T")


class Remembered(Generic[T]):
    """A function of a few parts of the snapshot, called only when one of them is another object.

    Parts are frozen and replaced whole, so identity is enough. `of` gets what it returned last,
    for the rare rule where a worthless input leaves the old one standing. May be called from
    several threads: each takes one reference, and the work is at worst done twice.
    """

    def __init__(
        self,
        parts: Callable[[NodeSnapshot], tuple[object, ...]],
        of: Callable[[NodeSnapshot, T | None], T],
    ) -> None:
        self._parts = parts
        self._of = of
        self._kept: tuple[tuple[object, ...], T] | None = None

    def __call__(self, snapshot: NodeSnapshot) -> T:
        """Return the value for this snapshot."""
        parts, kept = self._parts(snapshot), self._kept
        # `is` for each, in C; parts may come and go, as vendors do
        if kept is not None and len(kept[0]) == len(parts) and all(map(is_, kept[0], parts)):
            return kept[1]
        value = self._of(snapshot, None if kept is None else kept[1])
        self._kept = (parts, value)
        return value
