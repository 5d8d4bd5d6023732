"""Receives fault events on a thread of the driver and queues them."""

from __future__ import annotations

import ctypes
import threading
from collections import deque

import msgspec

from agent.errors import AgentError
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.layout import number_member, structure, text_member

MAX_QUEUED = 1024
FAULT = 0  # type of fault events
CLEARED, ONCE = 0, 2  # assertions; 1 is a fault that began
_EVERY_CHIP = -1
_HEAD = 8  # bytes before the fault in an event
_SIZE = 352


class FaultEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that began, ended, or occurred once."""

    logic_id: int  # id of the chip in this process
    code: int
    severity: int  # 0 notice, 1 minor, 2 major, 3 critical
    assertion: int
    name: str = ""


class FaultQueue:
    """A queue of the driver's events; beyond `MAX_QUEUED` the oldest are dropped and counted."""

    def __init__(self) -> None:
        self.dropped = 0
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED)
        self._filled = threading.Event()
        # the driver uses this callback until the process ends
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._take)

    def _take(self, pointer: int | None) -> None:
        # runs on a thread of the driver, so it only copies
        if not pointer or ctypes.c_int32.from_address(pointer).value != FAULT:
            return
        if len(self._queue) == MAX_QUEUED:
            self.dropped += 1
        self._queue.append(ctypes.string_at(pointer + _HEAD, _SIZE))
        self._filled.set()

    def subscribe(self, dcmi: Dcmi) -> bool:
        """Subscribe to all faults of all chips; return whether the driver accepts that."""
        everything = structure("event_filter")()
        try:
            dcmi.call(
                "dcmi_subscribe_fault_event", _EVERY_CHIP, _EVERY_CHIP, everything, self._callback
            )
        except AgentError:
            return False
        return True

    def take(self, wait_s: float) -> tuple[FaultEvent, ...]:
        """Return the queued events; wait for `wait_s` at most if there are none."""
        if not self._queue and wait_s > 0:
            self._filled.wait(wait_s)
        self._filled.clear()
        events: list[FaultEvent] = []
        while self._queue and len(events) < MAX_QUEUED:
            events.append(_decode(self._queue.popleft()))
        return tuple(events)

    def wake(self) -> None:
        """End a wait in `take` early."""
        self._filled.set()


def _decode(data: bytes) -> FaultEvent:
    fault = structure("dms_fault_event").from_buffer_copy(data)
    return FaultEvent(
        logic_id=number_member(fault, "deviceid"),
        code=number_member(fault, "event_id"),
        severity=number_member(fault, "severity"),
        assertion=number_member(fault, "assertion"),
        name=text_member(fault, "event_name"),
    )
