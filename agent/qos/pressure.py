"""Watches the CPU pressure (PSI) of latency-sensitive pods and reports stalls within a second.

The kernel reports a stall through a trigger: a descriptor of `cpu.pressure` with a threshold and a
window. Where the agent may not set triggers, it reads the stall time four times a second.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.usage_files import parse_pressure, pressure_paths
from agent.clock import Clock
from agent.errors import ParseError
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos
from agent.snapshot.usage import PressureWatch
from agent.usage.host_applications import base_cgroup
from agent.wire_formats.annotations import qos_class

log = logging.getLogger(__name__)

THRESHOLD_US, WINDOW_US = 50_000, 500_000
TRIGGER = f"some {THRESHOLD_US} {WINDOW_US}\0".encode()
SAMPLE_S = 0.25
STALL_SHARE = THRESHOLD_US / WINDOW_US  # of the time between two samples
SAMPLES_IN_A_ROW = 2
MAX_GROUPS = 32
MAX_FILE_BYTES = 256
BURSTABLE_BASE = "KubepodsBurstable"
OWN_CPU_CLASSES = ("LSE", "LSR")  # their pods are watched one by one
TRIGGERS, SAMPLING, UNSUPPORTED, OFF = "triggers", "sampling", "unsupported", "off"

# the kernel's answers to an agent without CAP_SYS_RESOURCE, or with a window it does not accept
_NO_TRIGGERS = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.EROFS)


def watched_cgroups(snapshot: NodeSnapshot, layout: CgroupLayout) -> tuple[str, ...]:
    """Return the group of burstable pods, and the pods with CPUs of their own, up to a limit.

    Nothing is watched while no NodeSLO asks for the suppression of best-effort pods.
    """
    burstable = base_cgroup(layout, BURSTABLE_BASE)
    if burstable is None or not snapshot.cluster.slo.value.slo.thresholds.enable:
        return ()
    own = sorted(
        pod.cgroup
        for pod in snapshot.pods.value
        if pod.name
        and pod.cgroup
        and pod.qos is not KubeQos.BEST_EFFORT
        and qos_class(pod) in OWN_CPU_CLASSES
    )
    return (burstable, *own)[:MAX_GROUPS]


class StallDetector:
    """Detects stalls of one group in samples of its stall time. For one thread."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._in_a_row = 0

    def add(self, total_us: int, now_s: float) -> bool:
        """Return whether this sample completes a stall: two in a row with enough stall time."""
        last, self._last = self._last, (total_us, now_s)
        if last is None or now_s <= last[1]:
            return False
        is_stalled = total_us - last[0] >= STALL_SHARE * (now_s - last[1]) * 1e6
        self._in_a_row = self._in_a_row + 1 if is_stalled else 0
        if self._in_a_row < SAMPLES_IN_A_ROW:
            return False
        self._in_a_row = 0  # at most one stall in a window, as the kernel's triggers report
        return True


class _WatchedFile:
    """One open pressure file, with a trigger or with samples."""

    def __init__(self, fd: int, *, has_trigger: bool) -> None:
        self.fd = fd
        self.has_trigger = has_trigger
        self.detector = StallDetector()


class PressureMonitor:
    """Watches groups on a thread of its own, which is started for the first group.

    A stall is put into the snapshot, which wakes the loops that subscribe to it.
    """

    def __init__(self, store: SnapshotStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted: tuple[tuple[str, ...], ...] = ()  # candidate paths of each group
        self._files: dict[tuple[str, ...], _WatchedFile] = {}  # of the thread
        self._poll = select.poll()
        self._failures: dict[tuple[str, ...], int] = {}
        self._view = PressureWatch()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake_fd, select.POLLIN)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def watch(self, layout: CgroupLayout, cgroups: tuple[str, ...]) -> None:
        """Watch these groups and no others. Any thread may call this."""
        wanted = tuple(
            tuple(paths[0] for paths in pressure_paths(layout, cgroup)) for cgroup in cgroups
        )
        with self._lock:
            has_changed, self._wanted = wanted != self._wanted, wanted
        if wanted and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pressure", daemon=True)
            self._thread.start()
        elif has_changed:
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """End the thread and close all files."""
        self._is_closed = True
        os.eventfd_write(self._wake_fd, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake_fd)

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._open_files()
                self._wait()
        except Exception as error:
            log.error("pressure_monitor_failed", exc_info=error)
            self._report(method=UNSUPPORTED, reason=f"{type(error).__name__}: {error}"[:200])
        finally:
            for key in tuple(self._files):
                self._close(key)

    def _wait(self) -> None:
        """Wait for a stall, for other groups, or for the next sample."""
        samples = not all(file.has_trigger for file in self._files.values())
        # a group whose file is missing may get it: look again, but seldom
        timeout_ms = SAMPLE_S * 1000 if samples else 1000 if self._failures else None
        stalls = 0
        by_fd = {file.fd: key for key, file in self._files.items()}
        for fd, events in self._poll.poll(timeout_ms):
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            elif events & (select.POLLERR | select.POLLNVAL | select.POLLHUP):
                self._close(by_fd[fd])  # the group was removed
            elif events & select.POLLPRI:
                stalls += 1
        stalls += self._sample()
        if stalls:
            self._report(stalls=self._view.stalls + stalls, last_stall_s=self._clock.monotonic())

    def _sample(self) -> int:
        stalls, now_s = 0, self._clock.monotonic()
        for key, file in tuple(self._files.items()):
            if file.has_trigger:
                continue
            try:
                pressure = parse_pressure(os.pread(file.fd, MAX_FILE_BYTES, 0))
            except (OSError, ParseError):
                self._close(key)
            else:
                stalls += file.detector.add(pressure.some_total_us, now_s)
        return stalls

    def _open_files(self) -> None:
        """Open the files of new groups, close those of others, and report how they are watched."""
        with self._lock:
            wanted = self._wanted
        for key in [key for key in self._files if key not in wanted]:
            self._close(key)
        self._failures.clear()
        for key in wanted:
            if key not in self._files:
                self._open(key)
        self._report_method(bool(wanted))

    def _open(self, paths: tuple[str, ...]) -> None:
        """Open the first file that there is, with a trigger if the kernel accepts one."""
        failure = errno.ENOENT
        for path in paths:
            for flags, trigger in ((os.O_RDWR, TRIGGER), (os.O_RDONLY, b"")):
                try:
                    self._files[paths] = _watched_file(path, flags, trigger)
                except OSError as error:
                    failure = error.errno or 0
                    if failure not in _NO_TRIGGERS:
                        break
                else:
                    if trigger:
                        self._poll.register(self._files[paths].fd, select.POLLPRI)
                    return
        self._failures[paths] = failure

    def _close(self, key: tuple[str, ...]) -> None:
        file = self._files.pop(key)
        if file.has_trigger:
            self._poll.unregister(file.fd)
        os.close(file.fd)

    def _report_method(self, is_wanted: bool) -> None:
        method, reason = OFF, ""
        if any(not file.has_trigger for file in self._files.values()):
            method, reason = SAMPLING, "the kernel refuses triggers to an agent without privilege"
        elif self._files:
            method = TRIGGERS
        elif is_wanted:
            method = UNSUPPORTED
            reason = _unsupported_reason(next(iter(self._failures.values()), errno.ENOENT))
        self._report(method=method, reason=reason, groups=len(self._files))

    def _report(self, **changes: object) -> None:
        view = msgspec.structs.replace(self._view, **changes)
        if view != self._view:
            self._view = view
            self._store.put(pressure=SnapshotPart(view, self._clock.monotonic()))


def _watched_file(path: str, flags: int, trigger: bytes) -> _WatchedFile:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if trigger:
            os.write(fd, trigger)
        else:
            os.pread(fd, MAX_FILE_BYTES, 0)
    except OSError:
        os.close(fd)
        raise
    return _WatchedFile(fd, has_trigger=bool(trigger))


def _unsupported_reason(number: int) -> str:
    if number in (errno.EOPNOTSUPP, errno.ENOTSUP):
        return "the kernel was started with psi=0"
    if number == errno.ENOENT:
        return "no group has a file cpu.pressure"
    return f"cpu.pressure: {os.strerror(number)}"
