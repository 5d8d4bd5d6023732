"""The changes of the host: the latest ones in memory, all of them in a file of JSON lines.

The file is bounded: a full one becomes `FILE.1`, which replaces the one before. It is written on a
thread of its own, so that a hanging file system delays no cycle. An agent that is killed leaves
whole lines, and at most one part of a line, which the next agent ends.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from itertools import islice

import msgspec

from agent import durable
from agent.errors import ParseError
from agent.snapshot.publications import AuditRecord
from agent.state_writer import NO_ANSWER, StateWriter

MAX_AUDITS = 1024  # in memory
MAX_PENDING = 8192  # records that wait for the file; later ones are counted and lost
MAX_BATCH = 1024  # records that one write has
CLOSE_S = 0.5  # for what waits at the end of the agent
RETRY_S = 10.0  # after a failed write
FILE_MODE, FOLDER_MODE = 0o640, 0o750
OLDER_SUFFIX = ".1"


class LostRecords(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file that stands for changes that it does not have."""

    lost: int


AuditLine = AuditRecord | LostRecords


class AuditFile:
    """Appends lines to a file and starts a new one at `max_bytes`. For one thread."""

    def __init__(self, path: str, max_bytes: int) -> None:
        """Open nothing yet; the folder is made with the first line."""
        self.path = path
        self._max_bytes = max_bytes

    def append(self, lines: bytes) -> None:
        """Write whole lines with one system call; raise `OSError` and leave nothing of them."""
        os.makedirs(os.path.dirname(self.path) or ".", mode=FOLDER_MODE, exist_ok=True)
        fd = self._open()
        try:
            size = os.fstat(fd).st_size
            if size and size + len(lines) > self._max_bytes:
                os.replace(self.path, self.path + OLDER_SUFFIX)
                os.close(fd)
                fd, size = self._open(), 0
            if size and os.pread(fd, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # another agent was killed within a line
            if os.write(fd, lines) != len(lines):
                os.ftruncate(fd, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        finally:
            os.close(fd)

    def read_last(self, count: int, max_bytes: int) -> tuple[AuditRecord, ...]:
        """Return the last records of this file and the one before; other lines are left out.

        Raise `OSError`.
        """
        records: list[AuditRecord] = []
        for path in (self.path + OLDER_SUFFIX, self.path):
            for line in _last_lines(path, max_bytes)[-count:]:
                try:
                    records.append(msgspec.json.decode(line, type=AuditRecord))
                except msgspec.MsgspecError:
                    continue
        return tuple(records[-count:])

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self.path, flags, FILE_MODE)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise durable.NotRegularFileError(errno.EINVAL, "not a regular file", self.path)
        return fd


class AuditTrail:
    """Collects records; `flush` hands them to the file's thread.

    `latest` may be called from any thread, everything else belongs to one.
    """

    def __init__(self, file: AuditFile | None = None, writer: StateWriter | None = None) -> None:
        """Without a file the latest records are in memory only."""
        self._latest: deque[AuditRecord] = deque(maxlen=MAX_AUDITS)
        self._file = file
        self._writer = writer
        self._pending: deque[AuditLine] = deque()
        self._in_flight: tuple[Future[None], int] | None = None  # with the number of its lines
        self._lost = 0  # since the last line that counts them
        self.lost_records = 0  # since the start
        self._changes: Counter[tuple[str, str]] = Counter()  # by owner and result
        self._refusals: Counter[tuple[str, str]] = Counter()  # by owner and errno
        self._retry_s = 0.0  # monotonic
        self._is_loaded = file is None
        self.problem = ""  # why the file is not written

    def extend(self, records: Iterable[AuditRecord]) -> None:
        """Add records."""
        for record in records:
            self.append(record)

    def append(self, record: AuditRecord) -> None:
        """Add a record."""
        self._latest.append(record)
        self._changes[record.owner, _result(record)] += 1
        if record.errno:
            name = errno.errorcode.get(record.errno, str(record.errno))
            self._refusals[record.owner, name] += 1
        if self._file is None:
            return
        if len(self._pending) >= MAX_PENDING:
            self._lost += 1
            self.lost_records += 1
        else:
            self._pending.append(record)

    def changes(self) -> tuple[tuple[str, str, int], ...]:
        """Return the numbers of changes by owner and result. For any thread."""
        return tuple((*key, count) for key, count in sorted(self._changes.copy().items()))

    def refusals(self) -> tuple[tuple[str, str, int], ...]:
        """Return the numbers of refused writes by owner and errno. For any thread."""
        return tuple((*key, count) for key, count in sorted(self._refusals.copy().items()))

    @property
    def is_pending(self) -> bool:
        """Return whether a record is not in the file yet."""
        return bool(self._pending)

    def latest(self) -> tuple[AuditRecord, ...]:
        """Return the latest records, oldest first. For any thread."""
        return tuple(self._latest.copy())

    def __iter__(self) -> Iterator[AuditRecord]:
        """Yield the latest records, oldest first. For any thread."""
        return iter(self.latest())

    def load(self) -> None:
        """Read the records of the agent before this one, once; a failure is only a problem."""
        if self._is_loaded or self._file is None or self._writer is None:
            return
        self._is_loaded, file = True, self._file
        try:
            earlier = self._writer.call(
                lambda: file.read_last(MAX_AUDITS, MAX_AUDITS * 512), file.path
            )
        except (OSError, ParseError) as error:
            self.problem = f"{file.path}: {error}"
            return
        room = MAX_AUDITS - len(self._latest)
        self._latest.extendleft(reversed(earlier[len(earlier) - min(room, len(earlier)) :]))

    def flush(self, now_s: float) -> None:
        """Hand what waits to the file's thread, unless that is still busy; never wait."""
        if self._in_flight is not None and not self._finish(now_s):
            return
        if not self._pending or self._file is None or self._writer is None or now_s < self._retry_s:
            return
        if self._lost:
            self._pending.append(LostRecords(lost=self._lost))
            self._lost = 0
        batch = tuple(islice(self._pending, MAX_BATCH))
        file = self._file
        try:
            future = self._writer.begin(lambda: file.append(b"".join(map(_line, batch))), file.path)
        except OSError as error:
            self.problem, self._retry_s = f"{file.path}: {error.strerror}", now_s + RETRY_S
            return
        self._in_flight = future, len(batch)

    def close(self, now_s: float) -> None:
        """Write what waits, as far as the file system answers within `CLOSE_S`."""
        until_s = time.monotonic() + CLOSE_S
        self.flush(now_s)
        while self._in_flight is not None and time.monotonic() < until_s:
            wait({self._in_flight[0]}, until_s - time.monotonic())
            self.flush(now_s)
        if self._writer is not None:
            self._writer.close()

    def _finish(self, now_s: float) -> bool:
        """Return whether the write in flight has ended; a failed one is made again later."""
        assert self._in_flight is not None  # noqa: S101 - for the type
        future, count = self._in_flight
        if not future.done():
            if self._writer is not None and self._file is not None and self._writer.is_late():
                self.problem = f"{self._file.path}: {NO_ANSWER}"
            return False
        self._in_flight, error = None, future.exception()
        if error is None:
            self.problem = ""
            for _ in range(count):
                self._pending.popleft()
            return True
        path = "" if self._file is None else self._file.path
        text = error.strerror if isinstance(error, OSError) else str(error)
        self.problem, self._retry_s = f"{path}: {text}", now_s + RETRY_S
        return True


def _last_lines(path: str, max_bytes: int) -> list[bytes]:
    try:
        with durable.open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            return file.read(max_bytes).splitlines()
    except FileNotFoundError:
        return []


def _result(record: AuditRecord) -> str:
    if record.planned:
        return "planned"
    if record.errno:
        return "refused"
    return record.restore or "written"


def _line(record: AuditLine) -> bytes:
    return msgspec.json.encode(record) + b"\n"
