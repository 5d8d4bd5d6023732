"""A small JSON file with a vendor's state, replaced atomically."""

from __future__ import annotations

import os
from typing import Generic, TypeVar

import msgspec

from agent.errors import AgentError
from agent.snapshot.inventory import Problem
from agent.state_writer import NO_ANSWER, NO_STATE_FOLDER, StateStatus, StateWriter
from agent.wire_formats.json_values import JSON_ERRORS

MAX_FILE = 1 << 20
T = TypeVar("T")


class JsonStateFile(Generic[T]):
    """A value of one type in `<folder>/<name>`; without a folder nothing outlives the process.

    If the file cannot be used, `problem` says why; `error` is why the last value that was given to
    `save` is not on the disk. A damaged one is renamed to `.bad`. If writing
    is interrupted, the file has the old content or the new one.
    """

    def __init__(self, folder: str, name: str, kind: type[T]) -> None:
        self.problem: Problem | None = None
        self.error = ""
        self._path = os.path.join(folder, name) if folder else None
        self._decoder = msgspec.json.Decoder(kind)
        self._writer = StateWriter(name)
        self._file = self._writer.file(self._path) if self._path is not None else None

    def load(self) -> T | None:
        """Return the stored value; `None` if there is none, or none that can be used."""
        if self._path is None:
            return None
        stored = self._writer.load(self._path, MAX_FILE, self._decode)
        reason = stored.reason[:120]
        if stored.status is StateStatus.UNREADABLE:
            self._set_problem("StateFileUnreadable", f"{self._path}: {stored.reason}")
        elif stored.rename_error is not None:
            message = f"{self._path}: {reason}; not put aside: {stored.rename_reason}"
            self._set_problem("StateFileDamaged", message)
        elif stored.status is StateStatus.DAMAGED:
            self._set_problem(
                "StateFileDamaged", f"{self._path}: put aside as .bad and begun anew: {reason}"
            )
        return stored.value

    def _decode(self, data: bytes) -> T:
        try:
            return self._decoder.decode(data)
        except JSON_ERRORS as error:
            raise AgentError(str(error)) from error

    def save(self, value: T) -> bool:
        """Write the value if it differs from the last one; return whether it is on the disk.

        It waits half a second for a file system that does not answer, and not again while it does
        not. The value is then written when the file system answers.
        """
        data = msgspec.json.encode(value)
        if self._file is None:
            self.error = NO_STATE_FOLDER
            return False
        if len(data) > MAX_FILE:
            self.error = f"{self._path}: more than {MAX_FILE} bytes"
            self._set_problem("StateNotWritten", f"{self.error}: the last that fitted is kept")
            return False
        if not self._file.save(data):
            self.error = self._file.error or f"{self._path}: {NO_ANSWER}"
            self._set_problem("StateNotWritten", f"{self.error}: forgotten at a restart")
            return False
        self.problem, self.error = None, ""
        return True

    def _set_problem(self, reason: str, message: str) -> None:
        self.problem = Problem(reason=reason, message=message)
