"""CPU quota and period, which mean nothing without each other, and the way from one to the next."""

from __future__ import annotations

import msgspec

from agent.errors import ParseError
from agent.topology.text import parse_int

UNLIMITED = -1
PERIOD_US = 100_000  # the kernel's default, which kubelets seldom change
MIN_QUOTA_US = 1000  # less is EINVAL
MAX_US = 1 << 53
QUOTA_FILE, PERIOD_FILE, V2_FILE = "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"

Raw = tuple[str, str, "Bandwidth"]  # file, text, and what is in force after it


class Bandwidth(msgspec.Struct, frozen=True):
    """How long a group may run in each period; a quota of -1 is no limit."""

    quota_us: int
    period_us: int = PERIOD_US

    def looser(self, than: Bandwidth) -> bool:
        """Say whether this allows more: what the kernel compares is the ratio."""
        if UNLIMITED in (self.quota_us, than.quota_us):
            return self.quota_us == UNLIMITED != than.quota_us
        return self.quota_us * than.period_us > than.quota_us * self.period_us

    def same(self, found: Bandwidth) -> bool:
        """Say whether `found` is as good: without a limit the period does not matter."""
        return (self.quota_us == found.quota_us and found.quota_us == UNLIMITED) or self == found


def parse_v1(quota: bytes, period: bytes) -> Bandwidth:
    """Parse both files of version 1."""
    return Bandwidth(_number(quota, UNLIMITED), _number(period, 1))


def parse_v2(data: bytes) -> Bandwidth:
    """Parse `cpu.max`: two fields, of which the first may be `max`."""
    fields = data.split()
    if len(fields) != 2:
        raise ParseError("cpu.max", data[:80].decode("utf-8", "replace"))
    quota = UNLIMITED if fields[0] == b"max" else _number(fields[0], 1)
    return Bandwidth(quota, _number(fields[1], 1))


def parse_text(text: str) -> Bandwidth:
    """Parse what `text` returns."""
    quota, _, period = text.partition(" ")
    return parse_v1(quota.encode("utf-8", "replace"), period.encode("utf-8", "replace"))


def text(value: Bandwidth) -> str:
    """Return one text for both versions, as the ledger keeps it: `-1 100000`."""
    return f"{value.quota_us} {value.period_us}"


def steps(version: int, old: Bandwidth, new: Bandwidth) -> tuple[Raw, ...]:
    """Return the writes from one value to another, of which each is as legal as both ends.

    Version 2 takes both numbers at once; a single one would be taken for the quota. Version 1 has
    a file each: what is in force between the writes must lie between the ends, or be no limit of
    its own, which the kernel takes below any parent and above any child.
    """
    if version == 2:
        quota = "max" if new.quota_us == UNLIMITED else str(new.quota_us)
        return ((V2_FILE, f"{quota} {new.period_us}", new),)
    if old.period_us == new.period_us:
        return (_quota(new),)
    if old.quota_us == new.quota_us:
        return (_period(new),)
    if new.quota_us == UNLIMITED:
        return _quota(Bandwidth(UNLIMITED, old.period_us)), _period(new)
    # the other order leads through the ratio that makes the same product: no better than this one
    period_first = Bandwidth(old.quota_us, new.period_us)
    if old.quota_us == UNLIMITED or _between(old, period_first, new):
        return _period(period_first), _quota(new)
    unlimited = Bandwidth(UNLIMITED, old.period_us)
    return _quota(unlimited), _period(Bandwidth(UNLIMITED, new.period_us)), _quota(new)


def _between(one: Bandwidth, middle: Bandwidth, other: Bandwidth) -> bool:
    low, high = (other, one) if one.looser(other) else (one, other)
    return not (low.looser(middle) or middle.looser(high))


def _quota(after: Bandwidth) -> Raw:
    return QUOTA_FILE, str(after.quota_us), after


def _period(after: Bandwidth) -> Raw:
    return PERIOD_FILE, str(after.period_us), after


def _number(data: bytes, low: int) -> int:
    return parse_int(data.decode("ascii", "replace"), low, MAX_US)
