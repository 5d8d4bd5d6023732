"""Fault history of one chip, which takes it out for recurring or lasting faults. Pure.

Times are wall-clock seconds, because the history is stored over restarts. A clock that is set back
leaves times ahead of now: such a time neither prolongs a fault nor ends it early.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec.structs import replace

from plugins.vendors.ascend.health.fault_codes import DRIVER_HANGS, LINK_DOWN, recurring_codes

DAY_S = 86_400.0
LINK_RELEASED_S = 172_800.0  # a chip whose port flapped is released after this time
LINK_LASTS_S = 20.0
LINK_GONE_S = 60.0
MAX_TIMES = 8  # stored occurrences of a code
MAX_CODES = 256
AHEAD_S = 5.0  # a time that is further ahead of now is from before the clock was set back


class FaultOccurrences(msgspec.Struct, frozen=True):
    """The start times of a code, newest last; `active` while it lasts, `ended_s` of the last."""

    code: int
    began_s: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    active: bool = True
    ended_s: float | None = None


class FaultHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The codes of one chip, and since when it is separated (out until released)."""

    codes: tuple[FaultOccurrences, ...] = ()
    separated_s: float | None = None
    separated_by: int = 0  # code
    released_s: float | None = None  # wall time of the release; None: a person must release it
    link_outage: bool = msgspec.field(
        default=False, name="link_held"
    )  # a link outage lasts, or ended a short time ago


NO_FAULTS = FaultHistory()


def limit_of(code: int) -> int | None:
    """Return the number of occurrences within a day at which the chip is taken out."""
    if code == LINK_DOWN:
        return 5
    if code == DRIVER_HANGS:
        return 3
    return 2 if code in recurring_codes() else None


def active_codes(history: FaultHistory) -> tuple[int, ...]:
    """Return the active codes, ascending."""
    return tuple(sorted(entry.code for entry in history.codes if entry.active))


def update_codes(history: FaultHistory, codes: Collection[int], now_s: float) -> FaultHistory:
    """Return the history when exactly these codes are active."""
    existing_codes = {entry.code: entry for entry in history.codes}
    entries = [_update_entry(entry, entry.code in codes, now_s) for entry in history.codes]
    entries = [entry for entry in entries if _is_relevant(entry, now_s)]
    entries += [FaultOccurrences(code, (now_s,)) for code in codes if code not in existing_codes]
    entries.sort(key=lambda entry: (entry.active, entry.began_s[-1], entry.code))
    return _apply_limits(replace(history, codes=tuple(entries[-MAX_CODES:])), now_s)


def apply_poll(
    history: FaultHistory, codes: Collection[int], poll_start_s: float, now_s: float
) -> FaultHistory:
    """Return the history after a poll that began at `poll_start_s` and returned these codes.

    Changes by events after that time are newer than the poll and stay. Otherwise a fault that
    begins during a poll would end with this poll and begin again with the next.
    """
    newer = [entry for entry in history.codes if poll_start_s < _changed_s(entry) < now_s + AHEAD_S]
    polled_codes = set(codes) - {entry.code for entry in newer}
    return update_codes(
        history, polled_codes | {entry.code for entry in newer if entry.active}, now_s
    )


def raise_fault(history: FaultHistory, code: int, now_s: float) -> FaultHistory:
    """Return the history after the event of a fault that began."""
    return update_codes(history, {*active_codes(history), code}, now_s)


def clear_fault(history: FaultHistory, code: int, now_s: float) -> FaultHistory:
    """Return the history after the event of a fault that ended."""
    return update_codes(history, set(active_codes(history)) - {code}, now_s)


def release_chip(history: FaultHistory) -> FaultHistory:
    """Return the history after the chip's release, without earlier occurrences."""
    codes = tuple(
        replace(entry, began_s=entry.began_s[-1:]) for entry in history.codes if entry.active
    )
    return FaultHistory(codes=codes)


def _changed_s(entry: FaultOccurrences) -> float:
    ended_s = entry.ended_s if not entry.active else None
    return entry.began_s[-1] if ended_s is None else ended_s


def _is_relevant(entry: FaultOccurrences, now_s: float) -> bool:
    """Return whether a code is active, or ended within the last day."""
    return entry.active or now_s - _changed_s(entry) < DAY_S


def _update_entry(entry: FaultOccurrences, now_active: bool, now_s: float) -> FaultOccurrences:
    if entry.active == now_active:
        is_ahead = entry.active and entry.began_s[-1] > now_s + AHEAD_S
        return replace(entry, began_s=(*entry.began_s[:-1], now_s)) if is_ahead else entry
    if not now_active:
        return replace(entry, active=False, ended_s=now_s)
    times = (*entry.began_s, now_s)[-MAX_TIMES:]
    return FaultOccurrences(entry.code, times)


def _apply_limits(history: FaultHistory, now_s: float) -> FaultHistory:
    history = replace(history, link_outage=_has_link_outage(history, now_s))
    if history.separated_s is not None:
        if history.released_s is None:
            return history
        released_s = min(history.released_s, now_s + LINK_RELEASED_S)
        is_released = now_s >= released_s
        return release_chip(history) if is_released else replace(history, released_s=released_s)
    for entry in history.codes:
        limit = limit_of(entry.code)
        recent = [began for began in entry.began_s if abs(now_s - began) < DAY_S]
        if limit is not None and len(recent) >= limit:
            until_s = now_s + LINK_RELEASED_S if entry.code == LINK_DOWN else None
            return replace(history, separated_s=now_s, separated_by=entry.code, released_s=until_s)
    return history


def _has_link_outage(history: FaultHistory, now_s: float) -> bool:
    entry = next((item for item in history.codes if item.code == LINK_DOWN), None)
    if entry is None:
        return False
    if entry.active:
        return history.link_outage or now_s - entry.began_s[-1] > LINK_LASTS_S
    ended_s = entry.ended_s if entry.ended_s is not None else now_s
    was_lasting = history.link_outage or ended_s - entry.began_s[-1] > LINK_LASTS_S
    return was_lasting and -AHEAD_S < now_s - ended_s <= LINK_GONE_S
