"""Counts Xids per card. An Xid that the driver and the kernel log both report counts once."""

from __future__ import annotations

import enum
from collections import Counter

import msgspec

from plugins.vendors.nvidia.health.xid import NVLINK_AGAIN_S

SAME_S = 5.0  # two sources report the same event within this time
REPORT_EVERY_S = 5.0  # events of a repeated Xid are published at most this often
MAX_KINDS = 4096  # of (card, number)

CardXid = tuple[str, int]  # card, number


class XidSource(enum.Enum):
    """The source of a report of an Xid."""

    DRIVER = "driver"
    KERNEL_LOG = "kernel log"


class CountedXid(msgspec.Struct, frozen=True):
    """The result of counting one report."""

    is_new: bool  # False: the other source has reported the same event
    is_repeated: bool  # the same number was reported within the ten minutes before
    is_reportable: bool  # no event of this number was published in the last seconds


class XidCounter:
    """Counts by card and number; beyond `MAX_KINDS`, each report counts as new."""

    def __init__(self) -> None:
        self.counts: Counter[CardXid] = Counter()
        self._last: dict[tuple[CardXid, XidSource], float] = {}
        self._reported_s: dict[CardXid, float] = {}
        self._newest: dict[str, int] = {}  # number of the last Xid by card

    def count(self, kind: CardXid, source: XidSource, at_s: float) -> CountedXid:
        """Count a report, unless it is the second one of the same event; `at_s` is monotonic."""
        times = {
            report_source: self._last.get((kind, report_source)) for report_source in XidSource
        }
        others = [
            t for report_source, t in times.items() if report_source is not source and t is not None
        ]
        if any(abs(at_s - t) < SAME_S for t in others):
            return CountedXid(is_new=False, is_repeated=False, is_reportable=False)
        previous = [t for t in times.values() if t is not None]
        reported_s = self._reported_s.get(kind)
        result = CountedXid(
            is_new=True,
            is_repeated=any(0 <= at_s - t <= NVLINK_AGAIN_S for t in previous),
            is_reportable=reported_s is None or abs(at_s - reported_s) >= REPORT_EVERY_S,
        )
        if kind in self.counts or len(self.counts) < MAX_KINDS:
            self.counts[kind] += 1
            self._last[kind, source] = at_s
            self._newest[kind[0]] = kind[1]
            if result.is_reportable:
                self._reported_s[kind] = at_s
        return result

    def last_of(self, card: str) -> int:
        """Return the number of a card's last Xid; 0 if there was none."""
        return self._newest.get(card, 0)

    def counts_of(self, card: str) -> tuple[tuple[int, int], ...]:
        """Return (number, count) of one card, sorted by number."""
        totals = tuple(self.counts.items())
        return tuple(sorted((number, n) for (key, number), n in totals if key == card))
