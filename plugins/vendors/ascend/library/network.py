"""Reads the chips' RoCE ports on a thread of its own, because the call may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.meters import read_port_address
from plugins.vendors.ascend.library.state import NETWORK_GOOD, network_state

DEADLINE_S = 1.0
EVERY_S = 5.0
FRESH_S = 30.0


class RocePortState(msgspec.Struct, frozen=True):
    """What a port said, and when (monotonic)."""

    state: int
    at_s: float
    address: str

    @property
    def is_working(self) -> bool:
        """Say whether the port is well, or still being set up."""
        return self.state in NETWORK_GOOD


class NetworkWatch:
    """Asks one port after the other. An answer that took longer than a second is not believed.

    While a call hangs, nothing of any port is known, and everything else goes on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ports: dict[str, RocePortState] = {}
        self._chips: tuple[tuple[str, Chip], ...] = ()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, dcmi: Dcmi, chips: Iterable[tuple[str, int, int]]) -> None:
        """Ask these from now on, by key, card and number; a driver that cannot tell is left."""
        if "dcmi_get_device_network_health" in dcmi.missing:
            return
        chips_by_place = {(key, chip.card, chip.number): chip for key, chip in self._chips}
        # objects of this thread's own: a chip's notes are for one thread
        pairs = ((place, chips_by_place.get(place)) for place in chips)
        self._chips = tuple((p[0], chip or Chip(dcmi, *p[1:])) for p, chip in pairs)
        if self._thread is None and self._chips:
            self._thread = threading.Thread(target=self._run, name="network", daemon=True)
            self._thread.start()

    def port(self, key: str) -> RocePortState | None:
        """Return what a chip's port said lately; `None` if it did not, or has no address."""
        port = self._ports.get(key)
        fresh = port is not None and self._clock() - port.at_s <= FRESH_S
        return port if fresh else None

    def close(self) -> None:
        """Let the thread end when its call comes back."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            for key, chip in self._chips:
                if not self._closed:
                    self._ask(key, chip)
            self._wake.wait(EVERY_S)

    def _ask(self, key: str, chip: Chip) -> None:
        chip.begin_round()
        began_s = self._clock()
        where = read_port_address(chip)
        state = network_state(chip) if where else None
        now_s = self._clock()
        if where and state is not None and now_s - began_s <= DEADLINE_S:
            self._ports[key] = RocePortState(state, now_s, where)
        else:
            self._ports.pop(key, None)
