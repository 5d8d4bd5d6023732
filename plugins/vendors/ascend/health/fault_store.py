"""The fault histories of a node's chips, from polls and events, stored over restarts."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from agent.snapshot.inventory import Problem
from plugins.shared.state_file import JsonStateFile
from plugins.vendors.ascend.health import history as fault_history
from plugins.vendors.ascend.health.history import NO_FAULTS, FaultHistory

FILE_NAME = "ascend-faults.json"
MAX_CHIPS = 256


class FaultStore:
    """Fault histories by chip id. Thread-safe; only `flush` waits for the disk."""

    def __init__(self, folder: str) -> None:
        self._file = JsonStateFile(folder, FILE_NAME, dict[str, FaultHistory])
        self._chips: dict[str, FaultHistory] = self._file.load() or {}
        self._severities: dict[str, dict[int, int]] = {}
        self._lock = threading.Lock()

    @property
    def problem(self) -> Problem | None:
        """The problem of the state file, if there is one."""
        return self._file.problem

    def record_poll(
        self, chip: str, codes: Collection[int], now_s: float, poll_start_s: float | None = None
    ) -> FaultHistory:
        """Record all active codes of a poll that began at `poll_start_s`."""
        with self._lock:
            faults = self._chips.get(chip, NO_FAULTS)
            since_s = now_s if poll_start_s is None else poll_start_s
            return self._store(chip, fault_history.apply_poll(faults, codes, since_s, now_s))

    def record_raised(self, chip: str, code: int, severity: int, now_s: float) -> FaultHistory:
        """Record that a fault began."""
        with self._lock:
            severities = self._severities.setdefault(chip, {})
            if code in severities or len(severities) < fault_history.MAX_CODES:
                severities[code] = severity
            return self._store(
                chip, fault_history.raise_fault(self._chips.get(chip, NO_FAULTS), code, now_s)
            )

    def record_cleared(self, chip: str, code: int, now_s: float) -> FaultHistory:
        """Record that a fault ended."""
        with self._lock:
            return self._store(
                chip, fault_history.clear_fault(self._chips.get(chip, NO_FAULTS), code, now_s)
            )

    def release(self, chip: str) -> bool:
        """Release a separated chip; return whether it was separated. `flush` writes the change."""
        with self._lock:
            faults = self._chips.get(chip, NO_FAULTS)
            if faults.separated_s is None:
                return False
            self._store(chip, fault_history.release_chip(faults))
            return True

    def history_of(self, chip: str) -> FaultHistory:
        """Return the fault history of a chip."""
        with self._lock:
            return self._chips.get(chip, NO_FAULTS)

    def severities(self, chip: str) -> Mapping[int, int]:
        """Return the severities of codes, from events."""
        with self._lock:
            return dict(self._severities.get(chip, {}))

    def flush(self) -> None:
        """Write changes to disk. It may take long, so the thread of the events must not call it."""
        with self._lock:
            histories = dict(self._chips)
        self._file.save(histories)

    def _store(self, chip: str, new: FaultHistory) -> FaultHistory:
        if new != self._chips.get(chip, NO_FAULTS):
            self._chips.pop(chip, None)
            while len(self._chips) >= MAX_CHIPS:
                del self._chips[
                    next(iter(self._chips))
                ]  # the chip that has not changed for longest
            self._chips[chip] = new
        return new
