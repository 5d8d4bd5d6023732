"""Bounded series on one time axis."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from math import isnan

import msgspec

# ("node", "cpu"), ("system", "memory"), ("numa", "0", "cpu"), ("numa-system", "0", "cpu"),
# ("device", key, "core"), ("pod", uid, "cpu"), ("pod-device", uid, device key, "memory"),
# ("application", name, "cpu")
Key = tuple[str, ...]

NAN = float("nan")


class Window(msgspec.Struct, frozen=True):
    """Moments `first` to `last` (not included) of an axis, counted since its start."""

    first: int
    last: int


class _Series:
    """Values at the slots of the axis; `written` is the number of the moment after the last."""

    __slots__ = ("values", "written")

    def __init__(self, capacity: int, moment: int) -> None:
        self.values = array("d", [NAN]) * capacity
        self.written = moment


class Board:
    """Series by key that share their times; the oldest moment makes room for the newest.

    A moment without a value of a series holds NaN there, which `values` leaves out.
    """

    def __init__(self, capacity: int, max_series: int) -> None:
        self.capacity = capacity
        self.max_series = max_series
        self._times = array("d", [NAN]) * capacity
        self._moments = 0
        self._series: dict[Key, _Series] = {}

    def open(self, now_s: float) -> None:
        """Begin the next moment; times must rise."""
        self._times[self._moments % self.capacity] = now_s
        self._moments += 1

    def put(self, items: Iterable[tuple[Key, float | None]]) -> None:
        """Set values of the moment begun last; absent ones are left out."""
        moment, capacity, series = self._moments, self.capacity, self._series
        slot = (moment - 1) % capacity
        for key, value in items:
            if value is None:
                continue
            one = series.get(key)
            if one is None:
                if len(series) >= self.max_series:
                    continue
                one = series[key] = _Series(capacity, moment - 1)
            elif one.written != moment - 1:
                self._skip(one, moment - 1)
            one.values[slot] = value
            one.written = moment

    def keep(self, wanted: Callable[[Key], bool]) -> None:
        """Drop the series that are not wanted."""
        gone = [key for key in self._series if not wanted(key)]
        for key in gone:
            del self._series[key]

    def forget(self, before_s: float) -> None:
        """Drop the series without a value since that time."""
        first = self.window(before_s, float("inf")).first
        self.keep(lambda key: self._series[key].written > first)

    def known(self) -> tuple[Key, ...]:
        """Return the keys that have a series."""
        return tuple(self._series)

    def window(self, start_s: float, end_s: float) -> Window:
        """Return the moments of the closed interval that are still kept."""
        oldest = max(0, self._moments - self.capacity)
        moments = range(oldest, self._moments)
        first = bisect_left(moments, start_s, key=self._time)
        last = bisect_right(moments, end_s, key=self._time)
        return Window(oldest + first, oldest + last)

    def values(self, key: Key, window: Window) -> list[float]:
        """Return the series' values in the window, oldest first."""
        raw = self._raw(key, window)
        if not isnan(sum(raw)):  # none is missing, as a rule
            return raw
        return [value for value in raw if not isnan(value)]

    def span_s(self, key: Key, window: Window) -> float:
        """Return the seconds between the series' first and last value in the window."""
        raw = self._raw(key, window)
        moments = range(len(raw))
        first = next((i for i in moments if not isnan(raw[i])), None)
        last = next((i for i in reversed(moments) if not isnan(raw[i])), None)
        if first is None or last is None:
            return 0.0
        return self._time(window.first + last) - self._time(window.first + first)

    def _time(self, moment: int) -> float:
        return self._times[moment % self.capacity]

    def _raw(self, key: Key, window: Window) -> list[float]:
        one = self._series.get(key)
        if one is None or window.first >= window.last:
            return []
        self._skip(one, self._moments)
        first, last = window.first % self.capacity, (window.last - 1) % self.capacity + 1
        if first < last:
            return list(one.values[first:last])
        return [*one.values[first:], *one.values[:last]]

    def _skip(self, one: _Series, moment: int) -> None:
        """Mark the moments since the last value as without one."""
        for missed in range(max(one.written, moment - self.capacity), moment):
            one.values[missed % self.capacity] = NAN
        one.written = max(one.written, moment)
