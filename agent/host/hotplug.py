"""Decides when to read the host again after uevents; tracks functions that are not complete yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from agent.host.uevents import RescanScope, Uevent
from agent.snapshot.part import Counts

QUIET_S = 0.2  # without another event: then the host is read
MAX_WINDOW_S = 2.0  # longest window, for any number of events
MIN_INTERVAL_S = 1.0  # between two rescans
GAP_INTERVAL_S = 30.0  # between two full rescans because of a gap in the sequence numbers
GAP = "gap"
ALL_SCOPES = frozenset(RescanScope)


class Rescan(msgspec.Struct, frozen=True):
    """The parts to read again, and the cause: event, arrival, gap or lost."""

    scopes: frozenset[RescanScope]
    cause: str


class RescanWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Events that one rescan answers. Without scopes no rescan is needed."""

    scopes: frozenset[RescanScope] = frozenset()
    cause: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    last_rescan_s: float = float("-inf")
    last_gap_rescan_s: float = float("-inf")

    def extend(self, scopes: frozenset[RescanScope], cause: str, now_s: float) -> RescanWindow:
        """Return the window with one more cause; without scopes it stays the same."""
        if not scopes:
            return self
        # a gap may wait, and later events must not wait with it
        is_new = not self.scopes or (self.cause == GAP and cause != GAP)
        return msgspec.structs.replace(
            self,
            scopes=self.scopes | scopes,
            cause=cause if is_new else self.cause,
            first_s=now_s if is_new else self.first_s,
            last_s=now_s,
        )

    @property
    def due_s(self) -> float | None:
        """Return when the rescan is due; `None` if there is no cause."""
        if not self.scopes:
            return None
        due_s = min(self.last_s + QUIET_S, self.first_s + MAX_WINDOW_S)
        # events of other network namespaces are not visible: gaps are frequent where pods start
        gap_s = self.last_gap_rescan_s + GAP_INTERVAL_S if self.cause == GAP else due_s
        return max(due_s, self.last_rescan_s + MIN_INTERVAL_S, gap_s)

    def pop_due(self, now_s: float) -> tuple[Rescan | None, RescanWindow]:
        """Return the rescan that is due, and the window after it."""
        due_s = self.due_s
        if due_s is None or now_s < due_s:
            return None, self
        gap_s = now_s if self.scopes == ALL_SCOPES else self.last_gap_rescan_s
        return Rescan(self.scopes, self.cause), RescanWindow(
            last_rescan_s=now_s, last_gap_rescan_s=gap_s
        )


RESCAN_DELAYS_S = (1.0, 5.0, 15.0)  # after the arrival: drivers and ports take their time
GIVE_UP_S = 18.0  # after that, missing parts are reported
MAX_ARRIVALS = 1024  # the full scan covers further ones

MissingParts = Callable[[str], tuple[str, ...]]


class ArrivalCheck(msgspec.Struct, frozen=True):
    """The work that is due now."""

    look: bool = False  # read the host once more
    incomplete: tuple[tuple[str, tuple[str, ...]], ...] = ()  # address, and missing parts


class _PendingFunction(msgspec.Struct):
    arrival_s: float
    check_count: int = 0

    @property
    def next_s(self) -> float:
        """Return when this function is checked next."""
        steps = (*RESCAN_DELAYS_S, GIVE_UP_S)
        return self.arrival_s + steps[self.check_count]


class PendingFunctions:
    """Tracks a bounded number of new functions, each for less than twenty seconds."""

    def __init__(self) -> None:
        self._pending: dict[str, _PendingFunction] = {}

    def add(self, address: str, now_s: float) -> None:
        """Start to track a function until it is complete; a known one starts again."""
        if address in self._pending or len(self._pending) < MAX_ARRIVALS:
            self._pending[address] = _PendingFunction(now_s)

    def remove(self, address: str) -> None:
        """Stop tracking a function."""
        self._pending.pop(address, None)

    @property
    def next_s(self) -> float | None:
        """Return when `pop_due` has work; `None` without pending functions."""
        return min((arrival.next_s for arrival in self._pending.values()), default=None)

    def pop_due(self, now_s: float, missing: MissingParts) -> ArrivalCheck:
        """Check the functions whose time has come; `missing` returns what an address lacks."""
        needs_rescan = False
        incomplete: list[tuple[str, tuple[str, ...]]] = []
        for address, arrival in sorted(self._pending.items()):
            if arrival.next_s > now_s:
                continue
            missing_parts = missing(address)
            if missing_parts and arrival.check_count < len(RESCAN_DELAYS_S):
                arrival.check_count += 1
                needs_rescan = True
                continue
            del self._pending[address]
            if missing_parts:
                incomplete.append((address, missing_parts))
        return ArrivalCheck(needs_rescan, tuple(incomplete))


OTHER = "other"


class HotplugTracker:
    """Decides when to rescan; the caller reads events, waits and rescans. Times are monotonic."""

    def __init__(self, driver_modules: tuple[str, ...] = ()) -> None:
        """`driver_modules` are prefixes of the names of vendors' driver modules."""
        self._driver_modules = driver_modules
        self._window = RescanWindow()
        self._arrivals = PendingFunctions()
        self._number: int | None = None
        self._event_counts: Counter[str] = Counter()
        self._dropped_counts: Counter[str] = Counter()
        self._rescan_counts: Counter[str] = Counter()

    def handle_event(self, event: Uevent | str, now_s: float) -> str | None:
        """Record an event, or why one was dropped; return the address of a removed function."""
        if isinstance(event, str):
            self._dropped_counts[event] += 1
            return None
        self._check_sequence(event, now_s)
        scopes = event.scopes(self._driver_modules)
        self._event_counts[event.subsystem if scopes else OTHER] += 1
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
        """Request a rescan of these parts: what happened so far is unknown."""
        self._number = None
        self._window = self._window.extend(scopes, cause, now_s)

    def _check_sequence(self, event: Uevent, now_s: float) -> None:
        number, last = event.sequence_number, self._number
        if number is None or (last is not None and number <= last):
            return  # the kernel may send two numbers in reverse order
        if last is not None and number > last + 1:
            self._window = self._window.extend(ALL_SCOPES, GAP, now_s)
        self._number = number

    @property
    def next_s(self) -> float | None:
        """Return when `pop_due` has work; `None`: not before the next event."""
        times = (self._window.due_s, self._arrivals.next_s)
        return min((time_s for time_s in times if time_s is not None), default=None)

    def pop_due(self, now_s: float, missing: MissingParts) -> tuple[Rescan | None, ArrivalCheck]:
        """Return the rescan that is due now, and the functions that stay incomplete."""
        check = self._arrivals.pop_due(now_s, missing)
        if check.look:
            self._window = self._window.extend(ALL_SCOPES, "arrival", now_s)
        rescan, self._window = self._window.pop_due(now_s)
        if rescan is not None:
            self._rescan_counts[rescan.cause] += 1
        return rescan, check

    @property
    def event_counts(self) -> Counts:
        """Return the number of events by subsystem; irrelevant ones are `other`."""
        return _sorted_counts(self._event_counts)

    @property
    def dropped_counts(self) -> Counts:
        """Return the number of dropped messages by reason."""
        return _sorted_counts(self._dropped_counts)

    @property
    def rescan_counts(self) -> Counts:
        """Return the number of rescans by cause."""
        return _sorted_counts(self._rescan_counts)


def _sorted_counts(counter: Counter[str]) -> Counts:
    return tuple(sorted(counter.items()))
