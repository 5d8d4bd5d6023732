"""Amounts of CPU as kernels take them."""

from __future__ import annotations

import math

from agent.model.runtime.adjustment import UNLIMITED

PERIOD_US = 100_000
MIN_QUOTA_US = 1000  # the kernel takes none below
MIN_SHARES, MAX_SHARES = 2, 262144


def shares_of(milli: int) -> int:
    """Return the weight of so many thousandths of a CPU, as Kubernetes does."""
    return max(MIN_SHARES, min(milli * 1024 // 1000, MAX_SHARES))


def quota_of(milli: int) -> int:
    """Return the limit in microseconds a period; unlimited where that is nothing."""
    quota_us = milli * PERIOD_US // 1000
    return UNLIMITED if quota_us <= 0 else max(quota_us, MIN_QUOTA_US)


def scaled(quota_us: int, ratio: float | None) -> int:
    """Return the quota on a CPU that does `ratio` times the work; never one the kernel refuses."""
    if quota_us <= 0 or ratio is None or ratio <= 1.0:
        return quota_us
    return max(math.ceil(quota_us / ratio), MIN_QUOTA_US)
