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

MAX_BYTES = 1 << 20  # the file is then renamed to `.1`, the one before it goes
MAX_SERIES = 256  # kinds of events remembered
REPEAT_S = 60.0  # a series writes one line in that time
FORGET_S = 3600.0  # a series that was silent so long starts again at one
BURST = 50  # lines at once
REFILL_S = 5.0  # seconds for one more
MAX_WAITING = 256  # lines that could not be written; the oldest go first

_Key = tuple[str, ...]


class _LoggedSeries(msgspec.Struct):
    count: int
    first_s: float
    last_s: float
    written_s: float | None  # None: no line yet


class EventLineLimiter:
    """Counts repeats and limits the rate; what is held back is told by a later line's count."""

    def __init__(self) -> None:
        self._series: OrderedDict[_Key, _LoggedSeries] = OrderedDict()
        self._tokens = float(BURST)
        self._refilled_s: float | None = None
        self.dropped = 0  # events without a line of their own, since the start

    def take(self, event: Event) -> tuple[int, float] | None:
        """Return count and first time for the line to write now, `None` if there is none."""
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
    """Appends to one file in one folder; a line is whole or, after a crash, the last one torn."""

    def __init__(self, folder: str, name: str = "events.jsonl") -> None:
        self._path = Path(folder, name)
        self._series = EventLineLimiter()
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self.error = ""  # of the last attempt, for people; lines wait for the next

    def record(self, events: Iterable[Event], snapshot: NodeSnapshot) -> int:
        """Write what is to be written and return how many lines; raise `PublishError`.

        What could not be written goes before what is new.
        """
        lines = list(self._waiting)
        for event in events:
            taken = self._series.take(event)
            if taken is not None:
                lines.append(_encode_line(core_event(event, snapshot, *taken)))
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
        # a link in its place is not followed, and a FIFO does not block
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            _append_whole(fd, data)
        finally:
            os.close(fd)


def _append_whole(fd: int, data: bytes) -> None:
    """Write at the end of a file, all of it or nothing."""
    end = os.fstat(fd).st_size
    try:
        if end and os.pread(fd, 1, end - 1) != b"\n":
            data = b"\n" + data  # a torn line of a crash stays one bad line
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.ftruncate(fd, end)  # the whole is written again
        raise


def _encode_line(body: JsonDict) -> bytes:
    return compact_json(body, sort_keys=False).encode() + b"\n"
