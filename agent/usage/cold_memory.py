"""Memory that nothing has used for minutes, as the kernel thread kidled counts it.

Kernels of Anolis and Alibaba have kidled; mainline kernels do not. An administrator starts it by
writing its settings: the agent does not write them. Without it, mainline's DAMON_STAT tells the
share of idle memory of the node: from Linux 6.17 on, of all its memory (page cache, memory of
processes and free memory alike). Nothing of mainline tells idle page cache by cgroup:
`memory.reclaim` evicts the pages that it looks for, and generations of the multi-generational LRU
do not count accesses to page cache by system calls.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.clock import Clock
from agent.errors import HostFileError, ParseError
from agent.host.files import read_text
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem
from agent.snapshot.usage import ColdMemory
from agent.usage.collector import CollectorInput, SpreadRound

KIDLED = "/sys/kernel/mm/kidled"
PERIOD_FILE, HIERARCHY_FILE = f"{KIDLED}/scan_period_in_seconds", f"{KIDLED}/use_hierarchy"
IDLE_PAGE_STATS = "memory.idle_page_stats"
MAX_STATS_BYTES = 16 * 1024
COLD_S = 300  # memory that was idle for at least that long is cold
BUCKETS = (1, 2, 5, 15, 30, 60, 120, 240)  # ages in scans, from which each bucket counts

# file pages, clean and dirty, evictable and not, of the inactive list
COLD_ROWS = (b"cfei", b"dfei", b"cfui", b"dfui")

ROW_COUNT = 17

DAMON_STAT = "/sys/module/damon_stat/parameters"
ENABLED_FILE = f"{DAMON_STAT}/enabled"
PERCENTILES_FILE = f"{DAMON_STAT}/memory_idle_ms_percentiles"
PERCENTILES = 101  # from the 0th to the 100th
MAX_PERCENTILES_BYTES = 4096

# reasons of an absent share of idle memory
NO_DAMON_STAT = "DamonStatMissing"
DAMON_STAT_OFF = "DamonStatOff"
DAMON_STAT_YOUNG = "DamonStatTooYoung"
DAMON_STAT_UNREADABLE = "DamonStatUnreadable"

# reasons of absent values
NO_KIDLED = "KidledMissing"
KIDLED_OFF = "KidledOff"
NO_HIERARCHY = "KidledWithoutHierarchy"
TOO_FEW_SCANS = "TooFewScans"
NO_STATS = "IdlePageStatsMissing"
UNREADABLE = "IdlePageStatsUnreadable"

_MESSAGES = {
    NO_KIDLED: f"this kernel has no {KIDLED}",
    NO_DAMON_STAT: f"this kernel has no {DAMON_STAT}: it is older than 6.17, or built without",
    DAMON_STAT_OFF: f"{ENABLED_FILE} is N: Y switches it on",
    DAMON_STAT_YOUNG: f"DAMON_STAT has measured for less than {COLD_S} s",
    DAMON_STAT_UNREADABLE: f"{PERCENTILES_FILE} is unreadable or malformed",
    KIDLED_OFF: f"{PERIOD_FILE} is 0: kidled does not scan; 5 is what Koordinator writes",
    NO_HIERARCHY: f"{HIERARCHY_FILE} is 0: counts of pods and of the node lack the groups below",
    TOO_FEW_SCANS: f"kidled has scanned for less than {COLD_S} s",
    NO_STATS: f"no group has {IDLE_PAGE_STATS}",
    UNREADABLE: f"{IDLE_PAGE_STATS} of a group is unreadable or malformed",
}

_HEADER = re.compile(rb"^# (page_scans|scan_period_in_seconds|use_hierarchy): ([0-9]{1,9})$", re.M)
_BUCKET_LINE = re.compile(rb"^# buckets: %b$" % ",".join(map(str, BUCKETS)).encode(), re.M)
_ROW = re.compile(rb"^ *([cd][sf][eu][ia]|slab)((?: +[0-9]{1,19}){%d}) *$" % len(BUCKETS), re.M)


class IdlePageStats(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by row and bucket, with the settings of the scans that counted them."""

    page_scans: int
    period_s: int
    use_hierarchy: bool
    rows: dict[bytes, tuple[int, ...]]

    @property
    def cold_scans(self) -> int:
        """The number of scans after which idle memory is cold."""
        return -(-COLD_S // self.period_s)

    def cold_bytes(self) -> int:
        """Return the cold file memory: of buckets whose ages are all `COLD_S` or more."""
        first = next((i for i, age in enumerate(BUCKETS) if age >= self.cold_scans), len(BUCKETS))
        return sum(sum(self.rows[row][first:]) for row in COLD_ROWS)


def parse_idle_page_stats(data: bytes) -> IdlePageStats:
    """Parse `memory.idle_page_stats`; raise `ParseError` unless it is complete.

    The row `slab` ends the file, so a cut file is recognised.
    """
    settings = dict(_HEADER.findall(data))
    matches = _ROW.findall(data)
    rows = {name: tuple(map(int, counts.split())) for name, counts in matches}
    if (
        not data.endswith(b"\n")
        or len(settings) != 3
        or not _BUCKET_LINE.search(data)
        or not len(matches) == len(rows) == ROW_COUNT
        or matches[-1][0] != b"slab"
    ):
        raise ParseError(IDLE_PAGE_STATS, data[:80].decode("utf-8", "replace"))
    return IdlePageStats(
        page_scans=int(settings[b"page_scans"]),
        period_s=int(settings[b"scan_period_in_seconds"]),
        use_hierarchy=settings[b"use_hierarchy"] != b"0",
        rows=rows,
    )


def parse_idle_percentiles(data: bytes) -> tuple[int, ...]:
    """Return the idle times in milliseconds, ascending; raise `ParseError` for anything else.

    Negative times are of memory that is in use; before Linux 6.18 they are 0.
    """
    try:
        times_ms = tuple(map(int, data.decode("ascii").split(",")))
    except ValueError as error:
        raise ParseError(PERCENTILES_FILE, repr(data)[:80]) from error
    if len(times_ms) != PERCENTILES or list(times_ms) != sorted(times_ms):
        raise ParseError(PERCENTILES_FILE, repr(data)[:80])
    return times_ms


def idle_ratio(times_ms: tuple[int, ...], idle_s: float) -> float:
    """Return the share of memory that was idle for at least that long, in steps of one percent."""
    return sum(time_ms >= idle_s * 1000 for time_ms in times_ms[1:]) / (PERCENTILES - 1)


class DamonStatReader:
    """Reads DAMON_STAT; it cannot tell for how long that has been switched on.

    Until some memory was idle for so long, the share is 0 or not measured yet: it is 0 if this
    reader has seen DAMON_STAT switched on for that time.
    """

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._enabled_since_s: float | None = None

    def read(self, now_s: float, idle_s: float) -> tuple[float | None, str]:
        """Return the share of memory idle for at least `idle_s`, or `None` and the reason."""
        enabled = read_text(self._host, ENABLED_FILE)
        if enabled != "Y":
            self._enabled_since_s = None
            return None, NO_DAMON_STAT if enabled is None else DAMON_STAT_OFF
        if self._enabled_since_s is None:
            self._enabled_since_s = now_s
        try:
            data = self._host.read(PERCENTILES_FILE, MAX_PERCENTILES_BYTES)
            times_ms = parse_idle_percentiles(data.strip())
        except (HostFileError, ParseError):
            return None, DAMON_STAT_UNREADABLE
        ratio = idle_ratio(times_ms, idle_s)
        if not ratio and now_s - self._enabled_since_s < idle_s:
            return None, DAMON_STAT_YOUNG
        return ratio, ""


_KINDS = ("node", "pod", "container", "application")


class _Group(msgspec.Struct, frozen=True):
    """One group to read: the node, or a pod, container or host application by its key."""

    kind: str
    key: str
    path: str


class ColdMemoryCollector:
    """Reads the cold memory of the node and of groups, a part of them in each call."""

    name = "cold_memory"

    def __init__(self, host: HostFiles, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._round: SpreadRound[_Group, int] | None = None
        self._damon_stat = DamonStatReader(host)
        self._failures: Counter[str] = Counter()

    def collect(self, cycle: CollectorInput) -> ColdMemory | None:
        """Read some groups; return the values of all once every group is read."""
        if self._round is None:
            if not (self._host.exists(PERIOD_FILE) and self._host.exists(HIERARCHY_FILE)):
                return self._without_kidled(cycle.now_s)
            self._failures = Counter()
            groups = tuple(_groups(cycle))
            if groups and not any(self._host.exists(group.path) for group in groups):
                return ColdMemory(problems=(_problem(NO_STATS),))
            self._round = SpreadRound(groups)
        if not self._round.read_some(self._read, self._clock):
            return None
        values, self._round = self._round.values, None
        by_kind: dict[str, dict[str, int]] = {kind: {} for kind in _KINDS}
        for group, cold in values.items():
            by_kind[group.kind][group.key] = cold
        return ColdMemory(
            node_bytes=by_kind["node"].get(""),
            pods=by_kind["pod"],
            containers=by_kind["container"],
            applications=by_kind["application"],
            problems=tuple(_problem(reason) for reason in sorted(self._failures)),
        )

    def close(self) -> None:
        """Forget the round: no descriptor stays open."""
        self._round = None

    def _without_kidled(self, now_s: float) -> ColdMemory:
        ratio, reason = self._damon_stat.read(now_s, COLD_S)
        reasons = (NO_KIDLED, reason) if reason else (NO_KIDLED,)
        return ColdMemory(idle_ratio=ratio, problems=tuple(map(_problem, reasons)))

    def _read(self, group: _Group) -> int | None:
        """Return a group's cold bytes; `None`, and a failure counted, where they are not known."""
        try:
            stats = parse_idle_page_stats(self._host.read(group.path, MAX_STATS_BYTES))
        except HostFileError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # else the group was removed
                self._failures[UNREADABLE] += 1
            return None
        except ParseError:
            self._failures[UNREADABLE] += 1
            return None
        reason = _why_unknown(stats, group)
        if reason is not None:
            self._failures[reason] += 1
            return None
        return stats.cold_bytes()


def _why_unknown(stats: IdlePageStats, group: _Group) -> str | None:
    if stats.period_s == 0:
        return KIDLED_OFF
    if not stats.use_hierarchy and group.kind != "container":
        return NO_HIERARCHY
    return TOO_FEW_SCANS if stats.page_scans < stats.cold_scans else None


def _groups(cycle: CollectorInput) -> Iterator[_Group]:
    layout = cycle.layout
    if layout is None or layout.mount("memory") is None:
        return
    yield _Group("node", "", _path(layout, ""))
    for pod in cycle.pods:
        if pod.cgroup:
            yield _Group("pod", pod.uid, _path(layout, pod.cgroup))
        for container in pod.containers:
            if container.cgroup:
                yield _Group("container", container.id, _path(layout, container.cgroup))
    for name, cgroup in cycle.applications:
        yield _Group("application", name, _path(layout, cgroup))


def _path(layout: CgroupLayout, cgroup: str) -> str:
    return f"{layout.directory('memory', cgroup)}/{IDLE_PAGE_STATS}"


def _problem(reason: str) -> Problem:
    return Problem(reason=reason, message=_MESSAGES[reason])
