"""How a publisher does, for metrics, checks and people."""

from __future__ import annotations

import msgspec


class PublisherStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one publisher does; counts are since the start of the process."""

    name: str
    success: bool = True  # of the last run
    duration_s: float | None = None  # of the last run; None: never ran
    last_success_s: float | None = None  # wall clock
    written: int = 0
    unchanged: int = 0
    failed: int = 0
    error: str = ""  # of the last run, for people
