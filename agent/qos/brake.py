"""The global brake: too many refused writes or evictions within a window stop all enforcement.

While it holds, strategies plan and change nothing. It releases by itself; each hold that follows
soon after another one is twice as long, up to a bound. A restart of the agent releases it as well.
"""

from __future__ import annotations

import msgspec

from agent.config.containers import BrakeSettings


class BrakeState(msgspec.Struct, frozen=True, kw_only=True):
    """What happened within the window; times are monotonic."""

    refusals: tuple[tuple[float, int], ...] = ()  # time and number
    evictions: tuple[tuple[float, int], ...] = ()
    holds_until_s: float = 0.0
    hold_count: int = 0  # in a row, without a quiet window between them
    total_holds: int = 0  # since the start
    reason: str = ""  # of the last hold

    def is_holding(self, now_s: float) -> bool:
        """Return whether nothing may be changed now."""
        return now_s < self.holds_until_s


def step_brake(
    state: BrakeState, limits: BrakeSettings, now_s: float, *, refusals: int = 0, evictions: int = 0
) -> BrakeState:
    """Return the state after one round with so many refused writes and evictions."""
    oldest_s = now_s - limits.window_s
    state = msgspec.structs.replace(
        state,
        refusals=_within(state.refusals, oldest_s, now_s, refusals),
        evictions=_within(state.evictions, oldest_s, now_s, evictions),
    )
    if state.is_holding(now_s):
        return state
    if state.hold_count and now_s - state.holds_until_s >= limits.window_s:
        state = msgspec.structs.replace(state, hold_count=0)
    reason = _reason(state, limits)
    if not reason:
        return state
    hold_s = min(limits.max_hold_s, limits.hold_s * 2.0**state.hold_count)
    is_longest = hold_s >= limits.max_hold_s
    return msgspec.structs.replace(
        state,
        refusals=(),  # what happened before a hold does not cause the next one
        evictions=(),
        holds_until_s=now_s + hold_s,
        hold_count=state.hold_count if is_longest else state.hold_count + 1,
        total_holds=state.total_holds + 1,
        reason=reason,
    )


def _within(
    counts: tuple[tuple[float, int], ...], oldest_s: float, now_s: float, new: int
) -> tuple[tuple[float, int], ...]:
    recent = tuple(count for count in counts if count[0] > oldest_s)
    return (*recent, (now_s, new)) if new else recent


def _reason(state: BrakeState, limits: BrakeSettings) -> str:
    refusals = sum(count for _, count in state.refusals)
    evictions = sum(count for _, count in state.evictions)
    minutes = f"{limits.window_s / 60:g} minutes"
    if refusals > limits.max_refusals:
        return f"{refusals} writes were refused within {minutes}"
    if evictions > limits.max_evictions:
        return f"{evictions} pods were evicted within {minutes}"
    return ""
