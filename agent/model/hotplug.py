"""How the agent learns that hardware comes or goes, and what it has learnt so far."""

from __future__ import annotations

import msgspec

from agent.model.device import VendorDevice

Counts = tuple[tuple[str, int], ...]  # by name, in order


class HotplugView(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start. `problem` says why there are no events where there should be."""

    state: str = "off"  # off (a recorded host, or a setting), listening, polling
    problem: str = ""
    seen: Counts = ()  # events by subsystem
    dropped: Counts = ()  # events by why
    scans: Counts = ()  # looks at the host by what made us look


class Departed(msgspec.Struct, frozen=True, kw_only=True):
    """A device whose function the kernel removed, as it is shown until `until_s` (monotonic)."""

    vendor: str
    device: VendorDevice
    until_s: float
