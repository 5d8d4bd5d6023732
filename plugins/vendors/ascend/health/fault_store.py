"""The faults of all chips of a node, from polls and events, stored over restarts."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from agent.snapshot.inventory import Problem
from plugins.shared.state_file import JsonStateFile
from plugins.vendors.ascend.health import history as over_time
from plugins.vendors.ascend.health.history import NO_FAULTS, FaultHistory

FILE_NAME = "ascend-faults.json"
MAX_CHIPS = 256


class FaultStore:
    """Histories by chip id. Events come on a thread of their own; each call is quick."""

    def __init__(self, folder: str) -> None:
        self._file = JsonStateFile(folder, FILE_NAME, dict[str, FaultHistory])
        self._chips: dict[str, FaultHistory] = self._file.load() or {}
        self._severities: dict[str, dict[int, int]] = {}
        self._lock = threading.Lock()

    @property
    def problem(self) -> Problem | None:
        """Say why nothing is remembered; `None` if it is."""
        return self._file.problem

    def record_poll(
        self, chip: str, codes: Collection[int], now_s: float, asked_s: float | None = None
    ) -> FaultHistory:
        """Note which codes a look showed, and no others; `asked_s` is when it was begun."""
        with self._lock:
            faults = self._chips.get(chip, NO_FAULTS)
            since_s = now_s if asked_s is None else asked_s
            return self._put(chip, over_time.apply_poll(faults, codes, since_s, now_s))

    def record_raised(self, chip: str, code: int, severity: int, now_s: float) -> FaultHistory:
        """Note that a fault began."""
        with self._lock:
            severities = self._severities.setdefault(chip, {})
            if code in severities or len(severities) < over_time.MAX_CODES:
                severities[code] = severity
            return self._put(
                chip, over_time.raise_fault(self._chips.get(chip, NO_FAULTS), code, now_s)
            )

    def record_cleared(self, chip: str, code: int, now_s: float) -> FaultHistory:
        """Note that a fault ended."""
        with self._lock:
            return self._put(
                chip, over_time.clear_fault(self._chips.get(chip, NO_FAULTS), code, now_s)
            )

    def release(self, chip: str) -> bool:
        """Let a chip back that was separated; say whether it was. `flush` makes it last."""
        with self._lock:
            faults = self._chips.get(chip, NO_FAULTS)
            if faults.separated_s is None:
                return False
            self._put(chip, over_time.release_chip(faults))
            return True

    def history_of(self, chip: str) -> FaultHistory:
        """Return what is known of a chip."""
        with self._lock:
            return self._chips.get(chip, NO_FAULTS)

    def severities(self, chip: str) -> Mapping[int, int]:
        """Return the severity that events gave to codes."""
        with self._lock:
            return dict(self._severities.get(chip, {}))

    def flush(self) -> None:
        """Write what changed to disk. It may take long: not for the thread of the events."""
        with self._lock:
            now = dict(self._chips)
        self._file.save(now)

    def _put(self, chip: str, now: FaultHistory) -> FaultHistory:
        if now != self._chips.get(chip, NO_FAULTS):
            self._chips.pop(chip, None)
            while len(self._chips) >= MAX_CHIPS:
                del self._chips[next(iter(self._chips))]  # the one that changed longest ago
            self._chips[chip] = now
        return now
