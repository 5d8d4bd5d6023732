"""How often each card reported each Xid, with the driver and the kernel's log as one witness."""

from __future__ import annotations

import enum
from collections import Counter

import msgspec

from plugins.faults.nvidia.xid import NVLINK_AGAIN_S

SAME_S = 5.0  # two witnesses of one event are not further apart
TOLD_EVERY_S = 5.0  # a card that repeats itself is told of that often
MAX_KINDS = 4096  # of (card, number)

Kind = tuple[str, int]  # card, number


class Witness(enum.Enum):
    """Who reported an Xid."""

    DRIVER = "driver"
    KERNEL_LOG = "kernel log"


class Heard(msgspec.Struct, frozen=True):
    """What one report is worth."""

    new: bool  # False: the other witness has told of it
    again: bool  # another one of this number came within ten minutes before
    tell: bool  # nobody was told of this number in the last seconds


class Tally:
    """Counts, by card and number; kinds beyond the bound are not told apart from new ones."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self._last: dict[tuple[Kind, Witness], float] = {}
        self._told: dict[Kind, float] = {}

    def hear(self, kind: Kind, witness: Witness, at_s: float) -> Heard:
        """Count a report, unless it is the second one of the same event. Seconds are monotonic."""
        times = {who: self._last.get((kind, who)) for who in Witness}
        others = [t for who, t in times.items() if who is not witness and t is not None]
        if any(abs(at_s - t) < SAME_S for t in others):
            return Heard(new=False, again=False, tell=False)
        known = [t for t in times.values() if t is not None]
        told = self._told.get(kind)
        heard = Heard(
            new=True,
            again=any(0 <= at_s - t <= NVLINK_AGAIN_S for t in known),
            tell=told is None or abs(at_s - told) >= TOLD_EVERY_S,
        )
        if kind in self.counts or len(self.counts) < MAX_KINDS:
            self.counts[kind] += 1
            self._last[kind, witness] = at_s
            if heard.tell:
                self._told[kind] = at_s
        return heard

    def of(self, card: str) -> tuple[tuple[int, int], ...]:
        """Return (number, count) of one card, by number."""
        counted = tuple(self.counts.items())
        return tuple(sorted((number, n) for (key, number), n in counted if key == card))
