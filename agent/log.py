"""Logs as JSON lines with an event name and fields. Repeated records are counted, not repeated."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
REPEAT_WINDOW_S = 60.0
MAX_RECORD_KINDS = 1024


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, event, logger, then its own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a field without a JSON form becomes text."""
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        line.update({k: v for k, v in vars(record).items() if k not in _RECORD_FIELDS})
        if record.exc_info and record.exc_info[0] is not None:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class RepeatFilter(logging.Filter):
    """Passes one record of a kind per minute; the next one has the number of suppressed records."""

    def __init__(self) -> None:
        super().__init__()
        self._first_records: dict[tuple[object, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record.

        Records of a kind have equal logger, event and fields.
        """
        fields = tuple(
            (k, str(v))
            for k, v in vars(record).items()
            if k not in _RECORD_FIELDS and k != "failures"
        )
        kind = (record.name, record.msg, fields)
        first_s, suppressed = self._first_records.get(kind, (0.0, 0))
        # if the clock was set back, records must not be suppressed until that time
        if kind in self._first_records and 0 <= record.created - first_s < REPEAT_WINDOW_S:
            self._first_records[kind] = (first_s, suppressed + 1)
            return False
        if len(self._first_records) >= MAX_RECORD_KINDS:
            self._first_records.clear()
        self._first_records[kind] = (record.created, 0)
        if suppressed:
            record.repeated = suppressed
        return True


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Write the records of all loggers as JSON lines to `stream`, by default standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
