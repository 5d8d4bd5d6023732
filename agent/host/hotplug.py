"""Decides when to read the host again after uevents; tracks functions that are not usable yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from agent.host.uevents import RescanScope, Uevent
from agent.snapshot.part import Counts

QUIET_S = 0.2  # without another event: then it is time to look

MAX_WINDOW_S = 2.0  # of a window, however many events there are

MIN_INTERVAL_S = 1.0  # between two looks

GAP_INTERVAL_S = 30.0  # between two full looks because of a gap in the sequence

GAP = "gap"

ALL_SCOPES = frozenset(RescanScope)


class Rescan(msgspec.Struct, frozen=True):
    """Which parts to read again, and what made it necessary: event, arrival, gap or lost."""

    parts: frozenset[RescanScope]
    cause: str


class RescanWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Events that are answered by one look. Without parts there is nothing to look for."""

    parts: frozenset[RescanScope] = frozenset()
    cause: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    looked_s: float = float("-inf")
    gap_looked_s: float = float("-inf")

    def extend(self, scopes: frozenset[RescanScope], cause: str, now_s: float) -> RescanWindow:
        """Return the window with one more reason to look; no parts change nothing."""
        if not scopes:
            return self
        # a gap may wait, and what comes meanwhile must not wait with it
        fresh = not self.parts or (self.cause == GAP and cause != GAP)
        return msgspec.structs.replace(
            self,
            parts=self.parts | scopes,
            cause=cause if fresh else self.cause,
            first_s=now_s if fresh else self.first_s,
            last_s=now_s,
        )

    @property
    def due_s(self) -> float | None:
        """Return when to look; `None` if there is no reason to."""
        if not self.parts:
            return None
        due_s = min(self.last_s + QUIET_S, self.first_s + MAX_WINDOW_S)
        # events of other network namespaces are not shown to us: gaps are many where pods start
        gap_s = self.gap_looked_s + GAP_INTERVAL_S if self.cause == GAP else due_s
        return max(due_s, self.looked_s + MIN_INTERVAL_S, gap_s)

    def take_due(self, now_s: float) -> tuple[Rescan | None, RescanWindow]:
        """Return the look that is due, and the window after it."""
        due_s = self.due_s
        if due_s is None or now_s < due_s:
            return None, self
        gap_s = now_s if self.parts == ALL_SCOPES else self.gap_looked_s
        return Rescan(self.parts, self.cause), RescanWindow(looked_s=now_s, gap_looked_s=gap_s)


RESCAN_DELAYS_S = (
    1.0,
    5.0,
    15.0,
)  # after the function came: its driver and its ports take their time

GIVE_UP_S = 18.0  # what is missing then is told

MAX_ARRIVALS = 1024  # more at once are left to the full scan

MissingParts = Callable[[str], tuple[str, ...]]


class ArrivalCheck(msgspec.Struct, frozen=True):
    """What is to be done now."""

    look: bool = False  # at the host, once more
    incomplete: tuple[tuple[str, tuple[str, ...]], ...] = ()  # address, and what is missing


class _PendingFunction(msgspec.Struct):
    came_s: float
    looked: int = 0

    @property
    def next_s(self) -> float:
        """Return when this function is to be judged next."""
        steps = (*RESCAN_DELAYS_S, GIVE_UP_S)
        return self.came_s + steps[self.looked]


class PendingFunctions:
    """Remembers a bounded number of functions, each for less than twenty seconds."""

    def __init__(self) -> None:
        self._waiting: dict[str, _PendingFunction] = {}

    def add(self, address: str, now_s: float) -> None:
        """Begin to wait for a function to be complete; one that comes again begins anew."""
        if address in self._waiting or len(self._waiting) < MAX_ARRIVALS:
            self._waiting[address] = _PendingFunction(now_s)

    def remove(self, address: str) -> None:
        """Wait no longer."""
        self._waiting.pop(address, None)

    @property
    def next_s(self) -> float | None:
        """Return when `take` has something to do; `None` if nothing is awaited."""
        return min((arrival.next_s for arrival in self._waiting.values()), default=None)

    def take_due(self, now_s: float, missing: MissingParts) -> ArrivalCheck:
        """Judge those whose time has come; `missing` says what an address lacks."""
        look = False
        incomplete: list[tuple[str, tuple[str, ...]]] = []
        for address, arrival in sorted(self._waiting.items()):
            if arrival.next_s > now_s:
                continue
            lacks = missing(address)
            if lacks and arrival.looked < len(RESCAN_DELAYS_S):
                arrival.looked += 1
                look = True
                continue
            del self._waiting[address]
            if lacks:
                incomplete.append((address, lacks))
        return ArrivalCheck(look, tuple(incomplete))


OTHER = "other"


class HotplugTracker:
    """Decides; whoever calls it listens, waits and looks. All times are monotonic seconds."""

    def __init__(self, driver_modules: tuple[str, ...] = ()) -> None:
        """`driver_modules`: how names of the modules of vendors' drivers start."""
        self._driver_modules = driver_modules
        self._window = RescanWindow()
        self._arrivals = PendingFunctions()
        self._number: int | None = None
        self._seen: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._looks: Counter[str] = Counter()

    def handle_event(self, event: Uevent | str, now_s: float) -> str | None:
        """Take an event, or why one was dropped; return the address of a function that left."""
        if isinstance(event, str):
            self._dropped[event] += 1
            return None
        self._follow(event, now_s)
        scopes = event.scopes(self._driver_modules)
        self._seen[event.subsystem if scopes else OTHER] += 1
        self._window = self._window.extend(scopes, "event", now_s)
        if event.address is not None and event.is_function_added:
            self._arrivals.add(event.address, now_s)
        if event.address is not None and event.is_function_removed:
            self._arrivals.remove(event.address)
            return event.address
        return None

    def request_rescan(
        self, now_s: float, cause: str, scopes: frozenset[RescanScope] = ALL_SCOPES
    ) -> None:
        """Take that nobody knows what has happened so far: these parts have to be read again."""
        self._number = None
        self._window = self._window.extend(scopes, cause, now_s)

    def _follow(self, event: Uevent, now_s: float) -> None:
        number, last = event.sequence_number, self._number
        if number is None or (last is not None and number <= last):
            return  # the kernel may hand out two numbers in the other order
        if last is not None and number > last + 1:
            self._window = self._window.extend(ALL_SCOPES, GAP, now_s)
        self._number = number

    @property
    def next_s(self) -> float | None:
        """Return when `take` has something to do; `None`: not before the next event."""
        times = (self._window.due_s, self._arrivals.next_s)
        return min((time_s for time_s in times if time_s is not None), default=None)

    def take_due(self, now_s: float, missing: MissingParts) -> tuple[Rescan | None, ArrivalCheck]:
        """Return the look that is due now, and the functions that will not be complete."""
        due = self._arrivals.take_due(now_s, missing)
        if due.look:
            self._window = self._window.extend(ALL_SCOPES, "arrival", now_s)
        look, self._window = self._window.take_due(now_s)
        if look is not None:
            self._looks[look.cause] += 1
        return look, due

    @property
    def event_counts(self) -> Counts:
        """Return how many events there were, by subsystem; those without meaning are `other`."""
        return _sorted_counts(self._seen)

    @property
    def dropped_counts(self) -> Counts:
        """Return how many messages were no events of the kernel, by why."""
        return _sorted_counts(self._dropped)

    @property
    def rescan_counts(self) -> Counts:
        """Return how often the host was looked at, by cause."""
        return _sorted_counts(self._looks)


def _sorted_counts(counter: Counter[str]) -> Counts:
    return tuple(sorted(counter.items()))
