"""Events that wait to be sent: counted, rate-limited, bounded.

No clock and no lock of its own. Times are monotonic where they decide when, wall where they are
told.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from agent.kube.flow_control import SubjectBuckets, TokenBucket
from agent.snapshot.cluster import EventCounts
from agent.wire_formats.event import Event

MAX_WAITING = 256  # series with something untold; the oldest of a pod goes first
MAX_SERIES = 512  # series remembered
REPEAT_S = 60.0  # repeats of one series are told together, that far apart
FORGET_S = 3600.0  # a series silent so long starts again; API servers keep an event for an hour
BURST, REFILL_S = 25, 300.0  # of one subject and reason, as client-go has them
TOTAL_BURST, TOTAL_REFILL_S = 50, 5.0  # of the whole node
REST_MESSAGE = "more of these in short time than are told one by one; the agent's log has them"

SeriesKey = tuple[str, ...]


class PendingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told of a series now."""

    event: Event
    first_s: float  # wall
    last_s: float  # wall
    count: int  # since the first time
    sent_count: int  # of these the API server knows; 0: it has no object yet


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
    """Takes events in, says which to tell next, and takes note of how that went."""

    def __init__(self) -> None:
        self._known: OrderedDict[SeriesKey, _SeriesEntry] = (
            OrderedDict()
        )  # the one seen last at the end
        self._waiting: OrderedDict[SeriesKey, None] = OrderedDict()  # in the order of their telling
        self._limits = SubjectBuckets(BURST, REFILL_S)
        self._total = TokenBucket(TOTAL_BURST, TOTAL_REFILL_S)
        self._counts = EventCounts()

    @property
    def counts(self) -> EventCounts:
        """Return the counters as they are now."""
        return msgspec.structs.replace(self._counts, waiting=len(self._waiting))

    def offer(self, event: Event, now_s: float) -> None:
        """Take an event in; those that are too many become one series together."""
        if not self._is_active(event, now_s) and not self._limits.of(_limit_key(event)).take(now_s):
            self._count("limited")
            event = msgspec.structs.replace(event, message=REST_MESSAGE, repeat_key=REST_MESSAGE)
        key = event.series
        entry = self._known.get(key)
        if entry is None or not self._is_active(event, now_s):
            entry = _SeriesEntry(
                event=event, first_s=event.at_s, last_s=event.at_s, last_offer_s=now_s
            )
            self._known[key] = entry
        entry.last_offer_s = now_s
        self._known.move_to_end(key)
        if entry.is_refused:
            self._count("refused")
            return
        entry.count += 1
        entry.last_s = event.at_s
        self._waiting.setdefault(key)
        self._trim()

    def next(self, now_s: float, skip: int = 0) -> PendingEvent | None:
        """Return what to tell now, the oldest first; `skip` passes by as many, round and round.

        Events of pods come last: whoever may make pods can have any number of them told.
        """
        if self._total.wait_s(now_s) > 0:
            return None
        due = [key for key in self._waiting if self._due_in_s(key, now_s) <= 0]
        if not due:
            return None
        due.sort(key=self._is_about_pod)
        entry = self._known[due[skip % len(due)]]
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
        """Note that the API server has it."""
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
        """Note that its object is gone: what is untold becomes a new one."""
        entry = self._entry(item)
        if entry is None:
            return
        entry.count -= entry.sent_count
        entry.sent_count = 0
        entry.first_s = entry.last_s

    def mark_refused(self, item: PendingEvent) -> None:
        """Note that the API server does not take it, and will not take its repeats."""
        self._count("refused", item.count - item.sent_count)
        entry = self._entry(item)
        if entry is None:
            return
        entry.is_refused = True
        entry.sent_count = entry.count
        self._settle(item.event.series, entry)

    def _entry(self, item: PendingEvent) -> _SeriesEntry | None:
        """Return the series of an item; `None` if it was dropped while the item was told."""
        entry = self._known.get(item.event.series)
        return entry if entry is not None and entry.first_s == item.first_s else None

    def _settle(self, key: SeriesKey, entry: _SeriesEntry) -> None:
        self._waiting.pop(key, None)
        if entry.count > entry.sent_count:
            self._waiting[key] = None  # it went on meanwhile: behind the others

    def _is_active(self, event: Event, now_s: float) -> bool:
        """Say whether the series of an event is known, and was not silent for too long."""
        entry = self._known.get(event.series)
        if entry is None:
            return False
        return entry.count > entry.sent_count or now_s - entry.last_offer_s < FORGET_S

    def _due_in_s(self, key: SeriesKey, now_s: float) -> float:
        entry = self._known[key]
        if not entry.sent_count:
            return 0.0
        apart_s = entry.sent_s + REPEAT_S - now_s
        return max(apart_s, self._limits.of(_limit_key(entry.event)).wait_s(now_s))

    def _is_about_pod(self, key: SeriesKey) -> bool:
        return self._known[key].event.pod is not None

    def _trim(self) -> None:
        while len(self._waiting) > MAX_WAITING:
            key = next(filter(self._is_about_pod, self._waiting), next(iter(self._waiting)))
            del self._waiting[key]
            entry = self._known.pop(key)
            self._count("dropped", entry.count - entry.sent_count)
        if len(self._known) > MAX_SERIES:
            del self._known[next(key for key in self._known if key not in self._waiting)]

    def _count(self, name: str, by: int = 1) -> None:
        changed = {name: getattr(self._counts, name) + by}
        self._counts = msgspec.structs.replace(self._counts, **changed)


def _limit_key(event: Event) -> SeriesKey:
    return (*event.subject, event.reason)
