"""What the agent says of its own state: named checks of one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `/healthz?verbose`. `gates_ready`: a failure makes the agent not ready."""

    name: str
    ok: bool
    message: str = ""
    gates_ready: bool = True


@dataclass(frozen=True, slots=True)
class SelfReport:
    """All checks of one moment."""

    checks: tuple[Check, ...]

    @property
    def ready(self) -> bool:
        """Say whether every check that gates readiness holds."""
        return all(check.ok for check in self.checks if check.gates_ready)
