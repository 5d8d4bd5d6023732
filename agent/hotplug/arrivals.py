"""Functions that came and are not usable yet: looked at again until they are, or given up."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

LOOKS_S = (1.0, 5.0, 15.0)  # after the function came: its driver and its ports take their time
VERDICT_S = 18.0  # what is missing then is told
MAX_ARRIVALS = 1024  # more at once are left to the full scan

Missing = Callable[[str], tuple[str, ...]]


class Due(msgspec.Struct, frozen=True):
    """What is to be done now."""

    look: bool = False  # at the host, once more
    incomplete: tuple[tuple[str, tuple[str, ...]], ...] = ()  # address, and what is missing


class _Arrival(msgspec.Struct):
    came_s: float
    looked: int = 0

    @property
    def next_s(self) -> float:
        """Return when this function is to be judged next."""
        steps = (*LOOKS_S, VERDICT_S)
        return self.came_s + steps[self.looked]


class Arrivals:
    """Remembers a bounded number of functions, each for less than twenty seconds."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Arrival] = {}

    def came(self, address: str, now_s: float) -> None:
        """Begin to wait for a function to be complete; one that comes again begins anew."""
        if address in self._waiting or len(self._waiting) < MAX_ARRIVALS:
            self._waiting[address] = _Arrival(now_s)

    def left(self, address: str) -> None:
        """Wait no longer."""
        self._waiting.pop(address, None)

    @property
    def next_s(self) -> float | None:
        """Return when `take` has something to do; `None` if nothing is awaited."""
        return min((arrival.next_s for arrival in self._waiting.values()), default=None)

    def take(self, now_s: float, missing: Missing) -> Due:
        """Judge those whose time has come; `missing` says what an address lacks."""
        look = False
        incomplete: list[tuple[str, tuple[str, ...]]] = []
        for address, arrival in sorted(self._waiting.items()):
            if arrival.next_s > now_s:
                continue
            lacks = missing(address)
            if lacks and arrival.looked < len(LOOKS_S):
                arrival.looked += 1
                look = True
                continue
            del self._waiting[address]
            if lacks:
                incomplete.append((address, lacks))
        return Due(look, tuple(incomplete))
