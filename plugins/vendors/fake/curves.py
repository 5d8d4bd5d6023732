"""Values that change with time. Pure: the time is an argument."""

from __future__ import annotations

import math

import msgspec


class Ramp(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}
):
    """A linear change from one value to another, which then stays."""

    start: float
    end: float
    over_s: float

    def at(self, elapsed_s: float) -> float:
        """Return the value at a time after the start, in seconds."""
        progress = min(1.0, max(0.0, elapsed_s / self.over_s)) if self.over_s > 0 else 1.0
        return self.start + (self.end - self.start) * progress


class Wave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sine around a mean, rising at the start."""

    mean: float
    swing: float
    period_s: float

    def at(self, elapsed_s: float) -> float:
        """Return the value at a time after the start, in seconds."""
        if self.period_s <= 0:
            return self.mean
        return self.mean + self.swing * math.sin(2 * math.pi * elapsed_s / self.period_s)


Curve = float | dict[str, float]  # as the file says it


def shape(curve: Curve) -> float | Ramp | Wave:
    """Return the curve of a mapping; raises `msgspec.ValidationError` for anything else."""
    if not isinstance(curve, dict):
        return curve
    return msgspec.convert(curve, Ramp) if "over_s" in curve else msgspec.convert(curve, Wave)


def value_at(curve: Curve, elapsed_s: float, low: float, high: float) -> float:
    """Return the curve's value, limited to the bounds."""
    shaped = shape(curve)
    value = shaped.at(elapsed_s) if isinstance(shaped, Ramp | Wave) else shaped
    return min(high, max(low, value))
