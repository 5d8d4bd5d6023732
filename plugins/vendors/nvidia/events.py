"""Events of the driver: registered with every card, waited for in slices, traced to their card."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from agent.errors import DeviceGone, NotSupported, VendorFault
from agent.model.device import HealthState
from agent.model.inventory import DeviceEvent
from plugins.bindings.nvml import library
from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.library import Nvml, address_of

SLICE_MS = 1000
PAUSE_S = 1.0  # after an answer that comes at once and again
MAX_PENDING = 256
MAX_XIDS = 4096  # kinds that are counted
XID = 0x8
_NAMES: dict[int, str] = {
    0x2: "DoubleBitECC",
    XID: "Xid",
    0x100: "MIGConfigChange",
    0x200: "SingleBitECCStorm",
    0x400: "DRAMRetirement",
    0x800: "DRAMRetirementFailure",
    0x1000: "NonFatalPoison",
    0x2000: "FatalPoison",
    0x4000: "GPUUnavailable",
    0x8000: "RecoveryActionChanged",
}
OURS = sum(_NAMES)


class EventWatch:
    """One event set. `watch` is called by the thread that discovers, `wait` by one of its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.xids: Counter[tuple[str, int]] = Counter()  # (card, number)
        self._pending: queue.Queue[DeviceEvent] = queue.Queue(MAX_PENDING)
        self._lock = threading.Lock()
        self._nvml: Nvml | None = None
        self._set: object | None = None
        self._cards: Mapping[str, Card] = {}
        self._registered: dict[str, int] = {}  # card: pointer of its handle
        self._lost: frozenset[str] = frozenset()
        self._probed_s = -PAUSE_S
        self._clock = clock

    def tell(self, event: DeviceEvent) -> None:
        """Add an event that was noticed elsewhere; beyond `MAX_PENDING` they are dropped."""
        if not self._pending.full():
            self._pending.put_nowait(event)

    def watch(self, nvml: Nvml, cards: Mapping[str, Card]) -> None:
        """Register cards that are new or came back; those that have no events stay polled."""
        with self._lock:
            self._nvml, self._cards = nvml, dict(cards)
            self._registered = {k: v for k, v in self._registered.items() if k in cards}
            self._register()

    def _register(self) -> None:
        if self._nvml is None:
            return
        if self._set is None:
            self._registered.clear()
            self._set = _quiet(self._nvml, "nvmlEventSetCreate")
        for key, card in self._cards.items():
            pointer = address_of(card.handle)
            if self._set is None or self._registered.get(key) == pointer:
                continue
            mask = _quiet(self._nvml, "nvmlDeviceGetSupportedEventTypes", card.handle)
            wanted = mask & OURS if isinstance(mask, int) else 0
            if wanted:
                _quiet(self._nvml, "nvmlDeviceRegisterEvents", card.handle, wanted, self._set)
            self._registered[key] = pointer

    def wait(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Return events as soon as there are some, nothing after `wait_s`."""
        deadline_s = self._clock() + wait_s
        while True:
            if told := self._drain():
                return told
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                return ()
            self._slice(left_s)

    def _drain(self) -> tuple[DeviceEvent, ...]:
        told: list[DeviceEvent] = []
        while True:
            try:
                told.append(self._pending.get_nowait())
            except queue.Empty:
                return tuple(told)

    def _pause(self, wait_s: float) -> None:
        try:
            self.tell(self._pending.get(timeout=wait_s))
        except queue.Empty:
            return

    def _slice(self, left_s: float) -> None:
        with self._lock:
            nvml, event_set = self._nvml, self._set
        slice_ms = max(1, min(SLICE_MS, int(left_s * 1000)))
        if nvml is None or event_set is None:
            self._pause(slice_ms / 1000)
            return
        try:
            event = nvml.call("nvmlEventSetWait_v2", event_set, slice_ms)
        except DeviceGone:
            self._probe(nvml)
            self._pause(min(PAUSE_S, left_s))  # the set says so again at once until it is freed
        except (library.NvmlFault, NotSupported) as error:
            if library.code_of(error) != library.TIMEOUT:
                self._renew(nvml)
                self._pause(min(PAUSE_S, left_s))
        else:
            self.tell(self._event(nvml, event))

    def _renew(self, nvml: Nvml) -> None:
        with self._lock:
            if self._set is not None:
                _quiet(nvml, "nvmlEventSetFree", self._set)
            self._set = None
            self._register()

    def _probe(self, nvml: Nvml) -> tuple[str, ...]:
        """Look every card up, once a second at most, and tell of those that are newly lost."""
        now_s = self._clock()
        if now_s - self._probed_s < PAUSE_S:
            return tuple(sorted(self._lost))
        self._probed_s = now_s
        lost = frozenset(key for key in self._cards if _gone(nvml, key))
        for key in sorted(lost - self._lost):
            told = "the GPU no longer answers on its bus"
            self.tell(
                DeviceEvent(key=key, reason="GpuLost", message=told, state=HealthState.FAILED)
            )
        self._lost = lost
        return tuple(sorted(lost))

    def _event(self, nvml: Nvml, event: object) -> DeviceEvent:
        kind, data = int(getattr(event, "eventType", 0)), int(getattr(event, "eventData", 0))
        key = self._owner(nvml, getattr(event, "device", None))
        name = _NAMES.get(kind, f"NVMLEvent{kind:#x}")
        if kind != XID:
            return DeviceEvent(key=key, reason=name)
        if len(self.xids) < MAX_XIDS or (key, data) in self.xids:
            self.xids[key, data] += 1
        message = f"Xid error detected on device, error code: {data}"
        return DeviceEvent(key=key, reason=f"Xid{data}", message=message)

    def _owner(self, nvml: Nvml, handle: object) -> str:
        """Return the card of an event; "" if it cannot be told, rather than blame any."""
        pointer = address_of(handle) if handle is not None else 0
        for key, card in self._cards.items():
            if pointer and pointer == address_of(card.handle):
                return key
        info = _quiet(nvml, "nvmlDeviceGetUUID", handle) if pointer else None
        for key, card in self._cards.items():
            if info is not None and _quiet(nvml, "nvmlDeviceGetUUID", card.handle) == info:
                return key
        lost = self._probe(nvml)
        return lost[0] if len(lost) == 1 else ""

    def close(self) -> None:
        """Free the event set."""
        with self._lock:
            if self._nvml is not None and self._set is not None:
                _quiet(self._nvml, "nvmlEventSetFree", self._set)
            self._nvml = self._set = None


def _quiet(nvml: Nvml, name: str, *args: object) -> object | None:
    # events are a second source: a card without them is polled like any other
    try:
        return nvml.call(name, *args)
    except (NotSupported, DeviceGone, VendorFault):
        return None


def _gone(nvml: Nvml, bus_id: str) -> bool:
    try:
        handle = nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id)
        nvml.memory(handle, version2=False)
    except NotSupported:
        return False
    except DeviceGone:
        return True
    except library.NvmlFault as error:
        return error.code in library.NOTHING or error.code in library.STOPS_CARD
    return False
