"""Counts Xids per card; the driver and the kernel log count one Xid once."""

from __future__ import annotations

import enum
from collections import Counter

import msgspec

from plugins.vendors.nvidia.health.xid import NVLINK_AGAIN_S

SAME_S = 5.0  # two witnesses of one event are not further apart
REPORT_EVERY_S = 5.0  # a card that repeats itself is told of that often
MAX_KINDS = 4096  # of (card, number)

CardXid = tuple[str, int]  # card, number


class XidSource(enum.Enum):
    """Who reported an Xid."""

    DRIVER = "driver"
    KERNEL_LOG = "kernel log"


class CountedXid(msgspec.Struct, frozen=True):
    """What one report is worth."""

    is_new: bool  # False: the other witness has told of it
    is_repeated: bool  # another one of this number came within ten minutes before
    is_reported: bool  # nobody was told of this number in the last seconds


class XidCounter:
    """Counts, by card and number; kinds beyond the bound are not told apart from new ones."""

    def __init__(self) -> None:
        self.counts: Counter[CardXid] = Counter()
        self._last: dict[tuple[CardXid, XidSource], float] = {}
        self._told: dict[CardXid, float] = {}

    def count(self, kind: CardXid, witness: XidSource, at_s: float) -> CountedXid:
        """Count a report, unless it is the second one of the same event. Seconds are monotonic."""
        times = {who: self._last.get((kind, who)) for who in XidSource}
        others = [t for who, t in times.items() if who is not witness and t is not None]
        if any(abs(at_s - t) < SAME_S for t in others):
            return CountedXid(is_new=False, is_repeated=False, is_reported=False)
        known = [t for t in times.values() if t is not None]
        told = self._told.get(kind)
        heard = CountedXid(
            is_new=True,
            is_repeated=any(0 <= at_s - t <= NVLINK_AGAIN_S for t in known),
            is_reported=told is None or abs(at_s - told) >= REPORT_EVERY_S,
        )
        if kind in self.counts or len(self.counts) < MAX_KINDS:
            self.counts[kind] += 1
            self._last[kind, witness] = at_s
            if heard.is_reported:
                self._told[kind] = at_s
        return heard

    def counts_of(self, card: str) -> tuple[tuple[int, int], ...]:
        """Return (number, count) of one card, by number."""
        counted = tuple(self.counts.items())
        return tuple(sorted((number, n) for (key, number), n in counted if key == card))
