"""Faults of one chip over time: what comes back too often, or lasts too long. Pure.

Times are wall-clock seconds, because the history outlives the process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec.structs import replace

from plugins.faults.ascend.codes import DRIVER_HANGS, LINK_DOWN, recurring

DAY_S = 86_400.0
LINK_RELEASED_S = 172_800.0  # after a port that flapped too often
LINK_LASTS_S = 20.0
LINK_GONE_S = 60.0
MAX_TIMES = 8  # occurrences that are kept of a code
MAX_CODES = 256


class Occurrences(msgspec.Struct, frozen=True):
    """When a code began, newest last; `active` while it lasts, `ended_s` when it last ended."""

    code: int
    began_s: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    active: bool = True
    ended_s: float | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The codes of one chip, and since when it is separated by hand."""

    codes: tuple[Occurrences, ...] = ()
    separated_s: float | None = None
    separated_by: int = 0  # code
    released_s: float | None = None  # wall time at which it ends by itself; None: a person must
    link_held: bool = False  # a lost link lasted, and is not gone for long enough


CLEAN = History()


def limit_of(code: int) -> int | None:
    """Return how often within a day a code may begin before the chip is taken out."""
    if code == LINK_DOWN:
        return 5
    if code == DRIVER_HANGS:
        return 3
    return 2 if code in recurring() else None


def active(history: History) -> tuple[int, ...]:
    """Return the codes that last, ascending."""
    return tuple(sorted(seen.code for seen in history.codes if seen.active))


def seen(history: History, codes: Collection[int], now_s: float) -> History:
    """Return the history after a look that showed exactly these codes."""
    known = {entry.code: entry for entry in history.codes}
    entries = [_after(entry, entry.code in codes, now_s) for entry in history.codes]
    entries = [entry for entry in entries if _matters(entry, now_s)]
    entries += [Occurrences(code, (now_s,)) for code in codes if code not in known]
    entries.sort(key=lambda entry: (entry.active, entry.began_s[-1], entry.code))
    return _judged(replace(history, codes=tuple(entries[-MAX_CODES:])), now_s)


def looked(history: History, codes: Collection[int], asked_s: float, now_s: float) -> History:
    """Return the history after a look that was begun at `asked_s` and showed exactly these codes.

    What an event told in the meantime is newer than the answer, and stays: else one fault that
    began during a look would end with it, and begin a second time with the next.
    """
    newer = [entry for entry in history.codes if _changed_s(entry) > asked_s]
    there = set(codes) - {entry.code for entry in newer}
    return seen(history, there | {entry.code for entry in newer if entry.active}, now_s)


def raised(history: History, code: int, now_s: float) -> History:
    """Return the history after an event that says that a fault began."""
    return seen(history, {*active(history), code}, now_s)


def cleared(history: History, code: int, now_s: float) -> History:
    """Return the history after an event that says that a fault ended."""
    return seen(history, set(active(history)) - {code}, now_s)


def released(history: History) -> History:
    """Return the history after a person let the chip back: what led there counts no more."""
    codes = tuple(
        replace(entry, began_s=entry.began_s[-1:]) for entry in history.codes if entry.active
    )
    return History(codes=codes)


def _changed_s(entry: Occurrences) -> float:
    ended_s = entry.ended_s if not entry.active else None
    return entry.began_s[-1] if ended_s is None else ended_s


def _matters(entry: Occurrences, now_s: float) -> bool:
    """Say whether a code lasts, or ended so lately that it may still count."""
    return entry.active or now_s - _changed_s(entry) < DAY_S


def _after(entry: Occurrences, now_active: bool, now_s: float) -> Occurrences:
    if entry.active == now_active:
        return entry
    if not now_active:
        return replace(entry, active=False, ended_s=now_s)
    times = (*entry.began_s, now_s)[-MAX_TIMES:]
    return Occurrences(entry.code, times)


def _judged(history: History, now_s: float) -> History:
    history = replace(history, link_held=_link_held(history, now_s))
    if history.separated_s is not None:
        over = history.released_s is not None and now_s >= history.released_s
        return released(history) if over else history
    for entry in history.codes:
        limit = limit_of(entry.code)
        recent = [began for began in entry.began_s if abs(now_s - began) < DAY_S]
        if limit is not None and len(recent) >= limit:
            until_s = now_s + LINK_RELEASED_S if entry.code == LINK_DOWN else None
            return replace(history, separated_s=now_s, separated_by=entry.code, released_s=until_s)
    return history


def _link_held(history: History, now_s: float) -> bool:
    entry = next((found for found in history.codes if found.code == LINK_DOWN), None)
    if entry is None:
        return False
    if entry.active:
        return history.link_held or now_s - entry.began_s[-1] > LINK_LASTS_S
    ended_s = entry.ended_s if entry.ended_s is not None else now_s
    lasted = history.link_held or ended_s - entry.began_s[-1] > LINK_LASTS_S
    return lasted and now_s - ended_s <= LINK_GONE_S
