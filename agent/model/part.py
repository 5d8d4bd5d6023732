"""A value with its age: what every part of the snapshot is."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Part(msgspec.Struct, Generic[T], frozen=True):
    """A value with the monotonic second it was taken at, and why it is old if it is."""

    value: T
    taken_s: float | None = None  # None: never taken
    error: str = ""  # of the last attempt; the value is then that of an earlier one

    def age_s(self, now_s: float) -> float | None:
        """Return how old the value is; `None` if it was never taken."""
        return None if self.taken_s is None else max(0.0, now_s - self.taken_s)
