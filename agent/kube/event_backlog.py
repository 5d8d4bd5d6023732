"""Events that wait to be sent: counted, rate-limited, bounded.

This module has no clock and no lock. Times for decisions are monotonic; times in events are wall
times.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from agent.kube.flow_control import SubjectBuckets, TokenBucket
from agent.snapshot.cluster import EventCounts
from agent.wire_formats.event import Event

MAX_WAITING = 256  # series with unsent events; the oldest of a pod is dropped first
MAX_SERIES = 512  # remembered, sent ones included
REPEAT_S = 60.0  # between two updates of one series, each with all its repeats
FORGET_S = 3600.0  # after this silence a series starts again; API servers keep events an hour
BURST, REFILL_S = 25, 300.0  # of one subject and reason, as in client-go
TOTAL_BURST, TOTAL_REFILL_S = 50, 5.0  # of the whole node
REST_MESSAGE = "more of these in short time than are told one by one; the agent's log has them"

SeriesKey = tuple[str, ...]


class PendingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What to send of a series now."""

    event: Event
    first_s: float  # wall
    last_s: float  # wall
    count: int  # since `first_s`
    sent_count: int  # how many of these were sent; 0: the server has no object yet


class _SeriesEntry(msgspec.Struct, kw_only=True):
    event: Event
    first_s: float
    last_s: float
    last_offer_s: float
    count: int = 0
    sent_count: int = 0
    sent_s: float = 0.0
    is_refused: bool = False


class EventBacklog:
    """Takes events, returns the next one to send, and records the result."""

    def __init__(self) -> None:
        self._series: OrderedDict[SeriesKey, _SeriesEntry] = (
            OrderedDict()
        )  # the latest offer at the end
        self._waiting: OrderedDict[SeriesKey, None] = OrderedDict()  # in the order of sending
        self._limits = SubjectBuckets(BURST, REFILL_S)
        self._total = TokenBucket(TOTAL_BURST, TOTAL_REFILL_S)
        self._counts = EventCounts()

    @property
    def counts(self) -> EventCounts:
        """Return the current counters."""
        return msgspec.structs.replace(self._counts, waiting=len(self._waiting))

    def offer(self, event: Event, now_s: float) -> None:
        """Take an event; events beyond the rate limit are joined into one series."""
        if not self._is_active(event, now_s) and not self._limits.of(_limit_key(event)).take(now_s):
            self._count("limited")
            event = msgspec.structs.replace(event, message=REST_MESSAGE, repeat_key=REST_MESSAGE)
        key = event.series
        entry = self._series.get(key)
        if entry is None or not self._is_active(event, now_s):
            entry = _SeriesEntry(
                event=event, first_s=event.at_s, last_s=event.at_s, last_offer_s=now_s
            )
            self._series[key] = entry
        entry.last_offer_s = now_s
        self._series.move_to_end(key)
        if entry.is_refused:
            self._count("refused")
            return
        entry.count += 1
        entry.last_s = event.at_s
        self._waiting.setdefault(key)
        self._trim()

    def next(self, now_s: float, skip: int = 0) -> PendingEvent | None:
        """Return the event to send now, the oldest first; `skip` skips as many, cyclically.

        Events of pods come last: users who may create pods can cause any number of them.
        """
        if self._total.wait_s(now_s) > 0:
            return None
        due = [key for key in self._waiting if self._due_in_s(key, now_s) <= 0]
        if not due:
            return None
        due.sort(key=self._is_about_pod)
        entry = self._series[due[skip % len(due)]]
        return PendingEvent(
            event=entry.event,
            first_s=entry.first_s,
            last_s=entry.last_s,
            count=entry.count,
            sent_count=entry.sent_count,
        )

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until `next` has something; `None`: nothing waits."""
        if not self._waiting:
            return None
        first_s = min(self._due_in_s(key, now_s) for key in self._waiting)
        return max(first_s, self._total.wait_s(now_s))

    def mark_sent(self, item: PendingEvent, now_s: float) -> None:
        """Record that the API server has the event."""
        self._count("repeated" if item.sent_count else "created")
        self._total.take(now_s)
        if item.sent_count:
            self._limits.of(_limit_key(item.event)).take(now_s)
        entry = self._entry(item)
        if entry is None:
            return
        entry.sent_count, entry.sent_s = item.count, now_s
        self._settle(item.event.series, entry)

    def mark_missing(self, item: PendingEvent) -> None:
        """Record that the server's object is gone: unsent repeats become a new one."""
        entry = self._entry(item)
        if entry is None:
            return
        entry.count -= entry.sent_count
        entry.sent_count = 0
        entry.first_s = entry.last_s

    def mark_refused(self, item: PendingEvent) -> None:
        """Record that the API server refuses the event; its repeats are not sent either."""
        self._count("refused", item.count - item.sent_count)
        entry = self._entry(item)
        if entry is None:
            return
        entry.is_refused = True
        entry.sent_count = entry.count
        self._settle(item.event.series, entry)

    def _entry(self, item: PendingEvent) -> _SeriesEntry | None:
        """Return the series of an item; `None` if it was dropped while the item was sent."""
        entry = self._series.get(item.event.series)
        return entry if entry is not None and entry.first_s == item.first_s else None

    def _settle(self, key: SeriesKey, entry: _SeriesEntry) -> None:
        self._waiting.pop(key, None)
        if entry.count > entry.sent_count:
            self._waiting[key] = None  # more repeats came meanwhile: queue it behind the others

    def _is_active(self, event: Event, now_s: float) -> bool:
        """Return whether the series of an event exists and was not silent for too long."""
        entry = self._series.get(event.series)
        if entry is None:
            return False
        return entry.count > entry.sent_count or now_s - entry.last_offer_s < FORGET_S

    def _due_in_s(self, key: SeriesKey, now_s: float) -> float:
        entry = self._series[key]
        if not entry.sent_count:
            return 0.0
        interval_s = entry.sent_s + REPEAT_S - now_s
        return max(interval_s, self._limits.of(_limit_key(entry.event)).wait_s(now_s))

    def _is_about_pod(self, key: SeriesKey) -> bool:
        return self._series[key].event.pod is not None

    def _trim(self) -> None:
        while len(self._waiting) > MAX_WAITING:
            key = next(filter(self._is_about_pod, self._waiting), next(iter(self._waiting)))
            del self._waiting[key]
            entry = self._series.pop(key)
            self._count("dropped", entry.count - entry.sent_count)
        if len(self._series) > MAX_SERIES:
            del self._series[next(key for key in self._series if key not in self._waiting)]

    def _count(self, name: str, by: int = 1) -> None:
        changed = {name: getattr(self._counts, name) + by}
        self._counts = msgspec.structs.replace(self._counts, **changed)


def _limit_key(event: Event) -> SeriesKey:
    return (*event.subject, event.reason)
