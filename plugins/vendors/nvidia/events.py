"""Device events from the driver's events and the kernel log.

The waiting thread never calls the library: while the library hangs, the kernel log is still read.
"""

from __future__ import annotations

import math
import os
import queue
import select
from collections.abc import Mapping, Sequence
from typing import TypeVar

from agent.clock import SYSTEM_CLOCK, Clock
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
CHATTER_MS = 20  # pause between two reads of a busy kernel log
T = TypeVar("T")
EventBatch = tuple[DeviceEvent, ...]

# events that are faults of a card
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
# events after which the agent runs a discovery
_NAMES: dict[int, str] = {
    library_events.DOUBLE_BIT: "DoubleBitECC",
    library_events.MIG_CHANGED: "MIGConfigChange",
    library_events.UNAVAILABLE: "GPUUnavailable",
    library_events.ACTION_CHANGED: "RecoveryActionChanged",
    library_events.DRIVER_BOUND: "DriverBound",
    library_events.DRIVER_UNBOUND: "DriverUnbound",
}


class NvidiaEventWatch:
    """The events of one session. One thread calls `wait`; other methods are thread-safe."""

    def __init__(self, host: HostFiles, diagnosis: Diagnosis, clock: Clock = SYSTEM_CLOCK) -> None:
        self.problems: tuple[Problem, ...] = ()
        self._diagnosis = diagnosis
        self._clock = clock
        self._pending: queue.Queue[DeviceEvent] = queue.Queue(MAX_PENDING)
        self._driver_events: queue.Queue[NvmlEvent] = queue.Queue(MAX_PENDING)
        self._partitions: Mapping[str, Sequence[DevicePartition]] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._listener = NvmlEventListener(self._queue_event, clock)
        self._poll, self._wake_poll = select.poll(), select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._wake_poll.register(self._wake, select.POLLIN)
        self._log = self._open_log(host)
        self._closed = False
        self._is_log_past = self._log is not None  # still at records from before the start

    def _open_log(self, host: HostFiles) -> KernelLog | None:
        try:
            log = KernelLog(host)
        except NotSupported:
            return None
        except HostFileError as error:
            message = f"{error}: errors are heard from NVML alone, and not when it hangs"
            self.problems = (Problem(reason="KernelLogUnread", message=message),)
            return None
        if log.is_pollable:
            self._poll.register(log.fileno(), select.POLLIN)
        return log

    def add(self, event: DeviceEvent) -> None:
        """Add an event from another source; beyond `MAX_PENDING` events are dropped."""
        if not self._pending.full() and not self._closed:
            self._pending.put_nowait(event)
            os.eventfd_write(self._wake, 1)

    def _queue_event(self, nvml_event: NvmlEvent) -> None:
        if not self._driver_events.full():
            self._driver_events.put_nowait(nvml_event)
            os.eventfd_write(self._wake, 1)

    def watch(
        self,
        nvml: Nvml,
        cards: Mapping[str, NvmlCard],
        partitions: Mapping[str, Sequence[DevicePartition]],
    ) -> None:
        """Set the cards to watch; `partitions` are the MIG instances by card."""
        self._partitions = dict(partitions)
        self._listener.watch(nvml, cards)

    def wait(self, wait_s: float) -> EventBatch:
        """Wait for events for `wait_s` at most; return them, or nothing."""
        self._listener.start()
        # events of the last call have been sent, so a slow disk delays nothing
        self._diagnosis.save()
        deadline_s = self._clock.monotonic() + wait_s
        while True:
            if events := self._collect():
                return events
            remaining_s = deadline_s - self._clock.monotonic()
            if remaining_s <= 0:
                return ()
            # rounded up: the rest of a millisecond would wake the thread once more
            self._sleep(math.ceil(remaining_s * 1000))

    def _sleep(self, timeout_ms: int) -> None:
        """Sleep until an event arrives; a busy kernel log wakes the thread each `CHATTER_MS`."""
        ready = [fd for fd, _ in self._poll.poll(timeout_ms)]
        if self._wake in ready:
            os.eventfd_read(self._wake)
        elif ready:
            self._wake_poll.poll(min(timeout_ms, CHATTER_MS))

    def _collect(self) -> EventBatch:
        events = list(_drain(self._pending))
        for nvml_event in _drain(self._driver_events):
            events += self._device_events(nvml_event)
        if self._log is not None:
            events += self._read_log(self._log)
        return tuple(events)

    def _device_events(self, nvml_event: NvmlEvent) -> EventBatch:
        events: EventBatch = ()
        if nvml_event.kind == library_events.XID:
            events = self._xid(nvml_event)
        elif nvml_event.kind == library_events.LOST:
            events = self._diagnosis.report_lost(
                nvml_event.key, {GPU_IS_LOST: "nvmlDeviceGetHandleByPciBusId"}
            )
        elif (finding := _FINDINGS.get(nvml_event.kind)) is not None and nvml_event.key:
            events = self._diagnosis.report_finding(nvml_event.key, finding)
        else:
            name = _NAMES.get(nvml_event.kind, f"NVMLEvent{nvml_event.kind:#x}")
            events = (DeviceEvent(key=nvml_event.key, reason=name),)
        if nvml_event.action is not None:
            events += self._diagnosis.report_action(nvml_event.key, nvml_event.action)
        return events

    def _xid(self, nvml_event: NvmlEvent) -> EventBatch:
        parts = self._slices(nvml_event.key, nvml_event.instance, nvml_event.compute_instance)
        report = XidReport(
            number=nvml_event.number,
            source=XidSource.DRIVER,
            at_s=nvml_event.at_s,
            partitions=parts,
        )
        if not nvml_event.key:
            # the card is unknown: a discovery checks all cards, and none has a fault
            counted = self._diagnosis.count_logged("", nvml_event.number, nvml_event.at_s)
            return (
                (DeviceEvent(key="", reason=f"Xid{nvml_event.number}"),)
                if counted.is_reportable
                else ()
            )
        return self._diagnosis.report_xid(nvml_event.key, report)

    def _slices(self, key: str, gi: int, ci: int) -> tuple[str, ...]:
        """Return the UUIDs of the slices that an event concerns; empty for the whole card."""
        if gi == NO_INSTANCE:
            return ()
        return tuple(p.uuid for p in instances_of_event(self._partitions.get(key, ()), gi, ci))

    def _read_log(self, log: KernelLog) -> list[DeviceEvent]:
        """Handle the new records of the kernel log; at first those from before the start."""
        events: list[DeviceEvent] = []
        try:
            for record in log.read():
                events += self._handle_record(record)
        except HostFileError as error:
            self.problems = (Problem(reason="KernelLogUnread", message=str(error)),)
            self._close_log(log)
            return events
        if self._is_log_past and log.is_drained:
            self._is_log_past = False
            events += self._diagnosis.failure_events()
        return events

    def _handle_record(self, record: KernelLogRecord) -> EventBatch:
        parsed = parse_line(record.text)
        if parsed is None:
            return ()
        stamp_s = record.stamp_us / 1e6
        at_s = stamp_s if self._is_log_past else self._clock.monotonic()
        if self._is_log_past and record.sequence <= self._diagnosis.read_to:
            # an earlier process has handled the record, and its cause may be over
            if isinstance(parsed, LoggedXid) and parsed.switch is None:
                self._diagnosis.count_logged(_key(parsed), parsed.number, at_s)
            return ()
        self._diagnosis.note_log_position(record.sequence)
        if isinstance(parsed, DriverLoaded):
            self._diagnosis.note_driver_loaded()
            return ()
        age_s = max(0.0, self._clock.monotonic() - stamp_s) if self._is_log_past else 0.0
        if parsed.switch is not None:
            return self._switch_event(parsed, at_s)
        return self._report_logged_xid(parsed, at_s, age_s, record.sequence)

    def _switch_event(self, logged: LoggedXid, at_s: float) -> EventBatch:
        severity = "fatal" if logged.is_fatal else "not fatal"
        message = (
            f"NVSwitch {logged.switch} ({logged.card}) reports SXid {logged.number}, {severity}"
        )
        counted = self._diagnosis.count_logged(f"nvswitch{logged.switch}", logged.number, at_s)
        event = DeviceEvent(key="", reason=f"SXid{logged.number}", message=message)
        return (event,) if counted.is_reportable and not self._is_log_past else ()

    def _report_logged_xid(
        self, logged: LoggedXid, at_s: float, age_s: float, sequence: int
    ) -> EventBatch:
        key = _key(logged)
        gi = logged.instance if logged.instance is not None else NO_INSTANCE
        report = XidReport(
            number=logged.number,
            source=XidSource.KERNEL_LOG,
            at_s=at_s,
            is_fatal=logged.is_fatal is True,
            partitions=self._slices(key, gi, NO_INSTANCE),
            is_past=self._is_log_past,
            age_s=age_s,
            sequence=sequence,
        )
        events = self._diagnosis.report_xid(key, report)
        # for past records the action is outdated; the driver reports the current one in polls
        if logged.action is not None and not self._is_log_past:
            events += self._diagnosis.report_action(key, logged.action)
        return events

    def _close_log(self, log: KernelLog) -> None:
        if log.is_pollable:
            self._poll.unregister(log.fileno())
        log.close()
        self._log = None

    def close(self) -> bool:
        """Stop; return `False` if the library still waits for events, so it must not be closed."""
        closed = self._listener.close()
        self._diagnosis.save()
        if closed and not self._closed:
            self._closed = True
            if self._log is not None:
                self._close_log(self._log)
            os.close(self._wake)
        return closed


def _key(logged: LoggedXid) -> str:
    return f"{logged.card}.0"  # GPUs are function 0 of their device


def _drain(source: queue.Queue[T]) -> list[T]:
    items: list[T] = []
    while not source.empty():
        items.append(source.get_nowait())
    return items
