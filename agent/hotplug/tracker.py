"""All that is remembered of the kernel's events: counts, the sequence, what is due and when."""

from __future__ import annotations

from collections import Counter

from agent.hotplug.arrivals import Arrivals, Due, Missing
from agent.hotplug.uevent import Part, Uevent
from agent.hotplug.window import EVERYTHING, GAP, Look, Window
from agent.model.snapshot import Counts

OTHER = "other"


class Tracker:
    """Decides; whoever calls it listens, waits and looks. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._window = Window()
        self._arrivals = Arrivals()
        self._number: int | None = None
        self._seen: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._looks: Counter[str] = Counter()

    def hear(self, event: Uevent | str, now_s: float) -> str | None:
        """Take an event, or why one was dropped; return the address of a function that left."""
        if isinstance(event, str):
            self._dropped[event] += 1
            return None
        self._follow(event, now_s)
        parts = event.parts
        self._seen[event.subsystem if parts else OTHER] += 1
        self._window = self._window.opened(parts, "event", now_s)
        if event.address is not None and event.function_came:
            self._arrivals.came(event.address, now_s)
        if event.address is not None and event.function_left:
            self._arrivals.left(event.address)
            return event.address
        return None

    def must_look(self, now_s: float, cause: str, parts: frozenset[Part] = EVERYTHING) -> None:
        """Take that nobody knows what has happened so far: these parts have to be read again."""
        self._number = None
        self._window = self._window.opened(parts, cause, now_s)

    def _follow(self, event: Uevent, now_s: float) -> None:
        number, last = event.number, self._number
        if number is None or (last is not None and number <= last):
            return  # the kernel may hand out two numbers in the other order
        if last is not None and number > last + 1:
            self._window = self._window.opened(EVERYTHING, GAP, now_s)
        self._number = number

    @property
    def next_s(self) -> float | None:
        """Return when `take` has something to do; `None`: not before the next event."""
        times = (self._window.due_s, self._arrivals.next_s)
        return min((time_s for time_s in times if time_s is not None), default=None)

    def take(self, now_s: float, missing: Missing) -> tuple[Look | None, Due]:
        """Return the look that is due now, and the functions that will not be complete."""
        due = self._arrivals.take(now_s, missing)
        if due.look:
            self._window = self._window.opened(EVERYTHING, "arrival", now_s)
        look, self._window = self._window.taken(now_s)
        if look is not None:
            self._looks[look.cause] += 1
        return look, due

    @property
    def seen(self) -> Counts:
        """Return how many events there were, by subsystem; those without meaning are `other`."""
        return _counts(self._seen)

    @property
    def dropped(self) -> Counts:
        """Return how many messages were no events of the kernel, by why."""
        return _counts(self._dropped)

    @property
    def looks(self) -> Counts:
        """Return how often the host was looked at, by cause."""
        return _counts(self._looks)


def _counts(counter: Counter[str]) -> Counts:
    return tuple(sorted(counter.items()))
