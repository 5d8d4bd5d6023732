"""Looks at a device in a row, in a few words."""

from __future__ import annotations

from agent.devices.health import HealthTrack, TimePoint, observe, render_health
from agent.snapshot.device import Health, HealthState
from agent.snapshot.settings import HealthPolicy

WALL_S = 1_767_323_045.0
GOOD = Health()
ODD = Health(state=HealthState.SUSPECT, reason="Throttled", message="too hot")
BAD = Health(state=HealthState.FAILED, reason="Xid95", message="uncontained memory error")
UNSURE = Health(reason="DriverStalled", message="no answer", certain=False)
LETTERS = {"g": GOOD, "o": ODD, "b": BAD, "?": UNSURE}
SHORT = {
    HealthState.HEALTHY: "H",
    HealthState.SUSPECT: "S",
    HealthState.PROBING: "P",
    HealthState.FAILED: "F",
}


def at(second: float) -> TimePoint:
    """A moment so many seconds after the start of a test."""
    return TimePoint(1000.0 + second, WALL_S + second)


class Device:
    """One device that is looked at."""

    def __init__(self, **policy: float) -> None:
        self.policy = HealthPolicy(**policy)  # type: ignore[arg-type]  # as a test writes them
        self.track: HealthTrack | None = None
        self.second = 0.0

    def look(self, verdict: Health, after_s: float = 1.0) -> Health:
        """Look so many seconds after the last look."""
        self.second += after_s
        self.track = observe(self.track, verdict, self.policy, at(self.second))
        return self.health

    def looks(self, letters: str, every_s: float = 1.0) -> str:
        """Look once for each of `g`ood, `o`dd, `b`ad and `?`; return the states' initials."""
        return "".join(SHORT[self.look(LETTERS[x], every_s).state] for x in letters)

    @property
    def health(self) -> Health:
        """What others are told now."""
        assert self.track is not None
        return render_health(self.track, self.policy)
