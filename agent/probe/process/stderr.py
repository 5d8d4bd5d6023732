"""What a worker writes to standard error, passed on to the agent's log within bounds."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

MAX_LINES = 100  # logged of one process
MAX_LINE = 400  # bytes


class StderrLog:
    """Logs lines, each cut to its bound; beyond so many they are only counted."""

    def __init__(self, vendor: str) -> None:
        self._vendor = vendor
        self._rest = b""
        self._lines = 0

    def feed(self, data: bytes) -> None:
        """Take what was written."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._log(self._rest + part)
            self._rest = b""
        self._rest = (self._rest + rest)[:MAX_LINE]

    def end(self) -> None:
        """Log the last line, and how many were not logged."""
        self._log(self._rest)
        if self._lines > MAX_LINES:
            unsaid = self._lines - MAX_LINES
            log.warning("worker_stderr_cut", extra={"vendor": self._vendor, "lines": unsaid})

    def _log(self, line: bytes) -> None:
        text = line[:MAX_LINE].decode("utf-8", "replace").strip()
        if not text:
            return
        self._lines += 1
        if self._lines <= MAX_LINES:
            log.warning("worker_stderr", extra={"vendor": self._vendor, "line": text})
