"""Plausible ranges of NVML's readings; values outside come from a failing card or driver."""

from __future__ import annotations

from collections.abc import Mapping

Range = tuple[float, float]  # lowest and highest value

MAX_BYTES = 1 << 50
MEMORY_BYTES: Range = (1, MAX_BYTES)
PERCENT: Range = (0, 100)
FAN_PERCENT: Range = (0, 200)  # of the intended top speed, which a fan may exceed
FANS: Range = (0, 32)
# the card's own counters are quotients of two clocks, and may be a little above
PERFORMANCE_PERCENT: Range = (0, 101)
MILLIWATTS: Range = (0, 10_000_000)
CELSIUS: Range = (-60, 200)
MEGAHERTZ: Range = (0, 20_000)
COUNTER: Range = (0, (1 << 63) - 1)
ERRORS: Range = (0, (1 << 32) - 2)
ROWS: Range = (0, 1 << 20)  # also of memory pages
FLAG: Range = (0, 1)
ACTION: Range = (0, 255)  # recovery actions of the driver; eight are defined
CLOCK_REASONS: Range = (0, (1 << 32) - 2)
LANES: Range = (1, 32)
LINKS: Range = (0, 64)
MEGABYTES_A_SECOND: Range = (0, 10_000_000)
BYTES_A_SECOND: Range = (0, 10**13)
PERFORMANCE_STATE: Range = (0, 15)
NANOSECONDS: Range = (0, 10**18)  # thirty years
FEATURES: Range = (0, 3)  # features with a licence
PIDS: Range = (1, (1 << 31) - 1)
MAX_AHEAD_US = 86_400_000_000  # a time stamp of NVML may be this far ahead of the agent's clock

_LINK_ERRORS = (161, 162, 163, 213, 214, 215)
FIELDS: Mapping[int, Range] = {
    **dict.fromkeys((3, 4, 5, 6), ERRORS),
    29: ROWS,
    30: ROWS,
    31: FLAG,
    **dict.fromkeys(range(74, 82), NANOSECONDS),
    82: CELSIUS,
    83: COUNTER,
    84: MEGABYTES_A_SECOND,
    90: MEGABYTES_A_SECOND,
    91: LINKS,
    94: ERRORS,
    138: COUNTER,
    139: COUNTER,
    **dict.fromkeys(_LINK_ERRORS, ERRORS),
    **dict.fromkeys(range(185, 191), MILLIWATTS),
    197: COUNTER,
    198: COUNTER,
    202: COUNTER,
    204: COUNTER,
    219: COUNTER,
    221: COUNTER,
    230: ACTION,
    **dict.fromkeys((269, 270, 271), NANOSECONDS),
}
