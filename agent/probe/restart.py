"""When a dead worker is started again: a decision from the times of its deaths."""

from __future__ import annotations

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Waits double from death to death; too many deaths in the window are a quarantine."""

    first_s: float = 1.0
    longest_s: float = 60.0
    deaths: int = 5
    window_s: float = 600.0
    quarantine_s: float = 600.0  # between attempts while in quarantine


class RestartHistory(msgspec.Struct, frozen=True):
    """The deaths that still count. A worker in quarantine gets one attempt at a time."""

    deaths_s: tuple[float, ...] = ()  # monotonic, within the window of the last one
    quarantined: bool = False

    def died(self, now_s: float, policy: RestartPolicy) -> RestartHistory:
        """Count a death."""
        recent = (*(t for t in self.deaths_s if now_s - t < policy.window_s), now_s)
        recent = recent[-policy.deaths :]
        return RestartHistory(recent, self.quarantined or len(recent) >= policy.deaths)

    def answered(self) -> RestartHistory:
        """Leave the quarantine: the worker works. Deaths within the window still count."""
        return RestartHistory((), quarantined=False) if self.quarantined else self

    def wait_s(self, policy: RestartPolicy, spread: float) -> float:
        """Return the seconds until the next attempt.

        `spread` is a random number from 0 to 1: the wait is between half and the whole of the
        doubled time, so that the workers of many nodes do not start in step.
        """
        if self.quarantined:
            return policy.quarantine_s
        doubled_s = policy.first_s * 2.0 ** max(0, len(self.deaths_s) - 1)
        return min(policy.longest_s, doubled_s) * (0.5 + 0.5 * spread)
