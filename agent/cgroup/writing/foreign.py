"""Others who write the same files: they are overruled, but not in a fight each second."""

from __future__ import annotations

from collections import deque

import msgspec

from agent.cgroup.writing.wish import Target

REVERTS = 3  # within
WINDOW_S = 60.0  # then only one a window, and people are told


class _History(msgspec.Struct):
    times: deque[float]  # of ours put back
    contested: bool = False


class Foreign:
    """Counts values that somebody else put in the place of ours."""

    def __init__(self) -> None:
        self._of: dict[Target, _History] = {}
        self.reverts = 0  # of all targets since the start

    def may_write(self, target: Target, now_s: float) -> bool:
        """Count a value that is not ours; say whether to put ours back now."""
        known = self._of.setdefault(target, _History(deque(maxlen=REVERTS)))
        times = known.times
        if known.contested and now_s - times[-1] < WINDOW_S:
            return False
        times.append(now_s)
        self.reverts += 1
        often = len(times) == REVERTS and now_s - times[0] <= WINDOW_S
        known.contested = often or (known.contested and now_s - times[-2] < 2 * WINDOW_S)
        return True

    def contested(self, now_s: float) -> tuple[Target, ...]:
        """Return the targets that somebody else keeps writing; a quiet window ends that."""
        return tuple(
            target
            for target, known in self._of.items()
            if known.contested and now_s - known.times[-1] < 2 * WINDOW_S
        )

    def keep(self, targets: frozenset[Target]) -> None:
        """Forget all other targets."""
        self._of = {target: known for target, known in self._of.items() if target in targets}
