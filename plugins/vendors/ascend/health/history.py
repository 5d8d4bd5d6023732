"""Fault history of one chip: faults that recur too often or last too long. Pure.

Times are wall-clock seconds, because the history outlives the process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec.structs import replace

from plugins.vendors.ascend.health.fault_codes import DRIVER_HANGS, LINK_DOWN, recurring_codes

DAY_S = 86_400.0
LINK_RELEASED_S = 172_800.0  # after a port that flapped too often
LINK_LASTS_S = 20.0
LINK_GONE_S = 60.0
MAX_TIMES = 8  # occurrences that are kept of a code
MAX_CODES = 256


class FaultOccurrences(msgspec.Struct, frozen=True):
    """When a code began, newest last; `active` while it lasts, `ended_s` when it last ended."""

    code: int
    began_s: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    active: bool = True
    ended_s: float | None = None


class FaultHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The codes of one chip, and since when it is separated by hand."""

    codes: tuple[FaultOccurrences, ...] = ()
    separated_s: float | None = None
    separated_by: int = 0  # code
    released_s: float | None = None  # wall time at which it ends by itself; None: a person must
    link_held: bool = False  # a lost link lasted, and is not gone for long enough


NO_FAULTS = FaultHistory()


def limit_of(code: int) -> int | None:
    """Return how often within a day a code may begin before the chip is taken out."""
    if code == LINK_DOWN:
        return 5
    if code == DRIVER_HANGS:
        return 3
    return 2 if code in recurring_codes() else None


def active_codes(history: FaultHistory) -> tuple[int, ...]:
    """Return the codes that last, ascending."""
    return tuple(sorted(entry.code for entry in history.codes if entry.active))


def update_codes(history: FaultHistory, codes: Collection[int], now_s: float) -> FaultHistory:
    """Return the history after a look that showed exactly these codes."""
    known = {entry.code: entry for entry in history.codes}
    entries = [_after(entry, entry.code in codes, now_s) for entry in history.codes]
    entries = [entry for entry in entries if _matters(entry, now_s)]
    entries += [FaultOccurrences(code, (now_s,)) for code in codes if code not in known]
    entries.sort(key=lambda entry: (entry.active, entry.began_s[-1], entry.code))
    return _judge(replace(history, codes=tuple(entries[-MAX_CODES:])), now_s)


def apply_poll(
    history: FaultHistory, codes: Collection[int], asked_s: float, now_s: float
) -> FaultHistory:
    """Return the history after a look that was begun at `asked_s` and showed exactly these codes.

    What an event told in the meantime is newer than the answer, and stays: else one fault that
    began during a look would end with it, and begin a second time with the next.
    """
    newer = [entry for entry in history.codes if _changed_s(entry) > asked_s]
    there = set(codes) - {entry.code for entry in newer}
    return update_codes(history, there | {entry.code for entry in newer if entry.active}, now_s)


def raise_fault(history: FaultHistory, code: int, now_s: float) -> FaultHistory:
    """Return the history after an event that says that a fault began."""
    return update_codes(history, {*active_codes(history), code}, now_s)


def clear_fault(history: FaultHistory, code: int, now_s: float) -> FaultHistory:
    """Return the history after an event that says that a fault ended."""
    return update_codes(history, set(active_codes(history)) - {code}, now_s)


def release_chip(history: FaultHistory) -> FaultHistory:
    """Return the history after a person let the chip back: what led there counts no more."""
    codes = tuple(
        replace(entry, began_s=entry.began_s[-1:]) for entry in history.codes if entry.active
    )
    return FaultHistory(codes=codes)


def _changed_s(entry: FaultOccurrences) -> float:
    ended_s = entry.ended_s if not entry.active else None
    return entry.began_s[-1] if ended_s is None else ended_s


def _matters(entry: FaultOccurrences, now_s: float) -> bool:
    """Say whether a code lasts, or ended so lately that it may still count."""
    return entry.active or now_s - _changed_s(entry) < DAY_S


def _after(entry: FaultOccurrences, now_active: bool, now_s: float) -> FaultOccurrences:
    if entry.active == now_active:
        return entry
    if not now_active:
        return replace(entry, active=False, ended_s=now_s)
    times = (*entry.began_s, now_s)[-MAX_TIMES:]
    return FaultOccurrences(entry.code, times)


def _judge(history: FaultHistory, now_s: float) -> FaultHistory:
    history = replace(history, link_held=_is_link_held(history, now_s))
    if history.separated_s is not None:
        over = history.released_s is not None and now_s >= history.released_s
        return release_chip(history) if over else history
    for entry in history.codes:
        limit = limit_of(entry.code)
        recent = [began for began in entry.began_s if abs(now_s - began) < DAY_S]
        if limit is not None and len(recent) >= limit:
            until_s = now_s + LINK_RELEASED_S if entry.code == LINK_DOWN else None
            return replace(history, separated_s=now_s, separated_by=entry.code, released_s=until_s)
    return history


def _is_link_held(history: FaultHistory, now_s: float) -> bool:
    entry = next((found for found in history.codes if found.code == LINK_DOWN), None)
    if entry is None:
        return False
    if entry.active:
        return history.link_held or now_s - entry.began_s[-1] > LINK_LASTS_S
    ended_s = entry.ended_s if entry.ended_s is not None else now_s
    lasted = history.link_held or ended_s - entry.began_s[-1] > LINK_LASTS_S
    return lasted and now_s - ended_s <= LINK_GONE_S
