"""State of the QoS strategies, for the page, metrics and commands."""

from __future__ import annotations

import enum

import msgspec


class StrategyState(enum.Enum):
    """What a strategy does."""

    OFF = "off"  # by its setting
    IDLE = "idle"  # no NodeSLO and no pod asks for it
    ACTIVE = "active"
    FROZEN = "frozen"  # the NodeSLO is stale: values stay, nothing new is decided
    WAITING = "waiting"  # an input is missing: values stay
    UNSUPPORTED = "unsupported"  # the kernel lacks what it needs
    FAILED = "failed"  # by a bug: values stay


class StrategyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy in the last cycle.

    `figures` are its numbers by name, with the unit in the name; a figure that is not known is
    not in it.
    """

    name: str
    mode: str  # off, plan, on
    state: StrategyState
    message: str = ""  # why it is in this state, for people
    values: int = 0  # desired values of files
    figures: tuple[tuple[str, float], ...] = ()


class EnforcementView(msgspec.Struct, frozen=True, kw_only=True):
    """All strategies, in the order in which they are asked."""

    strategies: tuple[StrategyStatus, ...] = ()
