"""The cgroup files that the agent writes: names, ranges, and their texts on both versions.

A key has the name of its version 1 file. A `CgroupValue` has the same meaning on both versions, so
that values are compared, not texts; only for `cpu.shares` on version 2 it is the weight, because
several shares give one weight.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache

import msgspec

from agent.cgroup import cpu
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.device_values import (
    MAX_DEVICE_FILE,
    DeviceFile,
    DeviceLine,
    check_device_line,
    device_text,
    is_same_line,
    ledger_text,
    parse_device_line,
    parse_ledger_text,
)
from agent.cgroup.usage_files import PAGE_BYTES
from agent.errors import ParseError
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list

CgroupValue = int | Bandwidth | frozenset[int] | DeviceLine

UNLIMITED = -1
NO_LIMIT = (1 << 63) - 1  # `max` of files without -1
V1_NO_LIMIT = (1 << 63) - (1 << 16)  # the text of version 1 for no limit, also with 64 KiB pages
MAX_CPU = 4096
NO_FEATURE, UNKNOWN_FEATURE = "NO_", -1
SMALL_READ, LARGE_READ = 64, 4096  # bytes that are read of a file
_NUMBER = re.compile("-?[0-9]{1,20}")


class ValueKind(enum.Enum):
    """The meaning of a file's text."""

    NUMBER = "number"
    WEIGHT = "weight"  # shares on version 1
    LIMIT = "limit"  # bytes; -1 means none
    PROTECTION = "protection"  # bytes; the largest number is `max`
    BANDWIDTH = "bandwidth"
    CPUS = "cpus"
    DEVICE = "device"  # the line of one block device
    FEATURE = "feature"  # a word of a list of switches; with NO_ before it, it is off


_SIZES = (ValueKind.LIMIT, ValueKind.PROTECTION)
_MAXIMA = {ValueKind.LIMIT: UNLIMITED, ValueKind.PROTECTION: NO_LIMIT}  # `max` on version 2


class CgroupKey(msgspec.Struct, frozen=True):
    """One kind of file, the line of one block device in it, or a file outside of cgroups.

    `low` and `high` are the range on version 1, `high_v2` the other maximum. The name of a line has
    the device's number: `io.max 253:16`. A file that only version 2 has is named as there.
    """

    name: str
    controller: str
    v2: str | None  # None: version 2 has no such file
    kind: ValueKind = ValueKind.NUMBER
    low: int = 0
    high: int = NO_LIMIT
    high_v2: int | None = None
    device_file: DeviceFile | None = None  # of the kind DEVICE
    device: str = ""  # its number
    has_v1: bool = True
    host_file: str = ""  # path of a file outside of cgroups; its directory stands for the cgroup

    @property
    def is_hierarchical(self) -> bool:
        """Return whether parents come first when the value grows, and children when it shrinks."""
        return self.kind not in (ValueKind.NUMBER, ValueKind.WEIGHT, ValueKind.DEVICE)

    @property
    def size(self) -> int:
        """Return how many bytes of the file are read at most."""
        if self.kind in (ValueKind.CPUS, ValueKind.FEATURE):
            return LARGE_READ
        return MAX_DEVICE_FILE if self.kind is ValueKind.DEVICE else SMALL_READ

    def files(self, version: int) -> tuple[str, ...]:
        """Return the files of the value; none if this version has none."""
        if self.host_file:
            return (self.host_file.rpartition("/")[2],)
        if version == 2:
            return () if self.v2 is None else (self.v2,)
        if self.device_file is not None:
            return (self.device_file.name,) if self.device_file.version == 1 else ()
        if not self.has_v1:
            return ()
        if self.kind is ValueKind.BANDWIDTH:
            return cpu.QUOTA_FILE, cpu.PERIOD_FILE
        return (self.name,)

    def parse(self, version: int, texts: Sequence[bytes]) -> CgroupValue:
        """Return the value in the files; raises `ParseError` for a text that no kernel prints."""
        if self.device_file is not None:
            return parse_device_line(self.device_file, self.device, texts[0])
        if self.kind is ValueKind.BANDWIDTH:
            return (
                cpu.parse_bandwidth_v2(texts[0]) if version == 2 else cpu.parse_bandwidth_v1(*texts)
            )
        text = texts[0].decode("ascii", "replace").strip()
        if self.kind is ValueKind.CPUS:
            return parse_cpu_list(text)
        if self.kind is ValueKind.FEATURE:
            return _parse_feature(self.name.partition(" ")[2], text)
        if self.kind is ValueKind.LIMIT:
            value = NO_LIMIT if text == "max" else _parse_number(text)
            return UNLIMITED if value >= V1_NO_LIMIT else value
        if self.kind is ValueKind.PROTECTION and text == "max":
            return NO_LIMIT
        return _parse_number(text)

    def text(self, version: int, value: CgroupValue) -> str:
        """Return the text to write for a value; for a bandwidth see `cpu.bandwidth_writes`."""
        if self.kind is ValueKind.FEATURE:
            return f"{'' if value else NO_FEATURE}{self.name.partition(' ')[2]}\n"
        if isinstance(value, int):
            return "max" if version == 2 and value == _MAXIMA.get(self.kind) else str(value)
        if isinstance(value, frozenset):
            # writing zero bytes has no effect: the newline empties a set
            return format_cpu_list(value) or "\n"
        if isinstance(value, Bandwidth):
            return cpu.format_bandwidth(value)
        file = self.device_file
        return "" if file is None else device_text(file, self.device, value)

    def is_equivalent(self, desired: CgroupValue, current: CgroupValue) -> bool:
        """Return whether the current value has the same effect: the kernel rounds down to pages."""
        if desired == current:
            return True
        if isinstance(desired, int):
            return self.kind in _SIZES and desired > 0 and _whole_pages(desired) == current
        if isinstance(desired, Bandwidth) and isinstance(current, Bandwidth):
            return desired.is_equivalent(current)
        if isinstance(desired, DeviceLine) and isinstance(current, DeviceLine):
            file = self.device_file
            return file is not None and is_same_line(file, desired, current)
        return False

    def is_any_of(self, value: CgroupValue, texts: Iterable[str]) -> bool:
        """Return whether the file's value is one of these ledger texts, as the kernel stores it.

        The kernel rounds bytes down to whole pages, so texts cannot be compared.
        """
        texts = tuple(texts)
        if self.to_ledger(value) in texts:  # nearly always so, and without parsing
            return True
        for text in texts:
            with suppress(ParseError):  # the ledger may have an invalid text
                if self.is_equivalent(self.from_ledger(text), value):
                    return True
        return False

    def text_among(self, value: CgroupValue, texts: Iterable[str]) -> str | None:
        """Return the value's text for the ledger if the value is one of these; else `None`."""
        return self.to_ledger(value) if self.is_any_of(value, texts) else None

    def is_looser(self, new: CgroupValue, old: CgroupValue) -> bool:
        """Return whether a new value allows something that the old one does not."""
        if isinstance(new, int) and isinstance(old, int):
            return old != UNLIMITED and (new == UNLIMITED or new > old)
        if isinstance(new, Bandwidth) and isinstance(old, Bandwidth):
            return new.is_looser(old)
        if isinstance(new, frozenset) and isinstance(old, frozenset):
            return not new <= old
        raise TypeError(f"{self.name} cannot be both {new!r} and {old!r}")

    def merge(self, new: CgroupValue, old: CgroupValue) -> CgroupValue:
        """Return the value that allows what either allows; if one is looser, that one."""
        if isinstance(new, frozenset) and isinstance(old, frozenset):
            return new | old
        return new if self.is_looser(new, old) else old

    def check(self, version: int, value: CgroupValue) -> CgroupValue:
        """Return the value; raises `ParseError` if the kernel would refuse it."""
        if isinstance(value, DeviceLine):
            return value if self.device_file is None else check_device_line(self.device_file, value)
        if isinstance(value, frozenset):
            if value and max(value) > MAX_CPU:
                raise ParseError(f"CPUs up to {MAX_CPU}", format_cpu_list(value))
            return value
        if isinstance(value, Bandwidth):
            if value.quota_us != UNLIMITED and value.quota_us < cpu.MIN_QUOTA_US:
                raise ParseError("CPU quota", cpu.format_bandwidth(value))
            return value
        low = UNLIMITED if self.kind is ValueKind.LIMIT else self.low
        high = self.high if version == 1 or self.high_v2 is None else self.high_v2
        if version == 2 and self.kind is ValueKind.WEIGHT:
            low = 1
        if not low <= value <= high:
            raise ParseError(f"{self.name} from {low} to {high}", str(value))
        return value

    def to_ledger(self, value: CgroupValue) -> str:
        """Return the value as text for the ledger; `from_ledger` parses it."""
        if isinstance(value, int):
            return str(value)
        if isinstance(value, DeviceLine) and self.device_file is not None:
            return ledger_text(self.device_file, value)
        return self.text(1, value).strip()

    def from_ledger(self, text: str) -> CgroupValue:
        """Return the value of a text of `to_ledger`."""
        if self.device_file is not None:
            return parse_ledger_text(self.device_file, text)
        if self.kind is ValueKind.BANDWIDTH:
            return cpu.parse_bandwidth_text(text)
        if self.kind is ValueKind.FEATURE:
            return _parse_number(text)
        return self.parse(1, (text.encode(),))


SHARES = CgroupKey("cpu.shares", "cpu", "cpu.weight", ValueKind.WEIGHT, 2, 262144, 10000)
QUOTA = CgroupKey("cpu.cfs_quota_us", "cpu", "cpu.max", ValueKind.BANDWIDTH)
BURST = CgroupKey("cpu.cfs_burst_us", "cpu", "cpu.max.burst", high=100_000_000, high_v2=NO_LIMIT)
BVT = CgroupKey("cpu.bvt_warp_ns", "cpu", "cpu.bvt_warp_ns", low=-1, high=2)
IDLE = CgroupKey("cpu.idle", "cpu", "cpu.idle", high=1)
IDLE_WEIGHTS = {1: 3, 2: 0}  # what the kernel prints as the weight of an idle group, by version
CPUS = CgroupKey("cpuset.cpus", "cpuset", "cpuset.cpus", ValueKind.CPUS)
MEMORY = CgroupKey("memory.limit_in_bytes", "memory", "memory.max", ValueKind.LIMIT)
MIN = CgroupKey("memory.min", "memory", "memory.min", ValueKind.PROTECTION)
LOW = CgroupKey("memory.low", "memory", "memory.low", ValueKind.PROTECTION)
HIGH = CgroupKey("memory.high", "memory", "memory.high", ValueKind.PROTECTION)


def _memory_number(name: str, low: int, high: int, *, has_v1: bool = True) -> CgroupKey:
    """Return the key of a number below `memory.`; most of them exist on Anolis kernels only."""
    file = f"memory.{name}"
    return CgroupKey(file, "memory", file, low=low, high=high, has_v1=has_v1)


WATERMARK_RATIO = _memory_number("wmark_ratio", 0, 100)
WATERMARK_SCALE = _memory_number("wmark_scale_factor", 1, 1000)
WATERMARK_ADJUSTMENT = _memory_number("wmark_min_adj", -25, 50)
OOM_PRIORITY = _memory_number("priority", 0, 12)
USES_OOM_PRIORITY = _memory_number("use_priority_oom", 0, 1)
OOM_GROUP = _memory_number("oom.group", 0, 1)
PAGE_CACHE_ENABLE = _memory_number("pagecache_limit.enable", 0, 1, has_v1=False)
PAGE_CACHE_SIZE = _memory_number("pagecache_limit.size", 0, NO_LIMIT, has_v1=False)
PAGE_CACHE_SYNC = _memory_number("pagecache_limit.sync", 0, 1, has_v1=False)

ALL_KEYS: tuple[CgroupKey, ...] = (
    SHARES,
    QUOTA,
    BURST,
    BVT,
    IDLE,
    CPUS,
    MEMORY,
    MIN,
    LOW,
    HIGH,
    WATERMARK_RATIO,
    WATERMARK_SCALE,
    WATERMARK_ADJUSTMENT,
    OOM_PRIORITY,
    USES_OOM_PRIORITY,
    OOM_GROUP,
    PAGE_CACHE_ENABLE,
    PAGE_CACHE_SIZE,
    PAGE_CACHE_SYNC,
)
KEYS_BY_NAME = {key.name: key for key in ALL_KEYS}


@lru_cache(maxsize=4096)
def device_key(file: DeviceFile, device: str) -> CgroupKey:
    """Return the key of the line of one block device, by its number as `253:16`."""
    v2 = file.name if file.version == 2 else None
    name = f"{file.name} {device}"
    return CgroupKey(name, file.controller, v2, ValueKind.DEVICE, device_file=file, device=device)


def _parse_number(text: str) -> int:
    value = int(text) if _NUMBER.fullmatch(text) else None
    if value is None or not -NO_LIMIT <= value <= 1 << 64:
        raise ParseError("number of a cgroup file", text)
    return value


def _parse_feature(name: str, text: str) -> int:
    """Return 1 or 0 for a feature that is on or off; -1 if the kernel does not list it."""
    words = text.split()
    if name in words:
        return 1
    return 0 if f"{NO_FEATURE}{name}" in words else UNKNOWN_FEATURE


def _whole_pages(size_bytes: int) -> int:
    return size_bytes // PAGE_BYTES * PAGE_BYTES
