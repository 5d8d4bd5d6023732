"""Formulas of CPU burst: how a container's burst and quota follow from its use. Pure.

They are those of Koordinator (`pkg/koordlet/qosmanager/plugins/cpuburst`), except that a burst
never exceeds the quota, which the kernel refuses, and that parts of seconds count.
"""

from __future__ import annotations

import enum

import msgspec

from agent.qos.share_pool import PoolState

RAISE_FACTOR, LOWER_FACTOR = 1.2, 0.8
IDLE_USAGE_PERCENT, FULL_USAGE_PERCENT = 60, 100  # of the limit: below, tokens come; above, they go


class QuotaChange(enum.Enum):
    """What becomes of a container's quota in one step."""

    RAISE = "raise"
    KEEP = "keep"
    LOWER = "lower"


def burst_of(limit_milli: int, percent: int, quota_us: int) -> int:
    """Return the burst in microseconds; the kernel refuses one that exceeds the quota."""
    return max(min(limit_milli * percent, quota_us), 0)


def wished_change(throttled_ratio: float | None, *, is_allowed: bool) -> QuotaChange:
    """Return what a container asks for; without a sample its quota stays."""
    if not is_allowed:
        return QuotaChange.LOWER
    is_throttled = throttled_ratio is not None and throttled_ratio > 0
    return QuotaChange.RAISE if is_throttled else QuotaChange.KEEP


def granted_change(wish: QuotaChange, pool: PoolState) -> QuotaChange:
    """Return what the node makes of a container's wish."""
    if pool is PoolState.OVERLOADED:
        return QuotaChange.LOWER
    if wish is QuotaChange.RAISE and pool is not PoolState.IDLE:
        return QuotaChange.KEEP
    return wish


def target_quota(change: QuotaChange, current_us: int, base_us: int, percent: int) -> int:
    """Return the next quota, between the base and `percent` of it."""
    ceiling_us = base_us * percent // 100 if percent > 100 else base_us
    target_us = current_us
    if change is QuotaChange.RAISE:
        target_us = int(current_us * RAISE_FACTOR)
    elif change is QuotaChange.LOWER:
        target_us = int(current_us * LOWER_FACTOR)
    return max(base_us, min(target_us, ceiling_us))


class BurstBucket(msgspec.Struct, frozen=True):
    """How much longer a container may run above its limit, in percent of the limit x seconds."""

    capacity: int
    tokens: float
    stepped_s: float

    @property
    def is_allowed(self) -> bool:
        """Return whether the quota may be above the limit."""
        return self.tokens > 0


def new_bucket(capacity: int, now_s: float, fraction: float) -> BurstBucket:
    """Return a bucket that is filled by less than a half: `fraction` is from 0 to 1."""
    return BurstBucket(capacity, int(capacity * fraction / 2), now_s)


def step_bucket(bucket: BurstBucket, usage_percent: int, now_s: float) -> BurstBucket:
    """Return the bucket after the time since its last step at this usage of the limit."""
    elapsed_s = max(now_s - bucket.stepped_s, 0.0)
    tokens = bucket.tokens
    if usage_percent >= FULL_USAGE_PERCENT:
        tokens -= (usage_percent - FULL_USAGE_PERCENT) * elapsed_s
    elif usage_percent < IDLE_USAGE_PERCENT:
        tokens += (FULL_USAGE_PERCENT - usage_percent) * elapsed_s
    tokens = max(-bucket.capacity, min(tokens, bucket.capacity))
    return BurstBucket(bucket.capacity, tokens, now_s)
