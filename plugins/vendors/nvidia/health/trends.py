"""Trends of a card: throttled clocks, memory without a process, errors of NVLinks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

# clock event reasons by NVML's bits; idle, application clocks, sync boost and display are
# requested by users and therefore not listed
THROTTLES: tuple[tuple[str, int], ...] = (
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
)
_WORRYING = frozenset({0x8, 0x40, 0x80})
THROTTLE_LASTS_S = 60.0  # throttling for this time is a warning

ORPHAN_BYTES = 256 << 20  # less memory in use without a process is normal
ORPHAN_S = 300.0

HOUR_S = 3600.0
MANY_RECOVERIES = 10  # of a card's NVLinks, within an hour
MAX_STEPS = 64  # stored changes of a counter

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
    """Return the start time of each worrying reason that is active now."""
    bits = [bit for bit in _WORRYING if mask is not None and mask & bit]
    return {bit: since.get(bit, now_s) for bit in bits}


def lasting_throttle(since: Mapping[int, float], now_s: float) -> str | None:
    """Return the names of the reasons that have been active for a minute; `None` without any."""
    names = [name for name, bit in THROTTLES if now_s - since.get(bit, now_s) >= THROTTLE_LASTS_S]
    return ", ".join(names) or None


def orphan_start(
    since_s: float | None, used_bytes: int | None, processes: int | None, now_s: float
) -> float | None:
    """Return since when much memory is in use without a process; `None` if it is not so now.

    `processes` is the number of processes, `None` if it is unknown.
    """
    if processes != 0 or used_bytes is None or used_bytes < ORPHAN_BYTES:
        return None
    return now_s if since_s is None else since_s


def is_orphan_lasting(since_s: float | None, now_s: float) -> bool:
    """Return whether memory without a process has lasted long enough for a warning."""
    return since_s is not None and now_s - since_s >= ORPHAN_S


def link_fields(links: int) -> tuple[LinkField, ...]:
    """Return the error counters of a card's NVLinks as (field, link)."""
    return tuple(
        (number, link) for link in range(links) for _, ids in LINK_ERROR_KINDS for number in ids
    )


def link_totals(fields: Mapping[LinkField, float]) -> dict[str, float]:
    """Return the sum of the counters of a card's links, by kind; unknown kinds are missing."""
    totals: dict[str, float] = {}
    for kind, ids in LINK_ERROR_KINDS:
        values = [value for (number, _), value in fields.items() if number in ids]
        if values:
            totals[kind] = sum(values)
    return totals


class LinkTrend(msgspec.Struct, frozen=True):
    """The recent counters of a card's NVLinks."""

    failed: float | None = None  # failed recoveries, the last value
    steps: tuple[tuple[float, float], ...] = ()  # (time, recoveries), newest last


def follow_links(
    before: LinkTrend, totals: Mapping[str, float], now_s: float
) -> tuple[LinkTrend, str | None]:
    """Return the trend with new totals, and a message if the links have a problem."""
    failed, total = totals.get("recovery_failed"), totals.get("recovery")
    steps = before.steps
    if total is not None and (not steps or steps[-1][1] != total):
        # a lower value means that the counter was reset: older values are not comparable
        steps = (*_not_above(steps, total), (now_s, total))
    steps = _recent(steps, now_s)
    problem = None
    if failed is not None and before.failed is not None and failed > before.failed:
        problem = f"{failed - before.failed:.0f} NVLinks could not be recovered"
    elif len(steps) > 1 and steps[-1][1] - steps[0][1] > MANY_RECOVERIES:
        problem = f"NVLinks recovered {steps[-1][1] - steps[0][1]:.0f} times within an hour"
    return LinkTrend(failed, steps), problem


def _not_above(
    steps: Iterable[tuple[float, float]], total: float
) -> tuple[tuple[float, float], ...]:
    return tuple(step for step in steps if step[1] <= total)


def _recent(
    steps: tuple[tuple[float, float], ...], now_s: float
) -> tuple[tuple[float, float], ...]:
    """Return the steps of the last hour and the last step before it."""
    old = [step for step in steps if now_s - step[0] > HOUR_S]
    new = [step for step in steps if now_s - step[0] <= HOUR_S]
    return (*old[-1:], *new)[-MAX_STEPS:]
