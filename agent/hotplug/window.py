"""When to look at the host because of events: together, soon, and not too often."""

from __future__ import annotations

import msgspec

from agent.hotplug.uevent import Part

QUIET_S = 0.2  # without another event: then it is time to look
LONGEST_S = 2.0  # of a window, however many events there are
AGAIN_S = 1.0  # between two looks
GAP_AGAIN_S = 30.0  # between two full looks because of a gap in the sequence
GAP = "gap"
EVERYTHING = frozenset(Part)


class Look(msgspec.Struct, frozen=True):
    """Which parts to read again, and what made it necessary: event, arrival, gap or lost."""

    parts: frozenset[Part]
    cause: str


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Events that are answered by one look. Without parts there is nothing to look for."""

    parts: frozenset[Part] = frozenset()
    cause: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    looked_s: float = float("-inf")
    gap_looked_s: float = float("-inf")

    def opened(self, parts: frozenset[Part], cause: str, now_s: float) -> Window:
        """Return the window with one more reason to look; no parts change nothing."""
        if not parts:
            return self
        # a gap may wait, and what comes meanwhile must not wait with it
        fresh = not self.parts or (self.cause == GAP and cause != GAP)
        return msgspec.structs.replace(
            self,
            parts=self.parts | parts,
            cause=cause if fresh else self.cause,
            first_s=now_s if fresh else self.first_s,
            last_s=now_s,
        )

    @property
    def due_s(self) -> float | None:
        """Return when to look; `None` if there is no reason to."""
        if not self.parts:
            return None
        due_s = min(self.last_s + QUIET_S, self.first_s + LONGEST_S)
        # events of other network namespaces are not shown to us: gaps are many where pods start
        gap_s = self.gap_looked_s + GAP_AGAIN_S if self.cause == GAP else due_s
        return max(due_s, self.looked_s + AGAIN_S, gap_s)

    def taken(self, now_s: float) -> tuple[Look | None, Window]:
        """Return the look that is due, and the window after it."""
        due_s = self.due_s
        if due_s is None or now_s < due_s:
            return None, self
        gap_s = now_s if self.parts == EVERYTHING else self.gap_looked_s
        return Look(self.parts, self.cause), Window(looked_s=now_s, gap_looked_s=gap_s)
