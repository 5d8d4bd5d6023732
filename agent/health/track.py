"""What is remembered of one device between looks, and the moment of a look."""

from __future__ import annotations

import msgspec

from agent.model.device import HealthState

NEVER_S = float("-inf")
OUT_OF_SERVICE = (HealthState.FAILED, HealthState.PROBING)


class Moment(msgspec.Struct, frozen=True):
    """One moment on both clocks: durations are taken from the first, dates from the second."""

    mono_s: float
    wall_s: float


class Cause(msgspec.Struct, frozen=True):
    """Why a device is in its state, in its vendor's words."""

    reason: str
    message: str


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """One device, or one slice of one; `state` is what others are told.

    Seconds are monotonic unless called `since_s`, which is wall time. A look that saw something
    bad is one that failed, or of a device in service one that found something odd.
    """

    state: HealthState
    cause: Cause
    since_s: float | None = None  # of the last change of state or certainty; None: nobody saw one
    changes: int = 0  # of the state, since the agent's start
    raw: HealthState = HealthState.HEALTHY  # what the last look saw
    looked_s: float = NEVER_S  # of the last look
    bad_s: float = NEVER_S  # of the last look that saw something bad
    streak: int = 1  # looks in a row that saw `raw`
    clean: int = 0  # looks in a row that did not fail
    turns: tuple[float, ...] = ()  # times at which it turned for the worse or back
    worse: bool = False  # the last turn was for the worse
    flapping: bool = False  # held in its state because it turned too often
    unsure: Cause | None = None  # why nobody can tell now; None: the last look could
    restored: bool = False  # known from an earlier run, and not looked at since


def level(state: HealthState) -> int:
    """Return how bad a state is: 0 well, 1 odd but in service, 2 out of service."""
    if state in OUT_OF_SERVICE:
        return 2
    return 1 if state is HealthState.SUSPECT else 0
