"""CPU shares (version 1) to weight (version 2) and back, by both formulas that runtimes use."""

from __future__ import annotations

import enum
import math

from agent.errors import ParseError

MIN_SHARES, MAX_SHARES = 2, 262144
MIN_WEIGHT, MAX_WEIGHT = 1, 10000


class Formula(enum.Enum):
    """Which curve the groups of one level follow; siblings compete, so they must use one."""

    LINEAR = "linear"  # the kubelet's own for its root, all runtimes before runc 1.3.2, crun 1.23
    QUADRATIC = "quadratic"  # those after, and pods' directories from kubelet 1.35 on


def linear(shares: int) -> int:
    """Return the weight that stands to the range of weights as shares do to theirs."""
    _check("CPU shares", shares, MIN_SHARES, MAX_SHARES)
    return MIN_WEIGHT + (shares - MIN_SHARES) * (MAX_WEIGHT - 1) // (MAX_SHARES - MIN_SHARES)


def quadratic(shares: int) -> int:
    """Return the weight that keeps 1024 shares at the default 100 (runc 1.3.2)."""
    if shares <= MIN_SHARES:
        return MIN_WEIGHT
    if shares >= MAX_SHARES:
        return MAX_WEIGHT
    log = math.log2(shares)
    return math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))


def weight(shares: int, formula: Formula) -> int:
    """Return the weight by the formula of the group's level."""
    return linear(shares) if formula is Formula.LINEAR else quadratic(shares)


def of_weight(found: int) -> int:
    """Return the shares of a weight by the linear formula. No inverse: 1024 gives 39 gives 998."""
    _check("CPU weight", found, MIN_WEIGHT, MAX_WEIGHT)
    return (found - MIN_WEIGHT) * (MAX_SHARES - MIN_SHARES) // (MAX_WEIGHT - 1) + MIN_SHARES


def _check(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ParseError(f"{what} from {low} to {high}", str(value))
