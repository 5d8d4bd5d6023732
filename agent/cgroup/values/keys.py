"""The cgroup files that the agent writes: names, ranges, and their texts on both versions.

A key is called as its version 1 file, which is what hooks and people speak of. `Value` is what
both versions mean by a text, so that values are compared, never texts; only of `cpu.shares` on
version 2 it is the weight, as several weights stand for the same shares.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from agent.cgroup.parse import PAGE_BYTES
from agent.cgroup.values import bandwidth
from agent.cgroup.values.bandwidth import Bandwidth
from agent.errors import ParseError
from agent.topology.text import format_cpu_list, parse_cpu_list

Value = int | Bandwidth | frozenset[int]

UNLIMITED = -1
NO_LIMIT = (1 << 63) - 1  # `max` where a plain number is meant
V1_NO_LIMIT = (1 << 63) - (1 << 16)  # what version 1 prints for no limit, with 64 KiB pages too
MAX_CPU = 4096
SMALL, LARGE = 64, 4096  # bytes that are read of a file
_NUMBER = re.compile("-?[0-9]{1,20}")


class Kind(enum.Enum):
    """What the text means."""

    NUMBER = "number"
    WEIGHT = "weight"  # shares on version 1
    LIMIT = "limit"  # bytes; -1 is none
    PROTECTION = "protection"  # bytes; the largest number is `max`
    BANDWIDTH = "bandwidth"
    CPUS = "cpus"


class Key(msgspec.Struct, frozen=True):
    """One kind of file. `low` and `high` are version 1's range, `high_v2` the other's."""

    name: str
    controller: str
    v2: str | None  # None: version 2 has no such file
    kind: Kind = Kind.NUMBER
    low: int = 0
    high: int = NO_LIMIT
    high_v2: int | None = None

    @property
    def leveled(self) -> bool:
        """Say whether parents come first when it grows, and children when it shrinks."""
        return self.kind not in (Kind.NUMBER, Kind.WEIGHT)

    @property
    def size(self) -> int:
        """Return how many bytes of the file are read at most."""
        return LARGE if self.kind is Kind.CPUS else SMALL

    def files(self, version: int) -> tuple[str, ...]:
        """Return the files that hold it; none where this version has none."""
        if version == 2:
            return () if self.v2 is None else (self.v2,)
        if self.kind is Kind.BANDWIDTH:
            return bandwidth.QUOTA_FILE, bandwidth.PERIOD_FILE
        return (self.name,)

    def parse(self, version: int, texts: Sequence[bytes]) -> Value:
        """Return the value that the files hold; `ParseError` for what no kernel prints."""
        if self.kind is Kind.BANDWIDTH:
            return bandwidth.parse_v2(texts[0]) if version == 2 else bandwidth.parse_v1(*texts)
        shown = texts[0].decode("ascii", "replace").strip()
        if self.kind is Kind.CPUS:
            return parse_cpu_list(shown)
        if self.kind is Kind.LIMIT:
            value = NO_LIMIT if shown == "max" else _whole(shown)
            return UNLIMITED if value >= V1_NO_LIMIT else value
        if self.kind is Kind.PROTECTION and shown == "max":
            return NO_LIMIT
        return _whole(shown)

    def text(self, version: int, value: Value) -> str:
        """Return what is written for a value; of a bandwidth see `bandwidth.steps`."""
        if isinstance(value, frozenset):
            # zero bytes would change nothing: the newline is what empties a set
            return format_cpu_list(value) or "\n"
        if isinstance(value, Bandwidth):
            return bandwidth.text(value)
        unlimited = self.kind is Kind.LIMIT and value == UNLIMITED
        unprotected = self.kind is Kind.PROTECTION and value == NO_LIMIT
        return "max" if version == 2 and (unlimited or unprotected) else str(value)

    def same(self, wanted: Value, found: Value) -> bool:
        """Say whether a found value is as good: the kernel cuts bytes down to whole pages."""
        if isinstance(wanted, Bandwidth) and isinstance(found, Bandwidth):
            return wanted.same(found)
        if self.kind in (Kind.LIMIT, Kind.PROTECTION) and isinstance(wanted, int):
            return wanted == found or (wanted > 0 and _pages(wanted) == found)
        return wanted == found

    def is_any_of(self, found: Value, texts: Iterable[str]) -> bool:
        """Return whether the file's value is one of these of the ledger, as the kernel stores them.

        The kernel cuts bytes down to whole pages, so texts cannot be compared.
        """
        for text in texts:
            with suppress(ParseError):  # the ledger may hold a text that is no value
                if self.same(self.kept(text), found):
                    return True
        return False

    def looser(self, new: Value, old: Value) -> bool:
        """Say whether a new value allows something that the old one does not."""
        if isinstance(new, Bandwidth) and isinstance(old, Bandwidth):
            return new.looser(old)
        if isinstance(new, frozenset) and isinstance(old, frozenset):
            return not new <= old
        if isinstance(new, int) and isinstance(old, int):
            return _rank(new) > _rank(old)
        raise TypeError(f"{self.name} cannot be both {new!r} and {old!r}")

    def merged(self, new: Value, old: Value) -> Value:
        """Return what allows all that either does; of two, one of which is looser, that one."""
        if isinstance(new, frozenset) and isinstance(old, frozenset):
            return new | old
        return new if self.looser(new, old) else old

    def check(self, version: int, value: Value) -> Value:
        """Return the value; `ParseError` if the kernel could only refuse it."""
        if isinstance(value, frozenset):
            if value and max(value) > MAX_CPU:
                raise ParseError(f"CPUs up to {MAX_CPU}", format_cpu_list(value))
            return value
        if isinstance(value, Bandwidth):
            if value.quota_us != UNLIMITED and value.quota_us < bandwidth.MIN_QUOTA_US:
                raise ParseError("CPU quota", bandwidth.text(value))
            return value
        low = UNLIMITED if self.kind is Kind.LIMIT else self.low
        high = self.high if version == 1 or self.high_v2 is None else self.high_v2
        if version == 2 and self.kind is Kind.WEIGHT:
            low = 1
        if not low <= value <= high:
            raise ParseError(f"{self.name} from {low} to {high}", str(value))
        return value

    def keep(self, value: Value) -> str:
        """Return the value as the ledger keeps it; `kept` is the way back."""
        return self.text(1, value).strip()

    def kept(self, text: str) -> Value:
        """Return the value that `keep` made a text of."""
        if self.kind is Kind.BANDWIDTH:
            return bandwidth.parse_text(text)
        return self.parse(1, (text.encode(),))


SHARES = Key("cpu.shares", "cpu", "cpu.weight", Kind.WEIGHT, 2, 262144, 10000)
QUOTA = Key("cpu.cfs_quota_us", "cpu", "cpu.max", Kind.BANDWIDTH)
BURST = Key("cpu.cfs_burst_us", "cpu", "cpu.max.burst", high=100_000_000, high_v2=NO_LIMIT)
BVT = Key("cpu.bvt_warp_ns", "cpu", "cpu.bvt_warp_ns", low=-1, high=2)
IDLE = Key("cpu.idle", "cpu", "cpu.idle", high=1)
CPUS = Key("cpuset.cpus", "cpuset", "cpuset.cpus", Kind.CPUS)
MEMORY = Key("memory.limit_in_bytes", "memory", "memory.max", Kind.LIMIT)
HIGH = Key("memory.high", "memory", "memory.high", Kind.PROTECTION)

ALL: tuple[Key, ...] = (
    SHARES,
    QUOTA,
    BURST,
    BVT,
    IDLE,
    CPUS,
    MEMORY,
    HIGH,
    *(Key(f"memory.{n}", "memory", f"memory.{n}", Kind.PROTECTION) for n in ("min", "low")),
    *(
        Key(f"memory.{name}", "memory", f"memory.{name}", low=low, high=high)
        for name, low, high in (
            ("wmark_ratio", 0, 100),
            ("wmark_scale_factor", 1, 1000),
            ("wmark_min_adj", -25, 50),
            ("priority", 0, 12),
            ("use_priority_oom", 0, 1),
            ("oom.group", 0, 1),
        )
    ),
)
BY_NAME = {key.name: key for key in ALL}


def _whole(shown: str) -> int:
    value = int(shown) if _NUMBER.fullmatch(shown) else None
    if value is None or not -NO_LIMIT <= value <= 1 << 64:
        raise ParseError("number of a cgroup file", shown)
    return value


def _pages(size_bytes: int) -> int:
    return size_bytes // PAGE_BYTES * PAGE_BYTES


def _rank(value: int) -> int:
    return NO_LIMIT if value == UNLIMITED else value
