"""Xids of the driver: waited for, counted, and followed by a look at the card's health."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from agent.errors import NotSupported
from agent.model.device import Health
from agent.model.inventory import DeviceEvent
from plugins.bindings.cndev import codes
from plugins.bindings.cndev.card import Card
from plugins.bindings.cndev.library import Cndev

XID_EVENT = 1
SETTLE_S = 0.2  # from an Xid to the look at the card
PAUSE_S = 1.0  # after a wait that fails at once
MAX_XIDS = 4096  # kinds that are counted
MAX_PENDING = 256
Look = Callable[[str], Health | None]  # the verdict on a card now; None: nothing is known


class XidWatch:
    """The driver's events. `watch` is called by the thread that discovers, `wait` by its own."""

    def __init__(self, look: Look, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()  # (device, Xid)
        self.last: dict[str, int] = {}
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._cndev: Cndev | None = None
        self._set = ctypes.c_void_p()
        self._keys: dict[int, str] = {}  # by handle
        self._due: list[tuple[float, str, int]] = []  # when to look, at whom, after which Xid

    def watch(self, cndev: Cndev, cards: Mapping[str, Card]) -> None:
        """Hear of these cards; one without events is looked at by its samples only."""
        with self._lock:
            if self._cndev is not cndev:  # at the start, or the driver was loaded anew
                self._cndev, self._keys = None, {}
                if not self._ready(cndev):
                    return
                self._cndev = cndev
            before, self._keys = self._keys, {}
            for key, card in cards.items():
                if before.get(card.handle) == key or self._register(cndev, card):
                    self._keys[card.handle] = key

    def _ready(self, cndev: Cndev) -> bool:
        fresh = ctypes.c_void_p()  # the thread of events may still wait with the one before
        try:
            cndev.call("cndevEventHandleCreate", ctypes.byref(fresh))
        except (codes.CndevFault, NotSupported):
            return False
        self._set = fresh
        return True

    def _register(self, cndev: Cndev, card: Card) -> bool:
        types = ctypes.c_uint64(XID_EVENT)
        try:
            cndev.call("cndevRegisterEvents", self._set, types, card.handle)
        except (codes.CndevFault, NotSupported):
            return False
        return True

    def wait(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Return events as soon as there are some, nothing after `wait_s`."""
        until_s = self._clock() + wait_s
        while True:
            if told := self._looked():
                return told
            now_s = self._clock()
            if now_s >= until_s or self._closed.is_set():
                return ()
            self._listen(min((until_s, *(due_s for due_s, _, _ in self._due))) - now_s)

    def _looked(self) -> tuple[DeviceEvent, ...]:
        now_s = self._clock()
        ripe = [item for item in self._due if item[0] <= now_s]
        self._due = [item for item in self._due if item[0] > now_s]
        return tuple(self._event(key, xid) for _, key, xid in ripe)

    def _event(self, key: str, xid: int) -> DeviceEvent:
        health = self._look(key)
        told = f"Xid {xid:#018x}"
        if health is None or health.in_service:
            return DeviceEvent(key=key, reason=f"Xid{xid}", message=told)
        return DeviceEvent(
            key=key, reason=health.reason, message=health.message, state=health.state
        )

    def _listen(self, wait_s: float) -> None:
        with self._lock:
            cndev, listened = self._cndev, self._set
        if cndev is None:
            self._closed.wait(max(0.001, wait_s))
            return
        event = cndev.record("Event")
        try:
            cndev.wait("cndevEventWait", listened, ctypes.byref(event), max(1, int(wait_s * 1000)))
        except (codes.CndevFault, NotSupported) as error:
            if getattr(error, "code", 0) != codes.TIMED_OUT:
                self._closed.wait(min(PAUSE_S, max(0.001, wait_s)))
            return
        self._heard(int(event.device), int(event.type), int(event.data))

    def _heard(self, handle: int, kind: int, xid: int) -> None:
        key = self._keys.get(handle)
        if key is None or kind != XID_EVENT:
            return
        if len(self.counts) < MAX_XIDS or (key, xid) in self.counts:
            self.counts[key, xid] += 1
        self.last[key] = xid
        if len(self._due) < MAX_PENDING:
            self._due.append((self._clock() + SETTLE_S, key, xid))

    def close(self) -> None:
        """Wake who waits."""
        self._closed.set()
