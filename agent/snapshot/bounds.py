"""What readings of hardware can mean: the lowest and highest value of each quantity.

One table for all vendors. A family of a vendor has the bounds of its unit, which is the end of its
name, unless it declares its own. Bindings of vendors' libraries use the same bounds for values that
they compute with.
"""

from __future__ import annotations

from typing import TypeAlias

Bounds: TypeAlias = tuple[float, float]  # lowest and highest value

PERCENT: Bounds = (0, 100)
RATIO: Bounds = (0, 1)
FLAG: Bounds = (0, 1)
CELSIUS: Bounds = (-60, 200)
WATTS: Bounds = (0, 10_000)
VOLTS: Bounds = (0, 1_000)
HERTZ: Bounds = (0, 20_000_000_000)
BYTES: Bounds = (0, 1 << 50)
MEMORY_BYTES: Bounds = (1, 1 << 50)  # of a whole device
BYTES_PER_SECOND: Bounds = (0, 10_000_000_000_000)
SECONDS: Bounds = (0, 10_000_000_000)
COUNTER: Bounds = (0, (1 << 63) - 1)
NUMBER: Bounds = (0, (1 << 32) - 2)  # drivers answer 4294967295 for a value that they do not have
PIDS: Bounds = (1, (1 << 31) - 1)

_BY_UNIT: tuple[tuple[str, Bounds], ...] = (
    ("_percent", PERCENT),
    ("_ratio", RATIO),
    ("_active", FLAG),
    ("_up", FLAG),
    ("_info", FLAG),
    ("_celsius", CELSIUS),
    ("_watts", WATTS),
    ("_volts", VOLTS),
    ("_hertz", HERTZ),
    ("_bytes_per_second", BYTES_PER_SECOND),
    ("_bytes", BYTES),
    ("_seconds", SECONDS),
)


def unit_bounds(name: str, type_: str) -> Bounds:
    """Return the bounds of a family by its type and the unit at the end of its name."""
    if type_ == "counter":
        return COUNTER
    return next((bounds for unit, bounds in _BY_UNIT if name.endswith(unit)), NUMBER)


def scale(bounds: Bounds, factor: float) -> Bounds:
    """Return bounds in another unit, of which `factor` make one of the old."""
    return bounds[0] * factor, bounds[1] * factor


def is_within(value: float, bounds: Bounds) -> bool:
    """Return whether a value is within bounds; NaN never is."""
    return bounds[0] <= value <= bounds[1]
