"""What the agent says of its own state: named checks of one moment."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `/healthz?verbose`. `gates_ready`: a failure makes the agent not ready."""

    name: str
    ok: bool
    message: str = ""
    gates_ready: bool = True


class SelfReport(msgspec.Struct, frozen=True):
    """All checks of one moment."""

    checks: tuple[Check, ...]

    @property
    def ready(self) -> bool:
        """Say whether every check that gates readiness holds."""
        return all(check.ok for check in self.checks if check.gates_ready)
