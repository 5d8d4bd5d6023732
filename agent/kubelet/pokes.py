"""Questions out of turn: any number may be asked for, few are asked."""

from __future__ import annotations

from agent.clock import Clock

PER_SECOND = 5.0
BURST = 10.0


class TokenBucket:
    """Lets `BURST` through at once and `PER_SECOND` in the long run, as koordlet does."""

    def __init__(self, clock: Clock, per_s: float = PER_SECOND, burst: float = BURST) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = clock.monotonic()

    def take(self) -> float:
        """Take one; return the seconds to wait before acting on it, 0 if there was one left."""
        now_s = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        self._left -= 1.0
        return max(0.0, -self._left / self._per_s)
