"""Receives driver events on a separate thread, because the library may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import msgspec

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import DeviceGone, NotSupported, VendorFault
from plugins.vendors.nvidia.library import codes
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.nvml import Nvml, handle_address
from plugins.vendors.nvidia.library.structures import BOUND, SystemEvents, read_fields

MAX_XID = 999_999
SLICE_MS = 500  # length of one wait, and so the longest time that an orderly end takes
JOIN_S = 0.55
SYSTEM_EVERY = 4  # waits between two reads of system events (cards bound or unbound)
PAUSE_S = 1.0  # after an error that returns at once and may repeat
RECOVERY_ACTION = ((230, 0),)
NO_INSTANCE = 0xFFFFFFFF  # instance number of an event whose instance is unknown

DOUBLE_BIT, XID, MIG_CHANGED = 0x2, 0x8, 0x100
SINGLE_BIT_STORM, DRAM_RETIRED, DRAM_NOT_RETIRED = 0x200, 0x400, 0x800
POISON, FATAL_POISON = 0x1000, 0x2000
UNAVAILABLE, ACTION_CHANGED = 0x4000, 0x8000
EVENT_TYPES = (
    DOUBLE_BIT
    | XID
    | MIG_CHANGED
    | (SINGLE_BIT_STORM | DRAM_RETIRED | DRAM_NOT_RETIRED)
    | (POISON | FATAL_POISON)
    | (UNAVAILABLE | ACTION_CHANGED)
)
LOST, DRIVER_BOUND, DRIVER_UNBOUND = -1, -2, -3  # kinds that the agent adds to NVML's
RECOVERY_ACTION_XIDS = frozenset(
    {74, *range(144, 151), 154}
)  # Xids after which the driver's recovery action is read


class NvmlEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a card, named by its bus id; the key is empty if no card is known."""

    key: str
    kind: int
    at_s: float  # monotonic
    number: int = 0
    instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE
    action: int | None = None  # recovery action that the driver requires now


class NvmlEventListener:
    """One NVML event set and the thread that waits on it; `emit` receives every event.

    The thread of the discovery calls `watch`.
    """

    def __init__(self, emit: Callable[[NvmlEvent], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._emit = emit
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml: Nvml | None = None
        self._set: object | None = None
        self._system: SystemEvents | None = None
        self._cards: Mapping[str, NvmlCard] = {}
        self._registered: dict[str, int] = {}  # card: pointer of its handle
        self._lost_cards: frozenset[str] = frozenset()
        self._last_probe_s = -PAUSE_S

    def start(self) -> None:
        """Start the thread, if it is not running."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="nvml-events", daemon=True)
            self._thread.start()

    def watch(self, nvml: Nvml, cards: Mapping[str, NvmlCard]) -> None:
        """Register new and returned cards; cards without events are only polled."""
        with self._lock:
            if self._nvml is not nvml:
                self._system = _system_events(nvml)
            self._nvml, self._cards = nvml, dict(cards)
            self._registered = {k: v for k, v in self._registered.items() if k in cards}
            self._register()

    def _register(self) -> None:
        if self._nvml is None:
            return
        if self._set is None:
            self._registered.clear()
            self._set = _call_or_none(self._nvml, "nvmlEventSetCreate")
        for key, card in self._cards.items():
            pointer = handle_address(card.handle)
            if self._set is None or self._registered.get(key) == pointer:
                continue
            mask = _call_or_none(self._nvml, "nvmlDeviceGetSupportedEventTypes", card.handle)
            event_types = mask & EVENT_TYPES if isinstance(mask, int) else 0
            if event_types:
                _call_or_none(
                    self._nvml, "nvmlDeviceRegisterEvents", card.handle, event_types, self._set
                )
            self._registered[key] = pointer

    def _listen(self) -> None:
        waits = 0
        while not self._stop.is_set():
            waits += 1
            with self._lock:
                nvml, event_set, system = self._nvml, self._set, self._system
            if nvml is None:
                self._stop.wait(SLICE_MS / 1000)
                continue
            if system is not None and waits % SYSTEM_EVERY == 0:
                self._read_system_events(system)
            self._wait_for_event(nvml, event_set)

    def _read_system_events(self, system: SystemEvents) -> None:
        try:
            kinds = system.read()
        except (NotSupported, DeviceGone, VendorFault):
            with self._lock:
                self._system = None  # polling finds new cards as well
            return
        for kind in kinds:
            event_kind = DRIVER_BOUND if kind & BOUND else DRIVER_UNBOUND
            self._emit(NvmlEvent(key="", kind=event_kind, at_s=self._clock.monotonic()))

    def _wait_for_event(self, nvml: Nvml, event_set: object | None) -> None:
        """Wait one slice for an event."""
        if event_set is None:
            self._stop.wait(SLICE_MS / 1000)
            return
        try:
            event = nvml.call("nvmlEventSetWait_v2", event_set, SLICE_MS)
        except DeviceGone:
            lost_before = self._lost_cards
            self._probe(nvml)
            if self._lost_cards != lost_before:
                self._recreate_set(
                    nvml
                )  # a set without the lost card still reports the other cards
            self._stop.wait(PAUSE_S)  # the error may repeat at once
        except (codes.NvmlFault, NotSupported) as error:
            if codes.code_of(error) != codes.TIMEOUT:
                self._recreate_set(nvml)
                self._stop.wait(PAUSE_S)
        else:
            self._handle_event(nvml, event)

    def _handle_event(self, nvml: Nvml, event: object) -> None:
        at_s = self._clock.monotonic()
        kind, number = int(getattr(event, "eventType", 0)), int(getattr(event, "eventData", 0))
        if kind == XID and not 0 < number <= MAX_XID:
            number = codes.UNKNOWN  # the driver's number for an Xid without a number
        card = self._owner(nvml, getattr(event, "device", None))
        if kind == UNAVAILABLE:
            self._probe(nvml)
        reads_action = kind == ACTION_CHANGED or (kind == XID and number in RECOVERY_ACTION_XIDS)
        self._emit(
            NvmlEvent(
                key=card.bus_id if card else "",
                kind=kind,
                at_s=at_s,
                number=number,
                instance=int(getattr(event, "gpuInstanceId", NO_INSTANCE)),
                compute_instance=int(getattr(event, "computeInstanceId", NO_INSTANCE)),
                action=_action(nvml, card.handle) if card and reads_action else None,
            )
        )

    def _recreate_set(self, nvml: Nvml) -> None:
        with self._lock:
            if self._set is not None:
                _call_or_none(nvml, "nvmlEventSetFree", self._set)
            self._set = None
            self._register()

    def _probe(self, nvml: Nvml) -> tuple[str, ...]:
        """Look up every card, at most once a second, and emit an event for each newly lost one."""
        now_s = self._clock.monotonic()
        if now_s - self._last_probe_s >= PAUSE_S:
            self._last_probe_s = now_s
            lost_cards = frozenset(key for key in self._cards if is_card_lost(nvml, key))
            for key in sorted(lost_cards - self._lost_cards):
                self._emit(NvmlEvent(key=key, kind=LOST, at_s=now_s))
            self._lost_cards = lost_cards
        return tuple(sorted(self._lost_cards))

    def _owner(self, nvml: Nvml, handle: object) -> NvmlCard | None:
        """Return the card of an event; `None` if no card or several cards fit."""
        pointer = handle_address(handle) if handle is not None else 0
        for card in self._cards.values():
            if pointer and pointer == handle_address(card.handle):
                return card
        uuid = _call_or_none(nvml, "nvmlDeviceGetUUID", handle) if pointer else None
        for card in self._cards.values():
            if uuid is not None and _call_or_none(nvml, "nvmlDeviceGetUUID", card.handle) == uuid:
                return card
        lost_cards = self._probe(nvml)
        return self._cards.get(lost_cards[0]) if len(lost_cards) == 1 else None

    def close(self) -> bool:
        """Free the sets; return `False` if the library still waits, when nothing is freed."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                return False
        with self._lock:
            if self._nvml is not None and self._set is not None:
                _call_or_none(self._nvml, "nvmlEventSetFree", self._set)
            if self._system is not None:
                _close(self._system)
            self._nvml = self._set = self._system = None
        return True


def _system_events(nvml: Nvml) -> SystemEvents | None:
    try:
        return SystemEvents(nvml)
    except (NotSupported, DeviceGone, VendorFault):
        return None  # uevents and polling find new cards as well


def _close(system: SystemEvents) -> None:
    try:
        system.close()
    except (NotSupported, DeviceGone, VendorFault):
        return  # the process ends anyway


def _action(nvml: Nvml, handle: object) -> int | None:
    try:
        action = read_fields(nvml, handle, RECOVERY_ACTION)[0][0]
    except (NotSupported, DeviceGone, VendorFault):
        return None
    return int(action) if action is not None else None


def _call_or_none(nvml: Nvml, name: str, *args: object) -> object | None:
    # events are only a second source: a card without events is still polled
    try:
        return nvml.call(name, *args)
    except (NotSupported, DeviceGone, VendorFault):
        return None


def is_card_answering(nvml: Nvml, bus_id: str) -> bool:
    """Return whether NVML finds a card by its address and the card is not lost."""
    handle = _call_or_none(nvml, "nvmlDeviceGetHandleByPciBusId", bus_id)
    return handle is not None and not is_card_lost(nvml, bus_id)


def is_card_lost(nvml: Nvml, bus_id: str) -> bool:
    """Return whether NVML does not find a card by its address, or reports it as lost."""
    try:
        handle = nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id)
        nvml.memory(handle, version2=False)
    except NotSupported:
        return False
    except DeviceGone:
        return True
    except codes.NvmlFault as error:
        return error.code in codes.HARMLESS or error.code in codes.CARD_UNAVAILABLE
    return False
