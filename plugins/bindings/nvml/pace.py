"""How often a call is made, by what it costs: dear ones are made rarely. Pure."""

from __future__ import annotations

import math

CHEAP_S = 0.004  # a group of calls that takes less is made in every cycle
SELDOM = 10  # cycles between two calls at most
_KEPT = 3  # durations; the shortest counts, so that one disturbance makes nothing dear


class Pace:
    """The rhythm of one group of calls on one card."""

    def __init__(self) -> None:
        self._took: list[float] = []
        self._next = 0

    def due(self, cycle: int) -> bool:
        """Say whether the group is to be called in this cycle."""
        return cycle >= self._next

    def took(self, cycle: int, seconds: float) -> None:
        """Note what a call cost, and when the next one is due: in proportion."""
        self._took = [*self._took, seconds][-_KEPT:]
        shortest = min(self._took) if len(self._took) == _KEPT else 0.0
        self._next = cycle + min(SELDOM, max(1, math.ceil(shortest / CHEAP_S)))
