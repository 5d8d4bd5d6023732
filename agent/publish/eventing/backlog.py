"""Events that wait to be told, and what is known of those that were: counted, limited, bounded.

No clock and no lock of its own. Times are monotonic where they decide when, wall where they are
told.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from agent.kube.bucket import Bucket
from agent.publish.eventing.event import Event
from agent.publish.eventing.limits import Buckets

MAX_WAITING = 256  # series with something untold; the oldest of a pod goes first
MAX_SERIES = 512  # series remembered
REPEAT_S = 60.0  # repeats of one series are told together, that far apart
FORGET_S = 3600.0  # a series silent so long starts again; API servers keep an event for an hour
BURST, REFILL_S = 25, 300.0  # of one subject and reason, as client-go has them
TOTAL_BURST, TOTAL_REFILL_S = 50, 5.0  # of the whole node
REST = "more of these in short time than are told one by one; the agent's log has them"

Key = tuple[str, ...]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told of a series now."""

    event: Event
    first_s: float  # wall
    last_s: float  # wall
    count: int  # since the first time
    told: int  # of these the API server knows; 0: it has no object yet


class _Entry(msgspec.Struct, kw_only=True):
    event: Event
    first_s: float
    last_s: float
    seen_s: float
    count: int = 0
    told: int = 0
    told_s: float = 0.0
    refused: bool = False


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Events since the start by what became of them, and how many series wait."""

    created: int = 0
    repeated: int = 0  # writes that told of repeats
    limited: int = 0  # not told one by one: too many of one subject and reason
    dropped: int = 0  # not told: too many waited
    refused: int = 0  # not told: the API server does not take this one
    waiting: int = 0


class Backlog:
    """Takes events in, says which to tell next, and takes note of how that went."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, _Entry] = OrderedDict()  # the one seen last at the end
        self._waiting: OrderedDict[Key, None] = OrderedDict()  # in the order of their telling
        self._limits = Buckets(BURST, REFILL_S)
        self._total = Bucket(TOTAL_BURST, TOTAL_REFILL_S)
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """Return the counters as they are now."""
        return msgspec.structs.replace(self._counts, waiting=len(self._waiting))

    def offer(self, event: Event, now_s: float) -> None:
        """Take an event in; those that are too many become one series together."""
        if not self._goes_on(event, now_s) and not self._limits.of(_limited_by(event)).take(now_s):
            self._count("limited")
            event = msgspec.structs.replace(event, message=REST, kin=REST)
        key = event.series
        entry = self._known.get(key)
        if entry is None or not self._goes_on(event, now_s):
            entry = _Entry(event=event, first_s=event.at_s, last_s=event.at_s, seen_s=now_s)
            self._known[key] = entry
        entry.seen_s = now_s
        self._known.move_to_end(key)
        if entry.refused:
            self._count("refused")
            return
        entry.count += 1
        entry.last_s = event.at_s
        self._waiting.setdefault(key)
        self._trim()

    def next(self, now_s: float, skip: int = 0) -> Item | None:
        """Return what to tell now, the oldest first; `skip` passes by as many, round and round.

        Events of pods come last: whoever may make pods can have any number of them told.
        """
        if self._total.wait_s(now_s) > 0:
            return None
        due = [key for key in self._waiting if self._due_in_s(key, now_s) <= 0]
        if not due:
            return None
        due.sort(key=self._of_pod)
        entry = self._known[due[skip % len(due)]]
        return Item(
            event=entry.event,
            first_s=entry.first_s,
            last_s=entry.last_s,
            count=entry.count,
            told=entry.told,
        )

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until `next` has something; `None`: nothing waits."""
        if not self._waiting:
            return None
        first_s = min(self._due_in_s(key, now_s) for key in self._waiting)
        return max(first_s, self._total.wait_s(now_s))

    def tell(self, item: Item, now_s: float) -> None:
        """Note that the API server has it."""
        self._count("repeated" if item.told else "created")
        self._total.take(now_s)
        if item.told:
            self._limits.of(_limited_by(item.event)).take(now_s)
        entry = self._entry(item)
        if entry is None:
            return
        entry.told, entry.told_s = item.count, now_s
        self._settle(item.event.series, entry)

    def renew(self, item: Item) -> None:
        """Note that its object is gone: what is untold becomes a new one."""
        entry = self._entry(item)
        if entry is None:
            return
        entry.count -= entry.told
        entry.told = 0
        entry.first_s = entry.last_s

    def refuse(self, item: Item) -> None:
        """Note that the API server does not take it, and will not take its repeats."""
        self._count("refused", item.count - item.told)
        entry = self._entry(item)
        if entry is None:
            return
        entry.refused = True
        entry.told = entry.count
        self._settle(item.event.series, entry)

    def _entry(self, item: Item) -> _Entry | None:
        """Return the series of an item; `None` if it was dropped while the item was told."""
        entry = self._known.get(item.event.series)
        return entry if entry is not None and entry.first_s == item.first_s else None

    def _settle(self, key: Key, entry: _Entry) -> None:
        self._waiting.pop(key, None)
        if entry.count > entry.told:
            self._waiting[key] = None  # it went on meanwhile: behind the others

    def _goes_on(self, event: Event, now_s: float) -> bool:
        """Say whether the series of an event is known, and was not silent for too long."""
        entry = self._known.get(event.series)
        if entry is None:
            return False
        return entry.count > entry.told or now_s - entry.seen_s < FORGET_S

    def _due_in_s(self, key: Key, now_s: float) -> float:
        entry = self._known[key]
        if not entry.told:
            return 0.0
        apart_s = entry.told_s + REPEAT_S - now_s
        return max(apart_s, self._limits.of(_limited_by(entry.event)).wait_s(now_s))

    def _of_pod(self, key: Key) -> bool:
        return self._known[key].event.pod is not None

    def _trim(self) -> None:
        while len(self._waiting) > MAX_WAITING:
            key = next(filter(self._of_pod, self._waiting), next(iter(self._waiting)))
            del self._waiting[key]
            entry = self._known.pop(key)
            self._count("dropped", entry.count - entry.told)
        if len(self._known) > MAX_SERIES:
            del self._known[next(key for key in self._known if key not in self._waiting)]

    def _count(self, name: str, by: int = 1) -> None:
        changed = {name: getattr(self._counts, name) + by}
        self._counts = msgspec.structs.replace(self._counts, **changed)


def _limited_by(event: Event) -> Key:
    return (*event.subject, event.reason)
