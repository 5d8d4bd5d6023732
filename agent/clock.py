"""The clock Protocol, so that tests and recorded hosts set the time."""

from __future__ import annotations

import time
from typing import Protocol

import msgspec


class Clock(Protocol):
    """Two clocks: one for durations and ages, one for time stamps that other machines read."""

    def monotonic(self) -> float:
        """Return the seconds since some start; the result never decreases."""
        ...

    def wall(self) -> float:
        """Return the seconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)  # seconds since boot, without suspension
    wall = staticmethod(time.time)  # Unix time as the machine has it


SYSTEM_CLOCK = SystemClock()


class ManualClock(msgspec.Struct):
    """A clock that stands still until `advance`; for recorded hosts and tests."""

    mono_s: float = 1000.0
    wall_s: float = 1_767_323_045.0

    def monotonic(self) -> float:
        """Return the monotonic seconds that were set."""
        return self.mono_s

    def wall(self) -> float:
        """Return the Unix time that was set."""
        return self.wall_s

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        self.mono_s += seconds
        self.wall_s += seconds


def rfc3339(wall_s: float) -> str:
    """Format Unix seconds as `metav1.Time` writes them: UTC, whole seconds, `Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_s))
