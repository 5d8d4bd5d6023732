"""Reads cache occupancy and memory bandwidth of resctrl groups: of classes and of single pods.

Each file asks a CPU of its cache by an interrupt, so a round is spread over several cycles.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from agent.clock import Clock
from agent.errors import HostFileError, ParseError
from agent.host.files import list_entries, read_text
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem
from agent.snapshot.usage import ResctrlCounters, ResctrlUsage
from agent.usage.collector import CollectorInput, SpreadRound
from agent.wire_formats.annotations import RESCTRL_GROUP_PREFIX

ROOT = "/sys/fs/resctrl"
CLASSES = ("LSR", "LS", "BE")
MONITOR_FOLDER, MONITOR_PREFIX = "mon_groups", "xpu-"  # of single pods in a group
DEFAULT_GROUP = "default"  # the kernel's word for the group of all other tasks
OCCUPANCY, TOTAL, LOCAL = "llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"
MAX_GROUPS = 256
MAX_COUNTER = 1 << 62  # the kernel uses the two bits above for errors

# reasons of absent values
NOT_MOUNTED = "ResctrlNotMounted"
NOT_MONITORED = "ResctrlWithoutMonitoring"
COUNTER_ERROR = "CounterError"
UNREADABLE = "CounterUnreadable"

_MESSAGES = {
    NOT_MOUNTED: f"no resctrl file system at {ROOT}",
    NOT_MONITORED: "the CPUs or the kernel monitor neither cache nor memory bandwidth",
    COUNTER_ERROR: "the hardware reported an error instead of a count",
    UNREADABLE: "a file of mon_data holds no count",
}

_CACHE = re.compile(r"mon_L3_([0-9]{2,5})")
_COUNT = re.compile(rb"([0-9]{1,20})\n")
_NO_COUNT_NOW = (b"Unavailable", b"Unassigned")  # the next reading may have one
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)  # the group was removed


def parse_counter(data: bytes) -> int | None:
    """Return a count; `None` while the hardware has none. Raise `ParseError` for anything else."""
    if data.strip() in _NO_COUNT_NOW:
        return None
    match = _COUNT.fullmatch(data)
    if match is None or int(match[1]) >= MAX_COUNTER:
        raise ParseError("mon_data", data[:80].decode("utf-8", "replace"))
    return int(match[1])


class _CacheKey(msgspec.Struct, frozen=True):
    """One group on one cache."""

    group: str
    cache_id: int
    monitor: str = ""  # a monitoring group inside of the group

    @property
    def directory(self) -> str:
        """Return the path of the group."""
        path = _directory(self.group)
        return f"{path}/{MONITOR_FOLDER}/{self.monitor}" if self.monitor else path


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one group on one cache, by file name, and when they were read."""

    taken_s: float
    counts: dict[str, int]


class ResctrlCollector:
    """Reads what the kernel monitors of each group. It creates no group."""

    name = "resctrl"

    def __init__(self, host: HostFiles, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._round: SpreadRound[_CacheKey, _Reading] | None = None
        self._features: frozenset[str] = frozenset()  # files that the kernel has in each group
        self._failures: Counter[str] = Counter()
        self._now_s = 0.0  # of the call in progress
        self._last: dict[_CacheKey, _Reading] = {}

    def collect(self, cycle: CollectorInput) -> ResctrlUsage | None:
        """Read some of the files; return the values of all groups once every file is read."""
        self._now_s = cycle.now_s
        if self._round is None:
            features = read_text(self._host, f"{ROOT}/info/L3_MON/mon_features") or ""
            self._features = frozenset(features.split())
            if not self._features:
                self._last = {}
                return ResctrlUsage(problems=(_problem(self._why_not_monitored()),))
            self._failures = Counter()
            self._round = SpreadRound(self._keys())
        if not self._round.read_some(self._read, self._clock):
            return None
        before, self._last, self._round = self._last, self._round.values, None
        return ResctrlUsage(
            groups=tuple(
                _counters(key, before.get(key), reading) for key, reading in self._last.items()
            ),
            problems=tuple(_problem(reason) for reason in sorted(self._failures)),
        )

    def close(self) -> None:
        """Forget the round: no descriptor stays open."""
        self._round = None

    def _why_not_monitored(self) -> str:
        return NOT_MONITORED if self._host.exists(f"{ROOT}/info") else NOT_MOUNTED

    def _keys(self) -> Iterator[_CacheKey]:
        names = list_entries(self._host, ROOT)
        pod_groups = [name for name in names if name.startswith(RESCTRL_GROUP_PREFIX)]
        present = [name for name in CLASSES if name in names]
        for group in (DEFAULT_GROUP, *present, *pod_groups[:MAX_GROUPS]):
            monitors = list_entries(self._host, f"{_directory(group)}/{MONITOR_FOLDER}")
            pods = [name for name in monitors if name.startswith(MONITOR_PREFIX)]
            caches = list_entries(self._host, f"{_directory(group)}/mon_data")
            for monitor in ("", *pods[:MAX_GROUPS]):
                for match in filter(None, map(_CACHE.fullmatch, caches)):
                    yield _CacheKey(group, int(match[1]), monitor)

    def _read(self, key: _CacheKey) -> _Reading | None:
        """Return the counts of one group on one cache; `None` if there are none."""
        folder = f"{key.directory}/mon_data/mon_L3_{key.cache_id:02d}"
        counts = {}
        for name in (OCCUPANCY, TOTAL, LOCAL):
            if name not in self._features:
                continue
            try:
                data = self._host.read(f"{folder}/{name}", 64)
                count = parse_counter(data)
            except HostFileError as error:
                if error.errno not in _GONE:
                    self._failures[UNREADABLE] += 1
                continue
            except ParseError:
                is_error = data.strip() == b"Error"
                self._failures[COUNTER_ERROR if is_error else UNREADABLE] += 1
                continue
            if count is not None:
                counts[name] = count
        return _Reading(taken_s=self._now_s, counts=counts) if counts else None


def _directory(group: str) -> str:
    return ROOT if group == DEFAULT_GROUP else f"{ROOT}/{group}"


def _problem(reason: str) -> Problem:
    return Problem(reason=reason, message=_MESSAGES[reason])


def _counters(key: _CacheKey, before: _Reading | None, now: _Reading) -> ResctrlCounters:
    pod_uid = key.monitor.removeprefix(MONITOR_PREFIX)
    if key.group.startswith(RESCTRL_GROUP_PREFIX):
        pod_uid = key.group.removeprefix(RESCTRL_GROUP_PREFIX)
    return ResctrlCounters(
        group="" if pod_uid else key.group,
        pod_uid=pod_uid,
        cache_id=key.cache_id,
        occupancy_bytes=now.counts.get(OCCUPANCY),
        total_bytes=now.counts.get(TOTAL),
        local_bytes=now.counts.get(LOCAL),
        total_bytes_per_s=_rate(before, now, TOTAL),
        local_bytes_per_s=_rate(before, now, LOCAL),
    )


def _rate(before: _Reading | None, now: _Reading, name: str) -> float | None:
    """Return bytes for each second; `None` if the counter is new or fell."""
    if before is None or now.taken_s <= before.taken_s:
        return None
    first, last = before.counts.get(name), now.counts.get(name)
    if first is None or last is None or last < first:
        return None
    return (last - first) / (now.taken_s - before.taken_s)
