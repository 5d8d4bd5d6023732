"""Reads the chips' RoCE ports on a separate thread, because the call may hang."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.clock import SYSTEM_CLOCK, Clock
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.meters import read_port_address
from plugins.vendors.ascend.library.poll_thread import ChipPollThread
from plugins.vendors.ascend.library.state import NETWORK_GOOD, network_state

DEADLINE_S = 1.0
EVERY_S = 5.0
FRESH_S = 30.0


class RocePortState(msgspec.Struct, frozen=True):
    """The state of a port, and when it was read (monotonic)."""

    state: int
    at_s: float
    address: str

    @property
    def is_working(self) -> bool:
        """Return whether the port works or is being set up."""
        return self.state in NETWORK_GOOD


class NetworkWatch:
    """Polls one port after the other. An answer that took longer than a second is discarded.

    While a call hangs, the states of all ports become unknown; nothing else is affected.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._ports: dict[str, RocePortState] = {}
        self._thread = ChipPollThread("network", EVERY_S, self._poll_port)

    def watch(self, dcmi: Dcmi, chips: Iterable[tuple[str, int, int]]) -> None:
        """Set the chips to poll, by key, card and number; nothing if the driver lacks the call."""
        if "dcmi_get_device_network_health" not in dcmi.missing:
            self._thread.set_chips(dcmi, chips)

    def port(self, key: str) -> RocePortState | None:
        """Return the recent state of a chip's port; `None` if unknown or without an address."""
        port = self._ports.get(key)
        is_fresh = port is not None and self._clock.monotonic() - port.at_s <= FRESH_S
        return port if is_fresh else None

    def close(self) -> None:
        """Tell the thread to end after its current call."""
        self._thread.close()

    def _poll_port(self, key: str, chip: Chip) -> None:
        began_s = self._clock.monotonic()
        address = read_port_address(chip)
        state = network_state(chip) if address else None
        now_s = self._clock.monotonic()
        if address and state is not None and now_s - began_s <= DEADLINE_S:
            self._ports[key] = RocePortState(state, now_s, address)
        else:
            self._ports.pop(key, None)
