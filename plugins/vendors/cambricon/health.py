"""Computes the health of a Cambricon card from its state and from Xid events."""

from __future__ import annotations

import ctypes
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import NotSupported
from agent.snapshot.device import DEGRADED, DeviceCondition, Health, HealthState
from agent.snapshot.inventory import DeviceEvent
from plugins.vendors.cambricon.library import codes
from plugins.vendors.cambricon.library.card import CndevCard, MluStatus
from plugins.vendors.cambricon.library.cndev import Cndev
from plugins.vendors.cambricon.library.codes import DEVICE_IN_PROBLEM, NO_PERMISSION

RUNNING = 4  # driver state

MAX_FAILING = 3  # consecutive failed calls

_DRIVER: dict[int, tuple[str, str]] = {
    0: ("DriverStarting", "early start"),
    1: ("DriverStarting", "bring-up"),
    2: ("DriverStarting", "booting"),
    3: ("DriverStarting", "late start"),
    5: ("DriverFault", "boot error"),
    6: ("Resetting", "resetting"),
    7: ("DriverFault", "reset error"),
    8: ("DriverFault", "unknown"),
}

_PROHIBITED = 2

_WARN, _FAIL = 10, 20

# worst first; while a card starts or resets, its other values are not reliable
PRECEDENCE = ("Resetting", "DriverFault", "DriverStarting", "DeviceInProblem")

INCIDENTS: dict[int, str] = {
    1: "unknown",
    3: "Xid",
    9: "MLULink down",
    15: "double-bit error",
    22: "memory repair failed",
    26: "temperature",
    29: "driver",
    30: "device system",
}


def judge_status(status: MluStatus, xid: int | None = None) -> Health:
    """Return the health for a status; the message of a failure also names the last Xid."""
    causes = sorted(_causes(status), key=lambda cause: _rank(cause[0]))
    if causes:
        reason, message = causes[0]
        text = message if xid is None else f"{message}; last Xid {xid:#018x}"
        return Health(state=HealthState.FAILED, reason=reason, message=text)
    if status.overall == _WARN:
        text = f"the card warns{_incident_words(status)}"
        return Health(state=HealthState.SUSPECT, reason="SubHealth", message=text)
    return Health()


def _causes(status: MluStatus) -> Iterator[tuple[str, str]]:
    if status.driver is not None and status.driver != RUNNING:
        reason, description = _DRIVER.get(status.driver, ("DriverFault", "unknown"))
        yield reason, f"the card's driver is in state {status.driver} ({description})"
    if status.device is not None and status.device != 1:
        yield "DeviceInProblem", f"the card reports device state {status.device}"
    if status.overall == _FAIL:
        code = status.incidents[0][0] if status.incidents else 1
        yield f"Incident{max(0, code)}", f"the card fails{_incident_words(status)}"
    elif status.health is not None and status.health != 1:
        yield "DeviceInProblem", f"the card reports health {status.health}"
    if status.compute == _PROHIBITED:
        yield "ComputeProhibited", "the card's compute mode is prohibited"


def _rank(reason: str) -> int:
    if reason in PRECEDENCE:
        return PRECEDENCE.index(reason)
    return len(PRECEDENCE) + (reason == "ComputeProhibited")


def _incident_words(status: MluStatus) -> str:
    texts = [text or INCIDENTS.get(code, f"incident {code}") for code, text in status.incidents[:3]]
    return ": " + ", ".join(texts) if texts else ""


# state of a repair of memory -> (reason, message), the gravest first
_MEMORY_FAULTS: dict[str, tuple[str, str]] = {
    "failed": ("RepairFailed", "memory could not be repaired"),
    "pending": ("RepairPending", "memory is repaired at the next reset of the card"),
    "retirement_pending": (
        "PageRetirementPending",
        "memory pages are retired at the next reset of the card",
    ),
}


def memory_conditions(repairs: Mapping[str, bool]) -> tuple[DeviceCondition, ...]:
    """Return the condition `Degraded` of a card by the states of its memory's repair."""
    faults = [fault for state, fault in _MEMORY_FAULTS.items() if repairs.get(state)]
    if not faults:
        return ()
    reason, message = faults[0]
    also = ", ".join(other for other, _ in faults[1:])
    text = f"{message}; also {also}" if also else message
    return (DeviceCondition(type=DEGRADED, status=True, reason=reason, message=text),)


def judge_failed_calls(calls: int, code: int) -> Health | None:
    """Return the health of a card whose health call failed `calls` times in a row.

    `None` before `MAX_FAILING` calls, except for two codes: DEVICE_IN_PROBLEM is a failure at
    once, and a missing permission is no fault of the card.
    """
    if code == NO_PERMISSION:
        message = "its health cannot be read: the agent lacks the permission (CNDev error 13)"
        return Health(state=HealthState.SUSPECT, reason="PermissionDenied", message=message)
    if code == DEVICE_IN_PROBLEM:
        message = f"its health cannot be read (CNDev error {code})"
        return Health(state=HealthState.FAILED, reason="DeviceInProblem", message=message)
    if calls < MAX_FAILING:
        return None
    message = (
        f"its health could not be read {MAX_FAILING} times in a row or more (CNDev error {code})"
    )
    return Health(state=HealthState.FAILED, reason="DriverError", message=message)


XID_EVENT = 1
SETTLE_S = 0.2  # from an Xid to the health check of its card
PAUSE_S = 1.0  # after a wait that fails at once
MAX_XIDS = 4096  # counted kinds of (device, Xid)
MAX_PENDING = 256

CheckHealth = Callable[[str], Health | None]  # returns a card's health now; None: unknown


class XidWatch:
    """The driver's Xid events. The discovery's thread calls `watch`, another one calls `wait`."""

    def __init__(self, check_health: CheckHealth, clock: Clock = SYSTEM_CLOCK) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()  # (device, Xid)
        self.last: dict[str, int] = {}
        self._check_health = check_health
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._cndev: Cndev | None = None
        self._set = ctypes.c_void_p()
        self._keys: dict[int, str] = {}  # by handle
        self._pending_checks: list[tuple[float, str, int]] = []  # (time, device, Xid)

    def watch(self, cndev: Cndev, cards: Mapping[str, CndevCard]) -> None:
        """Set the cards to watch; a card without events is only polled."""
        with self._lock:
            if self._cndev is not cndev:  # at the start, or after the driver was loaded again
                self._cndev, self._keys = None, {}
                if not self._create_event_set(cndev):
                    return
                self._cndev = cndev
            before, self._keys = self._keys, {}
            for key, card in cards.items():
                if before.get(card.handle) == key or self._register(cndev, card):
                    self._keys[card.handle] = key

    def _create_event_set(self, cndev: Cndev) -> bool:
        event_set = ctypes.c_void_p()  # the other thread may still use the old set
        try:
            cndev.call("cndevEventHandleCreate", ctypes.byref(event_set))
        except (codes.CndevFault, NotSupported):
            return False
        self._set = event_set
        return True

    def _register(self, cndev: Cndev, card: CndevCard) -> bool:
        types = ctypes.c_uint64(XID_EVENT)
        try:
            cndev.call("cndevRegisterEvents", self._set, types, card.handle)
        except (codes.CndevFault, NotSupported):
            return False
        return True

    def wait(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for events for `wait_s` at most; return them, or nothing."""
        until_s = self._clock.monotonic() + wait_s
        while True:
            if events := self._run_due_checks():
                return events
            now_s = self._clock.monotonic()
            if now_s >= until_s or self._closed.is_set():
                return ()
            self._listen(
                min((until_s, *(check_s for check_s, _, _ in self._pending_checks))) - now_s
            )

    def _run_due_checks(self) -> tuple[DeviceEvent, ...]:
        now_s = self._clock.monotonic()
        elapsed = [item for item in self._pending_checks if item[0] <= now_s]
        self._pending_checks = [item for item in self._pending_checks if item[0] > now_s]
        return tuple(self._event(key, xid) for _, key, xid in elapsed)

    def _event(self, key: str, xid: int) -> DeviceEvent:
        health = self._check_health(key)
        message = f"Xid {xid:#018x}"
        if health is None or health.is_in_service:
            return DeviceEvent(key=key, reason=f"Xid{xid}", message=message)
        return DeviceEvent(
            key=key, reason=health.reason, message=health.message, state=health.state
        )

    def _listen(self, wait_s: float) -> None:
        with self._lock:
            cndev, event_set = self._cndev, self._set
        if cndev is None:
            self._closed.wait(max(0.001, wait_s))
            return
        event = cndev.record("Event")
        try:
            # rounded up: the rest of a millisecond would wake the thread once more
            wait_ms = max(1, math.ceil(wait_s * 1000))
            cndev.wait("cndevEventWait", event_set, ctypes.byref(event), wait_ms)
        except (codes.CndevFault, NotSupported) as error:
            if getattr(error, "code", 0) != codes.TIMED_OUT:
                self._closed.wait(min(PAUSE_S, max(0.001, wait_s)))
            return
        self._handle_xid(int(event.device), int(event.type), int(event.data))

    def _handle_xid(self, handle: int, kind: int, xid: int) -> None:
        key = self._keys.get(handle)
        if key is None or kind != XID_EVENT:
            return
        if len(self.counts) < MAX_XIDS or (key, xid) in self.counts:
            self.counts[key, xid] += 1
        self.last[key] = xid
        if len(self._pending_checks) < MAX_PENDING:
            self._pending_checks.append((self._clock.monotonic() + SETTLE_S, key, xid))

    def close(self) -> None:
        """End a wait."""
        self._closed.set()
