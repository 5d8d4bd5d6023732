"""Device events from the driver's events and the kernel log.

The waiting thread never calls the library: while the library hangs, the kernel log is still read.
"""

from __future__ import annotations

import os
import queue
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from agent.errors import HostFileError, NotSupported
from agent.host.kernel_log import KernelLog, KernelLogRecord
from agent.snapshot.device import DevicePartition
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, Problem
from plugins.vendors.nvidia.health.card_facts import HealthFinding
from plugins.vendors.nvidia.health.causes import Cure
from plugins.vendors.nvidia.health.diagnosis import Diagnosis, XidReport
from plugins.vendors.nvidia.health.kernel_log import DriverLoaded, LoggedXid, parse_line
from plugins.vendors.nvidia.health.xid_counter import XidSource
from plugins.vendors.nvidia.library import events as library_events
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.codes import GPU_IS_LOST
from plugins.vendors.nvidia.library.events import NO_INSTANCE, NvmlEvent, NvmlEventListener
from plugins.vendors.nvidia.library.nvml import Nvml
from plugins.vendors.nvidia.mig.instances import instances_of_event

MAX_PENDING = 256
CHATTER_MS = 20  # between two reads of a log that says much and nothing of cards
T = TypeVar("T")
EventBatch = tuple[DeviceEvent, ...]

# events that say what is wrong with the card, and what has to happen before it is over
_FINDINGS: dict[int, HealthFinding] = {
    library_events.SINGLE_BIT_STORM: HealthFinding(
        "SingleBitECCStorm", "many correctable memory errors at once", Cure.TIME
    ),
    library_events.DRAM_RETIRED: HealthFinding(
        "DRAMRetirement", "faulty memory was retired", Cure.TIME
    ),
    library_events.DRAM_NOT_RETIRED: HealthFinding(
        "RowRemapFailure", "faulty memory could not be retired", Cure.REPAIR
    ),
    library_events.POISON: HealthFinding(
        "NonFatalPoison", "an application read damaged data", Cure.TIME
    ),
    library_events.FATAL_POISON: HealthFinding(
        "FatalPoison", "damaged data spread: reset the GPU", Cure.RESET
    ),
}
# events after which the cards are looked at anew
_NAMES: dict[int, str] = {
    library_events.DOUBLE_BIT: "DoubleBitECC",
    library_events.MIG_CHANGED: "MIGConfigChange",
    library_events.UNAVAILABLE: "GPUUnavailable",
    library_events.ACTION_CHANGED: "RecoveryActionChanged",
    library_events.DRIVER_BOUND: "DriverBound",
    library_events.DRIVER_UNBOUND: "DriverUnbound",
}


class NvidiaEventWatch:
    """The events of one session. `wait` is called by a thread of its own, the rest by any."""

    def __init__(
        self, host: HostFiles, diagnosis: Diagnosis, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.problems: tuple[Problem, ...] = ()
        self._diagnosis = diagnosis
        self._clock = clock
        self._pending: queue.Queue[DeviceEvent] = queue.Queue(MAX_PENDING)
        self._heard: queue.Queue[NvmlEvent] = queue.Queue(MAX_PENDING)
        self._partitions: Mapping[str, Sequence[DevicePartition]] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._notices = NvmlEventListener(self._notice, clock)
        self._poll, self._quiet = select.poll(), select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._quiet.register(self._wake, select.POLLIN)
        self._log = self._open(host)
        self._closed = False
        self._past = self._log is not None  # the log is still at lines from before us

    def _open(self, host: HostFiles) -> KernelLog | None:
        try:
            log = KernelLog(host)
        except NotSupported:
            return None
        except HostFileError as error:
            told = f"{error}: errors are heard from NVML alone, and not when it hangs"
            self.problems = (Problem(reason="KernelLogUnread", message=told),)
            return None
        if log.is_pollable:
            self._poll.register(log.fileno(), select.POLLIN)
        return log

    def add(self, event: DeviceEvent) -> None:
        """Add an event that was noticed elsewhere; beyond `MAX_PENDING` they are dropped."""
        if not self._pending.full() and not self._closed:
            self._pending.put_nowait(event)
            os.eventfd_write(self._wake, 1)

    def _notice(self, notice: NvmlEvent) -> None:
        if not self._heard.full():
            self._heard.put_nowait(notice)
            os.eventfd_write(self._wake, 1)

    def watch(
        self,
        nvml: Nvml,
        cards: Mapping[str, NvmlCard],
        partitions: Mapping[str, Sequence[DevicePartition]],
    ) -> None:
        """Hear of these cards from now on; `partitions` are the slices of those that are cut."""
        self._partitions = dict(partitions)
        self._notices.watch(nvml, cards)

    def wait(self, wait_s: float) -> EventBatch:
        """Return events as soon as there are some, nothing after `wait_s`."""
        self._notices.start()
        # what was told in the last turn is on its way: now there is time for the disk
        self._diagnosis.save()
        deadline_s = self._clock() + wait_s
        while True:
            if told := self._collect():
                return told
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                return ()
            self._rest(max(1, int(left_s * 1000)))

    def _rest(self, left_ms: int) -> None:
        """Sleep until something is told; who chatters in the log does not wake us each time."""
        ready = [fd for fd, _ in self._poll.poll(left_ms)]
        if self._wake in ready:
            os.eventfd_read(self._wake)
        elif ready:
            self._quiet.poll(min(left_ms, CHATTER_MS))

    def _collect(self) -> EventBatch:
        told = list(_drain(self._pending))
        for notice in _drain(self._heard):
            told += self._judged(notice)
        if self._log is not None:
            told += self._logged(self._log)
        return tuple(told)

    def _judged(self, notice: NvmlEvent) -> EventBatch:
        told: EventBatch = ()
        if notice.kind == library_events.XID:
            told = self._xid(notice)
        elif notice.kind == library_events.LOST:
            told = self._diagnosis.report_lost(
                notice.key, {GPU_IS_LOST: "nvmlDeviceGetHandleByPciBusId"}
            )
        elif (found := _FINDINGS.get(notice.kind)) is not None and notice.key:
            told = self._diagnosis.report_finding(notice.key, found)
        else:
            name = _NAMES.get(notice.kind, f"NVMLEvent{notice.kind:#x}")
            told = (DeviceEvent(key=notice.key, reason=name),)
        if notice.action is not None:
            told += self._diagnosis.report_action(notice.key, notice.action)
        return told

    def _xid(self, notice: NvmlEvent) -> EventBatch:
        parts = self._slices(notice.key, notice.instance, notice.compute_instance)
        report = XidReport(
            number=notice.number, source=XidSource.DRIVER, at_s=notice.at_s, partitions=parts
        )
        if not notice.key:
            # nobody knows whose it is: all cards are looked at, none is blamed
            heard = self._diagnosis.count_logged("", notice.number, notice.at_s)
            return (
                (DeviceEvent(key="", reason=f"Xid{notice.number}"),) if heard.is_reportable else ()
            )
        return self._diagnosis.report_xid(notice.key, report)

    def _slices(self, key: str, gi: int, ci: int) -> tuple[str, ...]:
        """Return the slices that an event is confined to; none if it is about the whole card."""
        if gi == NO_INSTANCE:
            return ()
        return tuple(p.uuid for p in instances_of_event(self._partitions.get(key, ()), gi, ci))

    def _logged(self, log: KernelLog) -> list[DeviceEvent]:
        """Take what the kernel's log says since the last time; what is past at first."""
        told: list[DeviceEvent] = []
        try:
            for record in log.read():
                told += self._line(record)
        except HostFileError as error:
            self.problems = (Problem(reason="KernelLogUnread", message=str(error)),)
            self._close_log(log)
            return told
        if self._past and log.is_drained:
            self._past = False
            told += self._diagnosis.failure_events()
        return told

    def _line(self, record: KernelLogRecord) -> EventBatch:
        found = parse_line(record.text)
        if found is None:
            return ()
        stamp_s = record.stamp_us / 1e6
        at_s = stamp_s if self._past else self._clock()
        if self._past and record.sequence <= self._diagnosis.read_to:
            # an earlier process has judged it, and what it said may be over
            if isinstance(found, LoggedXid) and found.switch is None:
                self._diagnosis.count_logged(_key(found), found.number, at_s)
            return ()
        self._diagnosis.note_log_position(record.sequence)
        if isinstance(found, DriverLoaded):
            self._diagnosis.note_driver_loaded()
            return ()
        age_s = max(0.0, self._clock() - stamp_s) if self._past else 0.0
        if found.switch is not None:
            return self._switch(found, at_s)
        return self._line_xid(found, at_s, age_s, record.sequence)

    def _switch(self, found: LoggedXid, at_s: float) -> EventBatch:
        grave = "fatal" if found.is_fatal else "not fatal"
        told = f"NVSwitch {found.switch} ({found.card}) reports SXid {found.number}, {grave}"
        heard = self._diagnosis.count_logged(f"nvswitch{found.switch}", found.number, at_s)
        event = DeviceEvent(key="", reason=f"SXid{found.number}", message=told)
        return (event,) if heard.is_reportable and not self._past else ()

    def _line_xid(self, found: LoggedXid, at_s: float, age_s: float, sequence: int) -> EventBatch:
        key = _key(found)
        gi = found.instance if found.instance is not None else NO_INSTANCE
        report = XidReport(
            number=found.number,
            source=XidSource.KERNEL_LOG,
            at_s=at_s,
            is_fatal=found.is_fatal is True,
            partitions=self._slices(key, gi, NO_INSTANCE),
            is_past=self._past,
            age_s=age_s,
            sequence=sequence,
        )
        events = self._diagnosis.report_xid(key, report)
        # of the past only what the driver asks for now counts, which it is asked itself
        if found.action is not None and not self._past:
            events += self._diagnosis.report_action(key, found.action)
        return events

    def _close_log(self, log: KernelLog) -> None:
        if log.is_pollable:
            self._poll.unregister(log.fileno())
        log.close()
        self._log = None

    def close(self) -> bool:
        """Stop listening; `False` if the library still waits for events: leave it alone."""
        closed = self._notices.close()
        self._diagnosis.save()
        if closed and not self._closed:
            self._closed = True
            if self._log is not None:
                self._close_log(self._log)
            os.close(self._wake)
        return closed


def _key(found: LoggedXid) -> str:
    return f"{found.card}.0"  # GPUs are function 0 of their device


def _drain(source: queue.Queue[T]) -> list[T]:
    taken: list[T] = []
    while not source.empty():
        taken.append(source.get_nowait())
    return taken
