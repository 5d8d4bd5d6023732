"""CPU quota, period and shares of both cgroup versions, and conversions between them. Pure."""

from __future__ import annotations

import enum
import math

import msgspec

from agent.errors import ParseError
from agent.wire_formats.kernel_text import parse_int

UNLIMITED_QUOTA = -1
PERIOD_US = 100_000  # the kernel's default, which kubelets seldom change
MIN_QUOTA_US = 1000  # the kernel refuses less with EINVAL
MAX_US = 1 << 53
QUOTA_FILE, PERIOD_FILE, V2_FILE = "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"

BandwidthWrite = tuple[str, str, "Bandwidth"]  # file, text, and the value in force after the write


class Bandwidth(msgspec.Struct, frozen=True):
    """Run time of a group in each period; a quota of -1 means no limit."""

    quota_us: int
    period_us: int = PERIOD_US

    def is_looser(self, other: Bandwidth) -> bool:
        """Return whether this allows more run time: the kernel compares the ratios."""
        if UNLIMITED_QUOTA in (self.quota_us, other.quota_us):
            return self.quota_us == UNLIMITED_QUOTA != other.quota_us
        return self.quota_us * other.period_us > other.quota_us * self.period_us

    def is_equivalent(self, current: Bandwidth) -> bool:
        """Return whether `current` has the same effect.

        Without a limit the period does not matter.
        """
        return (
            self.quota_us == current.quota_us and current.quota_us == UNLIMITED_QUOTA
        ) or self == current


def parse_bandwidth_v1(quota: bytes, period: bytes) -> Bandwidth:
    """Parse both files of version 1."""
    return Bandwidth(_number(quota, UNLIMITED_QUOTA), _number(period, 1))


def parse_bandwidth_v2(data: bytes) -> Bandwidth:
    """Parse `cpu.max`: two fields, of which the first may be `max`."""
    fields = data.split()
    if len(fields) != 2:
        raise ParseError("cpu.max", data[:80].decode("utf-8", "replace"))
    quota = UNLIMITED_QUOTA if fields[0] == b"max" else _number(fields[0], 1)
    return Bandwidth(quota, _number(fields[1], 1))


def parse_bandwidth_text(text: str) -> Bandwidth:
    """Parse a text of `format_bandwidth`."""
    quota, _, period = text.partition(" ")
    return parse_bandwidth_v1(quota.encode("utf-8", "replace"), period.encode("utf-8", "replace"))


def format_bandwidth(value: Bandwidth) -> str:
    """Return one text for both versions, as in the ledger: `-1 100000`."""
    return f"{value.quota_us} {value.period_us}"


def bandwidth_writes(version: int, old: Bandwidth, new: Bandwidth) -> tuple[BandwidthWrite, ...]:
    """Return the writes from one value to another, each as legal as both of them.

    Version 2 has one file for both numbers; a single number would be the quota. Version 1 has a
    file for each: the value between the writes must lie between the two values, or be unlimited,
    which the kernel accepts below any parent and above any child.
    """
    if version == 2:
        quota = "max" if new.quota_us == UNLIMITED_QUOTA else str(new.quota_us)
        return ((V2_FILE, f"{quota} {new.period_us}", new),)
    if old.period_us == new.period_us:
        return (_quota_write(new),)
    if old.quota_us == new.quota_us:
        return (_period_write(new),)
    if new.quota_us == UNLIMITED_QUOTA:
        return _quota_write(Bandwidth(UNLIMITED_QUOTA, old.period_us)), _period_write(new)
    # the other order has the same intermediate ratio at best
    period_first = Bandwidth(old.quota_us, new.period_us)
    if old.quota_us == UNLIMITED_QUOTA or _between(old, period_first, new):
        return _period_write(period_first), _quota_write(new)
    unlimited = Bandwidth(UNLIMITED_QUOTA, old.period_us)
    return (
        _quota_write(unlimited),
        _period_write(Bandwidth(UNLIMITED_QUOTA, new.period_us)),
        _quota_write(new),
    )


def _between(first: Bandwidth, middle: Bandwidth, last: Bandwidth) -> bool:
    low, high = (last, first) if first.is_looser(last) else (first, last)
    return not (low.is_looser(middle) or middle.is_looser(high))


def _quota_write(after: Bandwidth) -> BandwidthWrite:
    return QUOTA_FILE, str(after.quota_us), after


def _period_write(after: Bandwidth) -> BandwidthWrite:
    return PERIOD_FILE, str(after.period_us), after


def _number(data: bytes, low: int) -> int:
    return parse_int(data.decode("ascii", "replace"), low, MAX_US)


MIN_SHARES, MAX_SHARES = 2, 262144

MIN_WEIGHT, MAX_WEIGHT = 1, 10000


class WeightFormula(enum.Enum):
    """Conversion of shares to weights; siblings compete, so they must use the same formula."""

    LINEAR = "linear"  # the kubelet's for its root; runtimes before runc 1.3.2 and crun 1.23
    QUADRATIC = "quadratic"  # later runtimes, and pods' directories since kubelet 1.35


def linear_weight(shares: int) -> int:
    """Return the weight at the same relative position in its range as the shares."""
    _check_range("CPU shares", shares, MIN_SHARES, MAX_SHARES)
    return MIN_WEIGHT + (shares - MIN_SHARES) * (MAX_WEIGHT - 1) // (MAX_SHARES - MIN_SHARES)


def quadratic_weight(shares: int) -> int:
    """Return the weight by the curve that maps 1024 shares to the default 100 (runc 1.3.2)."""
    if shares <= MIN_SHARES:
        return MIN_WEIGHT
    if shares >= MAX_SHARES:
        return MAX_WEIGHT
    log = math.log2(shares)
    return math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))


def weight_of_shares(shares: int, formula: WeightFormula) -> int:
    """Return the weight by the formula of the group's level."""
    return linear_weight(shares) if formula is WeightFormula.LINEAR else quadratic_weight(shares)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ParseError(f"{name} from {low} to {high}", str(value))
