"""Stores published minors in the state directory, or reads them from the Device object."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from agent.devices.minors import MinorRecords, decode_records, encode_records, records_of_object
from agent.snapshot.self_check import SelfCheck
from agent.state_writer import NO_STATE_FOLDER, StateFile, StateStatus, StateWriter

log = logging.getLogger(__name__)

MINORS_FILE = "published-minors.json"
MAX_MINORS_FILE_BYTES = 1 << 20


class PublishedMinorStore:
    """The published minor of each device. Its methods may be called from any thread.

    Without a folder the minors last as long as this object. No error here stops publishing: `check`
    reports it, and the minors are those of the Device object or new ones.
    """

    def __init__(
        self,
        folder: str = "",
        writer: StateWriter | None = None,
        *,
        stores: bool = False,
        adopts: bool = False,
        absent_because: str = NO_STATE_FOLDER,
    ) -> None:
        """Read the state file, for a limited time.

        `stores`: changes are written to it. `adopts`: without a usable file the minors are
        incomplete before `adopt` is called. `absent_because` says why there is no folder.
        """
        self._absent_because = absent_because
        self._path = str(Path(folder, MINORS_FILE)) if folder else ""
        self._writer = writer or StateWriter()
        self._file: StateFile | None = None
        if folder and stores:
            self._file = self._writer.file(self._path)
        self._lock = threading.Lock()
        self._problem = ""
        records = self._read() if folder else None
        self._records: MinorRecords = records or ()
        self._is_complete = records is not None or not adopts

    def current(self) -> tuple[MinorRecords, bool]:
        """Return the records, and whether they are all that an earlier agent published."""
        with self._lock:
            return self._records, self._is_complete

    @property
    def is_complete(self) -> bool:
        """Return whether the minors that an earlier agent published are known."""
        return self.current()[1]

    def adopt(self, body: object) -> None:
        """Use the minors of the published Device object, unless the state file had them.

        `body` is the object as JSON data; `None` if there is none.
        """
        with self._lock:
            if self._is_complete:
                return
            self._records, self._is_complete = records_of_object(body), True
        log.info("published_minors_adopted", extra={"devices": len(self._records)})

    def save(self, records: MinorRecords) -> None:
        """Store the records of the published devices; do not wait for the disk."""
        with self._lock:
            if records == self._records:
                return
            self._records = records
        if self._file is not None:
            self._file.write(encode_records(records))

    def check(self) -> SelfCheck:
        """Return whether the minors survive a restart; readiness does not depend on it."""
        error = self._file.error if self._file is not None else ""
        if error:
            error = f"{error}; a restart takes the minors from the Device object"
        location = self._path or f"not stored: {self._absent_because}"
        return SelfCheck(
            name="published-minors",
            ok=not (error or self._problem),
            message=error or self._problem or location,
            gates_ready=False,
            reason="MinorsNotStored",
        )

    def _read(self) -> MinorRecords | None:
        """Return the stored records; `None` if there are none, or if they cannot be read."""
        stores = self._file is not None
        stored = self._writer.load(
            self._path, MAX_MINORS_FILE_BYTES, decode_records, sets_aside=stores
        )
        if stored.error is None:
            return stored.value
        if stored.status is StateStatus.DAMAGED:
            self._problem = f"{self._path} is damaged: {stored.reason}"
        else:
            self._problem = f"{self._path} cannot be read: {stored.reason}"
        if stored.rename_reason:
            self._problem += f"; it could not be renamed to .bad: {stored.rename_reason}"
        if stores:
            log.error("published_minors_unreadable", extra={"error": self._problem})
        return None
