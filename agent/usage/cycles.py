"""Counts CPU cycles and instructions of all containers, for one window in each interval.

A round measures every container once. One call does a small part of it: it opens and closes
counters for a few milliseconds and leaves the rest to the next call, so that the collector thread
is not held. Each container has a window of its own, which begins when its counters on all CPUs are
open. The next round does not begin before the last window of this one has ended.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from agent.cgroup.layout import MAX_MOUNTS_READ, MOUNT_TABLES, CgroupLayout
from agent.clock import Clock
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles, read_text
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem
from agent.snapshot.usage import ContainerCycles, CycleUsage
from agent.usage.collector import CALL_S, CollectorInput
from agent.usage.perf_counters import (
    CYCLES,
    INSTRUCTIONS,
    CounterGroup,
    PerfEvent,
    is_cgroup_countable,
)
from agent.wire_formats.kernel_text import parse_cpu_list

ONLINE_CPUS = "/sys/devices/system/cpu/online"

MAX_DESCRIPTORS = 4096  # of all windows that are open

RESERVED_DESCRIPTORS = 512  # left to the rest of the process

MAX_CYCLES_PER_S = 10**10  # of one CPU; none is as fast

MAX_INSTRUCTIONS_PER_CYCLE = 16  # no CPU completes more

# reasons of absent values: of the whole host
RECORDED_HOST = "RecordedHost"
NO_HARDWARE_COUNTERS = "NoHardwareCounters"
NOT_PERMITTED = "NotPermitted"
NOT_SUPPORTED = "NotSupported"
TOO_MANY_OPEN_FILES = "TooManyOpenFiles"
CPUS_UNKNOWN = "OnlineCpusUnknown"
# of single containers
NOT_IN_PERF_HIERARCHY = "CgroupNotInPerfHierarchy"
COUNTERS_BUSY = "CountersBusy"
IMPLAUSIBLE_COUNT = "ImplausibleCount"

_MESSAGES = {
    RECORDED_HOST: "a recorded host has no counters",
    NO_HARDWARE_COUNTERS: "the kernel has no hardware counters, as in most virtual machines",
    NOT_PERMITTED: "the agent lacks CAP_PERFMON (or CAP_SYS_ADMIN on kernels before 5.8)",
    NOT_SUPPORTED: "the kernel does not count events of cgroups",
    TOO_MANY_OPEN_FILES: "the limit of open files is too low for counters on all CPUs",
    CPUS_UNKNOWN: f"{ONLINE_CPUS} is unreadable",
    NOT_IN_PERF_HIERARCHY: "the container's cgroup is in no hierarchy whose events are counted",
    COUNTERS_BUSY: "other users of the hardware counters left no time for the container",
    IMPLAUSIBLE_COUNT: "more cycles or instructions than the CPUs can complete",
}

_REASONS = {
    errno.EACCES: NOT_PERMITTED,
    errno.EPERM: NOT_PERMITTED,
    errno.EMFILE: TOO_MANY_OPEN_FILES,
    errno.ENFILE: TOO_MANY_OPEN_FILES,
    errno.ENOMEM: TOO_MANY_OPEN_FILES,
    errno.EBADF: NOT_IN_PERF_HIERARCHY,
    errno.EBUSY: COUNTERS_BUSY,
}

_OF_SINGLE_CONTAINERS = (NOT_IN_PERF_HIERARCHY, COUNTERS_BUSY, IMPLAUSIBLE_COUNT)


class CycleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one call may do, and how many descriptors all windows together may have."""

    call_s: float = CALL_S
    descriptors: int = MAX_DESCRIPTORS

    @classmethod
    def of_process(cls) -> CycleLimits:
        """Return limits that leave `RESERVED_DESCRIPTORS` of those that are free now to others."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return cls()
        free = soft - len(os.listdir("/proc/self/fd")) - RESERVED_DESCRIPTORS
        return cls(descriptors=min(MAX_DESCRIPTORS, max(0, free)))


class _ContainerWindow:
    """The counters of one container on each CPU, from their opening to their reading."""

    def __init__(self, container_id: str, cgroup_fd: int, cpus: tuple[int, ...]) -> None:
        self.container_id = container_id
        self.cgroup_fd = cgroup_fd
        self.remaining_cpus = deque(cpus)
        self.groups: list[CounterGroup] = []
        self.begin_s = 0.0

    def close_cgroup(self) -> None:
        """Close the cgroup's own descriptor: the counters do not need it."""
        if self.cgroup_fd >= 0:
            os.close(self.cgroup_fd)
            self.cgroup_fd = -1

    def close(self) -> None:
        """Close everything."""
        self.close_cgroup()
        while self.groups:
            self.groups.pop().close()


class _Round:
    """One measurement of all containers."""

    def __init__(self, containers: Mapping[str, str], cpus: tuple[int, ...]) -> None:
        self.pending = deque(containers.items())  # id and directory
        self.cpus = cpus
        self.opening: _ContainerWindow | None = None
        self.counting: deque[_ContainerWindow] = deque()  # by begin
        self.closing: list[CounterGroup] = []  # of windows that were read
        self.values: dict[str, ContainerCycles] = {}
        self.failures: Counter[str] = Counter()  # by reason

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is left to open, to read or to close."""
        return not (self.pending or self.opening or self.counting or self.closing)

    def open_groups(self) -> int:
        """Return the number of groups that have descriptors."""
        return len(self.closing) + sum(len(window.groups) for window in self.counting)

    def result(self) -> CycleUsage:
        """Return the values, and a problem for each reason of absent ones."""
        problems = tuple(
            Problem(reason=reason, message=_message(reason, count))
            for reason, count in sorted(self.failures.items())
        )
        return CycleUsage(containers=self.values, problems=problems)


class CycleCollector:
    """Counts `events` (cycles and instructions) of each container with a cgroup of its own."""

    name = "cycles"

    def __init__(
        self,
        host: HostFiles,
        clock: Clock,
        *,
        interval_s: float,
        window_s: float,
        events: tuple[PerfEvent, PerfEvent] = (CYCLES, INSTRUCTIONS),
        limits: CycleLimits | None = None,
    ) -> None:
        """Open nothing yet. Rounds begin `interval_s` apart, or later on very large nodes.

        Without `limits`, each round begins with those of the process at that moment.
        """
        self._host = host
        self._clock = clock
        self._interval_s = interval_s
        self._window_s = window_s
        self._events = events
        self._fixed_limits = limits
        self._limits = limits or CycleLimits()
        self._round: _Round | None = None
        self._next_round_s = float("-inf")
        self._deadline_s = 0.0  # of the call in progress

    def collect(self, cycle: CollectorInput) -> CycleUsage | None:
        """Do a part of the round; return its values when it is complete."""
        self._deadline_s = self._clock.monotonic() + self._limits.call_s
        if self._round is None:
            if cycle.now_s < self._next_round_s:
                return None
            self._next_round_s = cycle.now_s + self._interval_s
            self._limits = self._fixed_limits or CycleLimits.of_process()
            self._round = self._begin_round(cycle)
        current = self._round
        self._close_read(current)
        self._read_ended(current, cycle.now_s)
        self._open_pending(current, cycle.now_s)
        if not current.is_complete:
            return None
        self._round = None
        return current.result()

    def close(self) -> None:
        """End the round without values."""
        if self._round is not None:
            for window in (self._round.opening, *self._round.counting):
                if window is not None:
                    window.close()
            for group in self._round.closing:
                group.close()
            self._round = None

    def _begin_round(self, cycle: CollectorInput) -> _Round:
        cpus = _online_cpus(self._host)
        directories = _perf_directories(self._host, cycle)
        current = _Round(directories or {}, cpus)
        containers = sum(
            bool(container.cgroup) for pod in cycle.pods for container in pod.containers
        )
        failure = None
        if not isinstance(self._host, LiveHostFiles):
            failure = RECORDED_HOST
        elif not cpus:
            failure = CPUS_UNKNOWN
        elif directories is None and containers:
            current.failures[NOT_IN_PERF_HIERARCHY] = containers
        elif len(cpus) * len(self._events) > self._limits.descriptors:
            failure = TOO_MANY_OPEN_FILES
        if failure is not None:
            self._end_opening(current, failure)
        return current

    def _has_time(self) -> bool:
        return self._clock.monotonic() < self._deadline_s

    def _close_read(self, current: _Round) -> None:
        while current.closing and self._has_time():
            current.closing.pop().close()

    def _read_ended(self, current: _Round, now_s: float) -> None:
        """Read windows that have lasted long enough; at least one in each call."""
        while current.counting and now_s - current.counting[0].begin_s >= self._window_s:
            window = current.counting.popleft()
            value = _read_window(window, now_s - window.begin_s)
            current.closing += window.groups
            if isinstance(value, ContainerCycles):
                current.values[window.container_id] = value
            else:
                current.failures[value] += 1
            if not self._has_time():
                return

    def _open_pending(self, current: _Round, now_s: float) -> None:
        """Open counters while there is time, and room for those of one more container."""
        while current.opening is not None or current.pending:
            if not self._has_time():
                return
            if current.opening is None:
                groups = current.open_groups() + len(current.cpus)
                if groups * len(self._events) > self._limits.descriptors:
                    return
                current.opening = self._open_container(current)
                if current.opening is None:
                    continue
            if self._open_counters(current, current.opening):
                self._begin_window(current, current.opening, now_s)

    def _open_container(self, current: _Round) -> _ContainerWindow | None:
        container_id, directory = current.pending.popleft()
        path = self._host.path(directory) if isinstance(self._host, LiveHostFiles) else directory
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._end_opening(current, TOO_MANY_OPEN_FILES)
            return None  # the container has ended
        return _ContainerWindow(container_id, fd, current.cpus)

    def _open_counters(self, current: _Round, window: _ContainerWindow) -> bool:
        """Open counters on the remaining CPUs while there is time; return whether all are open."""
        while window.remaining_cpus:
            cpu = window.remaining_cpus.popleft()
            try:
                window.groups.append(CounterGroup(window.cgroup_fd, cpu, self._events))
            except OSError as error:
                if error.errno == errno.ENODEV:  # the CPU was taken offline
                    continue
                reason = _reason(error, window.cgroup_fd, cpu)
                window.close()
                current.opening = None
                if reason in _OF_SINGLE_CONTAINERS:
                    current.failures[reason] += 1
                else:
                    self._end_opening(current, reason)
                return False
            if not self._has_time():
                break
        return not window.remaining_cpus

    def _begin_window(self, current: _Round, window: _ContainerWindow, now_s: float) -> None:
        current.opening = None
        window.close_cgroup()
        try:
            for group in window.groups:
                group.enable()
        except OSError:
            window.groups, current.closing = [], current.closing + window.groups
        if not window.groups:
            current.failures[COUNTERS_BUSY] += 1
            return
        window.begin_s = now_s
        current.counting.append(window)

    def _end_opening(self, current: _Round, reason: str) -> None:
        """Open no more counters in this round: each would fail for the same reason."""
        current.failures[reason] = len(current.pending) + 1
        current.pending.clear()


def _message(reason: str, containers: int) -> str:
    text = _MESSAGES[reason]
    return f"{text} ({containers} containers)" if reason in _OF_SINGLE_CONTAINERS else text


def _reason(error: OSError, cgroup_fd: int, cpu: int) -> str:
    """Return why the kernel refused a counter.

    ENOENT means either that no hardware counts this event, or that the kernel counts no events of
    this cgroup. A second event, which needs no hardware, shows which one it is.
    """
    if error.errno == errno.ENOENT:
        countable = is_cgroup_countable(cgroup_fd, cpu)
        return NO_HARDWARE_COUNTERS if countable else NOT_IN_PERF_HIERARCHY
    return _REASONS.get(error.errno or 0, NOT_SUPPORTED)


def _read_window(window: _ContainerWindow, window_s: float) -> ContainerCycles | str:
    """Return the sums over all CPUs, or the reason why there are none."""
    cycles = instructions = 0
    for group in window.groups:
        try:
            reading = group.read()
        except OSError:
            return COUNTERS_BUSY
        counts = None if reading is None else reading.scaled()
        if counts is None:
            return COUNTERS_BUSY
        cycles, instructions = cycles + counts[0], instructions + counts[1]
    max_cycles = MAX_CYCLES_PER_S * (window_s + 1) * len(window.groups)
    if cycles > max_cycles or instructions > max_cycles * MAX_INSTRUCTIONS_PER_CYCLE:
        return IMPLAUSIBLE_COUNT
    return ContainerCycles(cycles=cycles, instructions=instructions, window_s=window_s)


def _online_cpus(host: HostFiles) -> tuple[int, ...]:
    try:
        return tuple(sorted(parse_cpu_list(read_text(host, ONLINE_CPUS) or "")))
    except ParseError:
        return ()


def _perf_directories(host: HostFiles, cycle: CollectorInput) -> Mapping[str, str] | None:
    """Return the directories of all containers by id, in the hierarchy whose events are counted.

    `None`: the containers have no groups in that hierarchy.
    """
    layout = cycle.layout
    containers = {c.id: c.cgroup for pod in cycle.pods for c in pod.containers if c.cgroup}
    if layout is None or not containers:
        return {}
    point = _perf_mount(host) or layout.unified
    if point is None or not _has_root(host, layout, point):
        return None
    return {container_id: point + cgroup for container_id, cgroup in containers.items()}


def _has_root(host: HostFiles, layout: CgroupLayout, point: str) -> bool:
    return host.exists(point + (layout.root or ""))


def _perf_mount(host: HostFiles) -> str | None:
    """Return where version 1's `perf_event` is mounted. The unified hierarchy has it otherwise."""
    for table in MOUNT_TABLES:
        try:
            text = host.read(table, MAX_MOUNTS_READ).decode("utf-8", "replace")
        except HostFileError:
            continue
        for line in text.splitlines():
            fields = line.split(" ")
            if len(fields) > 3 and fields[2] == "cgroup" and "perf_event" in fields[3].split(","):
                point = fields[1].replace("\\040", " ").rstrip("/")
                if host.exists(point):
                    return point
    return None
