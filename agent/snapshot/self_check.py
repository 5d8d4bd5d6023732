"""State of the agent's own loops and named checks of one moment."""

from __future__ import annotations

import msgspec


class SelfCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `/healthz?verbose`. `gates_ready`: a failure makes the agent not ready."""

    name: str
    ok: bool
    message: str = ""
    gates_ready: bool = True


class SelfCheckReport(msgspec.Struct, frozen=True):
    """All checks of one moment."""

    checks: tuple[SelfCheck, ...]

    @property
    def is_ready(self) -> bool:
        """Return whether every check that gates readiness holds."""
        return all(check.ok for check in self.checks if check.gates_ready)


class LoopStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of one periodic loop; times are monotonic."""

    name: str
    interval_s: float
    failures: int = 0  # in a row
    last_error: str = ""
    last_success_s: float | None = None
    due_s: float | None = None  # of the first run

    def is_healthy(self, now_s: float) -> bool:
        """Return whether the last good run is younger than three intervals, at least ten seconds.

        Before the first run, its due time counts in its place.
        """
        since_s = self.due_s if self.last_success_s is None else self.last_success_s
        return since_s is not None and now_s - since_s < max(10.0, 3 * self.interval_s)
