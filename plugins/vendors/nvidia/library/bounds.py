"""Plausible ranges of NVML's readings; values outside come from a failing card or driver.

Quantities that all vendors have are bounded as for all of them, in NVML's units.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.snapshot import inventory
from agent.snapshot.inventory import Bounds, scale

MEMORY_BYTES = inventory.MEMORY_BYTES
PERCENT = inventory.PERCENT
CELSIUS = inventory.CELSIUS
COUNTER = inventory.COUNTER
FLAG = inventory.FLAG
PIDS = inventory.PIDS
MAX_BYTES = int(MEMORY_BYTES[1])
FAN_PERCENT: Bounds = (0, 200)  # of the intended top speed, which a fan may exceed
FANS: Bounds = (0, 32)
# the card's own counters are quotients of two clocks, and may be a little above
PERFORMANCE_PERCENT: Bounds = (0, 101)
MILLIWATTS = scale(inventory.WATTS, 1000)
MEGAHERTZ = scale(inventory.HERTZ, 1e-6)
ERRORS = inventory.NUMBER
ROWS: Bounds = (0, 1 << 20)  # also of memory pages
ACTION: Bounds = (0, 255)  # recovery actions of the driver; eight are defined
CLOCK_REASONS = inventory.NUMBER
LANES: Bounds = (1, 32)
LINKS: Bounds = (0, 64)
MEGABYTES_A_SECOND: Bounds = (0, 10_000_000)
BYTES_A_SECOND = inventory.BYTES_PER_SECOND
PERFORMANCE_STATE: Bounds = (0, 15)
NANOSECONDS: Bounds = (0, 10**18)  # thirty years
FEATURES: Bounds = (0, 3)  # features with a licence
MAX_AHEAD_US = 86_400_000_000  # a time stamp of NVML may be this far ahead of the agent's clock

_LINK_ERRORS = (161, 162, 163, 213, 214, 215)
FIELDS: Mapping[int, Bounds] = {
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
