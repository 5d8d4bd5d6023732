"""Trends of a card: clocks that stay throttled, links that recover often. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

# clock event reasons as NVML numbers them; idle, application clocks, sync boost and display are
# somebody's wish and not shown
THROTTLES: tuple[tuple[str, int], ...] = (
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
)
_WORRYING = frozenset({0x8, 0x40, 0x80})
THROTTLE_LASTS_S = 60.0  # clocks that are held back that long are worth a warning

ORPHAN_BYTES = 256 << 20  # of memory in use that belongs to no process
ORPHAN_S = 300.0

HOUR_S = 3600.0
MANY_RECOVERIES = 10  # of a card's NVLinks, within an hour
MAX_STEPS = 64  # changes of a counter that are remembered

LinkField = tuple[int, int]
RECOVERED = (162, 215)  # fields of recoveries: to NVLink 4, NVLink 5
NOT_RECOVERED = 214
LINK_ERROR_KINDS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("replay", (161,)),
    ("recovery", RECOVERED),
    ("crc", (163,)),
    ("recovery_failed", (NOT_RECOVERED,)),
    ("effective", (219,)),
    ("symbol", (221,)),
)


def throttle_starts(since: Mapping[int, float], mask: int | None, now_s: float) -> dict[int, float]:
    """Return since when each worrying reason holds; one that is not told now is over."""
    bits = [bit for bit in _WORRYING if mask is not None and mask & bit]
    return {bit: since.get(bit, now_s) for bit in bits}


def lasting_throttle(since: Mapping[int, float], now_s: float) -> str | None:
    """Name the reasons that have held the clocks back for a minute; `None`: there are none."""
    names = [name for name, bit in THROTTLES if now_s - since.get(bit, now_s) >= THROTTLE_LASTS_S]
    return ", ".join(names) or None


def orphan_start(
    since_s: float | None, used_bytes: int | None, processes: int | None, now_s: float
) -> float | None:
    """Return since when much memory is in use that belongs to nobody; `None`: it is not now.

    `processes` is their number, `None` if the driver does not tell.
    """
    if processes != 0 or used_bytes is None or used_bytes < ORPHAN_BYTES:
        return None
    return now_s if since_s is None else since_s


def is_orphan_lasting(since_s: float | None, now_s: float) -> bool:
    """Say whether that has lasted long enough to be worth a warning."""
    return since_s is not None and now_s - since_s >= ORPHAN_S


def link_fields(links: int) -> tuple[LinkField, ...]:
    """Return the error counters of a card's NVLinks as (field, link)."""
    return tuple(
        (number, link) for link in range(links) for _, ids in LINK_ERROR_KINDS for number in ids
    )


def link_totals(fields: Mapping[LinkField, float]) -> dict[str, float]:
    """Add the counters up over a card's links, by kind; what no link tells is missing."""
    totals: dict[str, float] = {}
    for kind, ids in LINK_ERROR_KINDS:
        told = [value for (number, _), value in fields.items() if number in ids]
        if told:
            totals[kind] = sum(told)
    return totals


class LinkTrend(msgspec.Struct, frozen=True):
    """How the counters of a card's NVLinks went on."""

    failed: float | None = None  # recoveries that failed, as last told
    steps: tuple[tuple[float, float], ...] = ()  # (time, recoveries), newest last


def follow_links(
    before: LinkTrend, totals: Mapping[str, float], now_s: float
) -> tuple[LinkTrend, str | None]:
    """Return the trend with new totals, and what is wrong with the links, if anything is."""
    failed, total = totals.get("recovery_failed"), totals.get("recovery")
    steps = before.steps
    if total is not None and (not steps or steps[-1][1] != total):
        # a counter that went back was reset: what was before says nothing any more
        steps = (*_not_above(steps, total), (now_s, total))
    steps = _recent(steps, now_s)
    trouble = None
    if failed is not None and before.failed is not None and failed > before.failed:
        trouble = f"{failed - before.failed:.0f} NVLinks could not be recovered"
    elif len(steps) > 1 and steps[-1][1] - steps[0][1] > MANY_RECOVERIES:
        trouble = f"NVLinks recovered {steps[-1][1] - steps[0][1]:.0f} times within an hour"
    return LinkTrend(failed, steps), trouble


def _not_above(
    steps: Iterable[tuple[float, float]], total: float
) -> tuple[tuple[float, float], ...]:
    return tuple(step for step in steps if step[1] <= total)


def _recent(
    steps: tuple[tuple[float, float], ...], now_s: float
) -> tuple[tuple[float, float], ...]:
    """Keep the last hour, beginning with the last value from before it."""
    old = [step for step in steps if now_s - step[0] > HOUR_S]
    new = [step for step in steps if now_s - step[0] <= HOUR_S]
    return (*old[-1:], *new)[-MAX_STEPS:]
