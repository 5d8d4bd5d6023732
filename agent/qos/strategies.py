"""All strategies, in the order in which they are asked."""

from __future__ import annotations

from agent.qos.strategy import AnyStrategy


def strategies() -> tuple[AnyStrategy, ...]:
    """Return the strategies that this agent has."""
    return ()
