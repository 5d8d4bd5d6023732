"""What a vendor's silence says of its devices: nothing, then that nobody knows, then the worst."""

from __future__ import annotations

import msgspec

from agent.config.health import HealthSettings
from agent.model.device import Health, HealthState
from agent.model.snapshot import VendorState
from agent.probe.wire import NO_PERMISSION

STALLED = "DriverStalled"
RELEASED = "DriverReleased"
_SILENT = ("stalled", "restarting", "quarantined", "released")
_LET_GO = "the agent let go of the driver because it was asked to"
_REFUSED = "the kernel refuses the agent the files of this vendor's driver"


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor that answered once and does not now."""

    since_s: float  # monotonic
    why: str = ""
    released: bool = False  # somebody asked for it: no sign of a fault
    forbidden: bool = False  # the kernel refuses the worker: no sign of a device's fault either

    def verdict(self, health: HealthSettings, now_s: float) -> Health | None:
        """Return what the silence says of each device; `None` while it is short."""
        if self.released:
            return Health(reason=RELEASED, message=_LET_GO, certain=False)
        if self.forbidden:
            told = f"{_REFUSED}: {self.why}" if self.why else _REFUSED
            return Health(reason=NO_PERMISSION, message=told, certain=False)
        silent_s = now_s - self.since_s
        for limit_s, state, certain in (
            (health.stalled_failed_s, HealthState.FAILED, True),
            (health.stalled_unknown_s, HealthState.HEALTHY, False),
        ):
            if silent_s >= limit_s:
                told = f"no answer from its vendor's worker for more than {limit_s:g} s"
                told = f"{told}: {self.why}" if self.why else told
                return Health(state=state, reason=STALLED, message=told, certain=certain)
        return None


def silence_of(known: Silence | None, state: VendorState, now_s: float) -> Silence | None:
    """Return the silence that a vendor's state shows; one that goes on keeps its beginning."""
    if state.state not in _SILENT:
        return None
    released, forbidden = state.state == "released", state.reason == NO_PERMISSION
    if known is not None and (known.released, known.forbidden) == (released, forbidden):
        return known
    why = state.message
    return Silence(since_s=now_s, why=why, released=released, forbidden=forbidden)
