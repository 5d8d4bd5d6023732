"""`events.jsonl`: one event per line, repeats counted, rate and size bounded."""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent.errors import PublishError
from agent.snapshot.node import NodeSnapshot
from agent.wire_formats.event import Event, core_event
from agent.wire_formats.json_values import JsonDict, compact_json

MAX_BYTES = 1 << 20  # the file is then renamed to `.1`, replacing the previous one
MAX_SERIES = 256  # remembered
REPEAT_S = 60.0  # between two lines of one series
FORGET_S = 3600.0  # after this silence a series is counted from one again
BURST = 50  # lines at once
REFILL_S = 5.0  # seconds for one more
MAX_WAITING = 256  # unwritten lines; the oldest are dropped first

_Key = tuple[str, ...]


class _LoggedSeries(msgspec.Struct):
    count: int
    first_s: float
    last_s: float
    written_s: float | None  # None: no line yet


class EventLineLimiter:
    """Counts repeats and limits the rate; the count of a later line includes suppressed events."""

    def __init__(self) -> None:
        self._series: OrderedDict[_Key, _LoggedSeries] = OrderedDict()
        self._tokens = float(BURST)
        self._refilled_s: float | None = None
        self.dropped = 0  # events without a line of their own, since the start

    def take(self, event: Event) -> tuple[int, float] | None:
        """Return count and first time of the line to write now; `None` if no line is due."""
        key = event.series
        series = self._series.get(key)
        if series is None or not 0 <= event.at_s - series.last_s < FORGET_S:
            series = _LoggedSeries(count=0, first_s=event.at_s, last_s=event.at_s, written_s=None)
        self._series[key] = series
        self._series.move_to_end(key)
        while len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)
        series.count += 1
        series.last_s = event.at_s
        too_soon = series.written_s is not None and event.at_s - series.written_s < REPEAT_S
        if too_soon or not self._token(event.at_s):
            self.dropped += 1
            return None
        series.written_s = event.at_s
        return series.count, series.first_s

    def _token(self, now_s: float) -> bool:
        since_s = now_s - self._refilled_s if self._refilled_s is not None else 0.0
        self._tokens = min(float(BURST), self._tokens + max(0.0, since_s) / REFILL_S)
        self._refilled_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class EventLog:
    """Appends to one file in one folder; after a crash only the last line may be incomplete."""

    def __init__(self, folder: str, name: str = "events.jsonl") -> None:
        self._path = Path(folder, name)
        self._series = EventLineLimiter()
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self.error = ""  # of the last attempt, for people; its lines are written with the next one

    def record(self, events: Iterable[Event], snapshot: NodeSnapshot) -> int:
        """Write the due lines and return their number; raise `PublishError`.

        Unwritten lines of earlier calls come first.
        """
        lines = list(self._waiting)
        for event in events:
            count_and_first_s = self._series.take(event)
            if count_and_first_s is not None:
                lines.append(_encode_line(core_event(event, snapshot, *count_and_first_s)))
        if not lines:
            return 0
        try:
            self._append(b"".join(lines))
        except OSError as error:
            self._waiting.extend(lines[len(self._waiting) :])
            detail = f"{error.strerror}; events wait until the folder can be written"
            failure = PublishError(str(self._path), detail, error.errno or 0)
            self.error = str(failure)
            raise failure from error
        self._waiting.clear()
        self.error = ""
        return len(lines)

    def _append(self, data: bytes) -> None:
        os.makedirs(self._path.parent, exist_ok=True)
        size = self._path.lstat().st_size if os.path.lexists(self._path) else 0
        if size and size + len(data) > MAX_BYTES:
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        # a symlink is not followed, and opening a FIFO does not block
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            _append_whole(fd, data)
        finally:
            os.close(fd)


def _append_whole(fd: int, data: bytes) -> None:
    """Append the data to a file, all or nothing."""
    end = os.fstat(fd).st_size
    try:
        if end and os.pread(fd, 1, end - 1) != b"\n":
            data = b"\n" + data  # an incomplete line after a crash stays one invalid line
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.ftruncate(fd, end)  # all of it is written again later
        raise


def _encode_line(body: JsonDict) -> bytes:
    return compact_json(body, sort_keys=False).encode() + b"\n"
