"""The faults of all chips of a node: told by polls and events, remembered over restarts."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from agent.model.inventory import Problem
from plugins.faults.ascend import history as over_time
from plugins.faults.ascend.history import CLEAN, History
from plugins.lasting import LastingFile

FILE_NAME = "ascend-faults.json"
MAX_CHIPS = 256


class FaultBook:
    """Histories by chip id. Events come on a thread of their own; each call is quick."""

    def __init__(self, folder: object) -> None:
        self._file = LastingFile(folder, FILE_NAME, dict[str, History])
        self._chips: dict[str, History] = self._file.load() or {}
        self._severities: dict[str, dict[int, int]] = {}
        self._lock = threading.Lock()

    @property
    def problem(self) -> Problem | None:
        """Say why nothing is remembered; `None` if it is."""
        return self._file.problem

    def polled(
        self, chip: str, codes: Collection[int], now_s: float, asked_s: float | None = None
    ) -> History:
        """Note which codes a look showed, and no others; `asked_s` is when it was begun."""
        with self._lock:
            found = self._chips.get(chip, CLEAN)
            since_s = now_s if asked_s is None else asked_s
            return self._put(chip, over_time.looked(found, codes, since_s, now_s))

    def raised(self, chip: str, code: int, severity: int, now_s: float) -> History:
        """Note that a fault began."""
        with self._lock:
            known = self._severities.setdefault(chip, {})
            if code in known or len(known) < over_time.MAX_CODES:
                known[code] = severity
            return self._put(chip, over_time.raised(self._chips.get(chip, CLEAN), code, now_s))

    def cleared(self, chip: str, code: int, now_s: float) -> History:
        """Note that a fault ended."""
        with self._lock:
            return self._put(chip, over_time.cleared(self._chips.get(chip, CLEAN), code, now_s))

    def release(self, chip: str) -> bool:
        """Let a chip back that was separated; say whether it was. `flush` makes it last."""
        with self._lock:
            found = self._chips.get(chip, CLEAN)
            if found.separated_s is None:
                return False
            self._put(chip, over_time.released(found))
            return True

    def of(self, chip: str) -> History:
        """Return what is known of a chip."""
        with self._lock:
            return self._chips.get(chip, CLEAN)

    def severities(self, chip: str) -> Mapping[int, int]:
        """Return the severity that events gave to codes."""
        with self._lock:
            return dict(self._severities.get(chip, {}))

    def flush(self) -> None:
        """Write what changed to disk. It may take long: not for the thread of the events."""
        with self._lock:
            now = dict(self._chips)
        self._file.save(now)

    def _put(self, chip: str, now: History) -> History:
        if now != self._chips.get(chip, CLEAN):
            self._chips.pop(chip, None)
            while len(self._chips) >= MAX_CHIPS:
                del self._chips[next(iter(self._chips))]  # the one that changed longest ago
            self._chips[chip] = now
        return now
