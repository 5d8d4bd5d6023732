"""Writes state files on a thread of its own, so that a hanging file system delays no other thread.

The caller hands over the content and continues. The thread replaces the file atomically. One
content per file waits; a newer one replaces it. A failed write is repeated.
"""

from __future__ import annotations

import enum
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import msgspec

from agent import durable
from agent.errors import AgentError, ParseError

log = logging.getLogger(__name__)

FILE_MODE = 0o640
FOLDER_MODE = 0o750
MAX_STATE_FILES = 256  # files of one writer
MAX_PENDING_CALLS = 16  # calls that wait for the thread
RETRY_S = 1.0  # between two attempts to write a file
LATE_AFTER_S = 5.0  # a write that takes longer is reported as a hang
READ_DEADLINE_S = 2.0  # longest wait for a read at the start
CALL_DEADLINE_S = 0.5  # longest wait for any other call
NO_ANSWER = "the file system does not answer"
# why there is no folder for state
NO_STATE_FOLDER = "no node.state_dir"
RECORDED_HOST = "the host is a recording"

T = TypeVar("T")


class StateStatus(enum.Enum):
    """The result of reading a state file."""

    READ = "read"
    ABSENT = "absent"  # there is no file
    UNREADABLE = "unreadable"  # the file system refused the read, or did not answer
    DAMAGED = "damaged"  # too large, or not in the format of this version


class StoredState(msgspec.Struct, Generic[T], frozen=True):
    """The content of a state file, or the reason why there is none."""

    status: StateStatus
    value: T | None = None  # only of READ
    error: AgentError | OSError | None = None  # of UNREADABLE and DAMAGED
    rename_error: OSError | None = None  # why a damaged file was not renamed

    @property
    def reason(self) -> str:
        """Return the error as text; empty without one."""
        return _reason(self.error)

    @property
    def rename_reason(self) -> str:
        """Return as text why a damaged file was not renamed; empty if it was."""
        return _reason(self.rename_error)


def _reason(error: AgentError | OSError | None) -> str:
    if error is None:
        return ""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class StateFile:
    """One file of a `StateWriter`. Every method may be called from any thread."""

    def __init__(self, writer: StateWriter, path: str, mode: int) -> None:
        self.path = path
        self._writer = writer
        self._mode = mode
        self._pending: bytes | None = None  # content that waits for the thread
        self._pending_since_s = 0.0  # monotonic, since when a content waits or is written
        self._due_s = 0.0  # monotonic, not to be written before
        self._disk_content: bytes | None = None
        self._is_writing = False
        self._is_attempted = False  # the newest content, at least once
        self._error = ""  # of the last attempt

    def write(self, data: bytes) -> None:
        """Set the file's new content; returns at once."""
        with self._writer.condition:
            if not self._is_writing and self._pending is None:
                self._pending_since_s = time.monotonic()
            self._pending, self._is_attempted, self._due_s = data, False, 0.0
            self._writer.start()

    def save(self, data: bytes, deadline_s: float = CALL_DEADLINE_S) -> bool:
        """Set the new content, wait for one attempt, and return whether it is on the disk.

        While an earlier attempt hangs, it does not wait.
        """
        with self._writer.condition:
            waits = self._is_writing or self._pending is not None
            late = waits and time.monotonic() - self._pending_since_s > deadline_s
            self.write(data)
            return (
                self._writer.condition.wait_for(
                    lambda: self._is_attempted and not self._is_writing, 0.0 if late else deadline_s
                )
                and self._pending is None
            )

    def wait(self, deadline_s: float = CALL_DEADLINE_S) -> bool:
        """Wait until the newest content is on the disk; return whether it is."""
        with self._writer.condition:
            return self._writer.condition.wait_for(
                lambda: self._pending is None and not self._is_writing, deadline_s
            )

    @property
    def error(self) -> str:
        """Return why the newest content is not on the disk; empty if it is, or is being written."""
        with self._writer.condition:
            waits = self._is_writing or self._pending is not None
            if waits and time.monotonic() - self._pending_since_s > self._writer.late_after_s:
                return self._error or f"{self.path}: {NO_ANSWER}"
            return self._error

    def due_s(self) -> float | None:
        """Return when the waiting content is due; for the writer, which holds the lock."""
        return None if self._pending is None else self._due_s

    def write_pending(self) -> None:
        """Write the waiting content; for the writer's thread."""
        with self._writer.condition:
            data, self._pending = self._pending, None
            self._is_writing = True
        error = "" if data is None else self._replace_file(data)
        # the log comes before the outcome, for which others wait; only this thread sets `_error`
        if error and not self._error:
            log.error("state_file_not_written", extra={"error": error})
        elif self._error and not error:
            log.info("state_file_written_again", extra={"path": self.path})
        with self._writer.condition:
            self._is_attempted = self._pending is None
            if error:
                if self._pending is None and not self._writer.is_closing:
                    self._pending = data
                self._due_s = time.monotonic() + RETRY_S
            else:
                self._disk_content, self._due_s, self._pending_since_s = data, 0.0, time.monotonic()
            self._error = error
            self._is_writing = False

    def _replace_file(self, data: bytes) -> str:
        """Replace the file unless it holds the data; return the error, if there is one."""
        try:
            if data == self._disk_content and os.path.lexists(self.path):
                return ""
            os.makedirs(os.path.dirname(self.path), mode=FOLDER_MODE, exist_ok=True)
            durable.replace_file(self.path, data, self._mode)
        except OSError as error:
            return f"{self.path}: {error.strerror or error}"
        return ""


class StateWriter:
    """Owns the thread. It ends with the process: a thread that hangs in the kernel is not joined.

    Each file system that may hang independently has its own writer.
    """

    def __init__(self, name: str = "state files", late_s: float = LATE_AFTER_S) -> None:
        self.late_after_s = late_s
        self.condition = threading.Condition()
        self._since_s: float | None = None  # monotonic, when the work in progress began
        self._name = name
        self._files: dict[str, StateFile] = {}
        self._calls: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._thread: threading.Thread | None = None
        self.is_closing = False

    def file(self, path: str, mode: int = FILE_MODE) -> StateFile:
        """Return the file at a path; its folder is made with the first write."""
        with self.condition:
            if path not in self._files:
                if len(self._files) >= MAX_STATE_FILES:
                    raise ValueError(f"more than {MAX_STATE_FILES} state files")
                self._files[path] = StateFile(self, path, mode)
            return self._files[path]

    def read(self, path: str, limit: int, deadline_s: float = READ_DEADLINE_S) -> bytes | None:
        """Return at most `limit` + 1 bytes of a file; `None` if there is none.

        Raises `OSError`; its number is ETIMEDOUT if the file system does not answer.
        """
        return self.call(lambda: _read_or_none(path, limit), path, deadline_s)

    def load(
        self, path: str, limit: int, decode: Callable[[bytes], T], *, sets_aside: bool = True
    ) -> StoredState[T]:
        """Read and decode a state file; wait for it at most as long as `read`.

        `decode` raises an `AgentError` for content that it cannot use, and `limit` is in bytes. A
        file with such content, or a larger one, is renamed to `.bad` if `sets_aside`.
        """
        try:
            data = self.read(path, limit)
            if data is None:
                return StoredState(StateStatus.ABSENT)
            if len(data) > limit:
                raise ParseError(f"state file: larger than {limit} bytes", path)
            return StoredState(StateStatus.READ, decode(data))
        except AgentError as error:
            failure = self._set_aside(path) if sets_aside else None
            return StoredState(StateStatus.DAMAGED, error=error, rename_error=failure)
        except OSError as error:
            return StoredState(StateStatus.UNREADABLE, error=error)

    def _set_aside(self, path: str) -> OSError | None:
        """Rename a damaged file to `.bad`; return the error if that fails."""
        try:
            self.call(lambda: os.replace(path, f"{path}.bad"), path)
        except OSError as error:
            return error
        return None

    def call(self, work: Callable[[], T], path: str, deadline_s: float = CALL_DEADLINE_S) -> T:
        """Run work for a path on the thread, and return its result.

        Raises the exception of the work, or an `OSError` with ETIMEDOUT if it takes too long: work
        that has not begun by then is cancelled.
        """
        if self.is_late(deadline_s):
            raise OSError(errno.ETIMEDOUT, NO_ANSWER, path)
        future = self.begin(work, path)
        try:
            return future.result(deadline_s)
        except TimeoutError as error:
            if future.done() and not future.cancelled():
                raise  # of the work itself
            future.cancel()
            raise OSError(errno.ETIMEDOUT, NO_ANSWER, path) from error

    def is_late(self, deadline_s: float = CALL_DEADLINE_S) -> bool:
        """Return whether the work in progress has lasted longer than this."""
        with self.condition:
            since_s = self._since_s
        return since_s is not None and time.monotonic() - since_s > deadline_s

    def begin(self, work: Callable[[], T], path: str) -> Future[T]:
        """Run work for a path on the thread, without waiting for it.

        Raises an `OSError` with ETIMEDOUT if too many calls wait already. Work that is cancelled
        before the thread begins it is not done.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        with self.condition:
            waiting = [call for call in self._calls if not call[0].cancelled()]
            self._calls = deque(waiting)
            if len(self._calls) >= MAX_PENDING_CALLS:
                raise OSError(errno.ETIMEDOUT, NO_ANSWER, path)
            self._calls.append((future, run))
            self.start()
        return future

    def start(self) -> None:
        """Wake the thread; for files, which hold the lock."""
        if self._thread is None and not self.is_closing:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self.condition.notify_all()

    def close(self, deadline_s: float = CALL_DEADLINE_S) -> bool:
        """Write all waiting contents and end the thread; return whether it ended in time."""
        with self.condition:
            self.is_closing = True
            self.condition.notify_all()
        if self._thread is not None:
            self._thread.join(deadline_s)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self.condition:
                work = self._work()
                while work is None:
                    if self.is_closing:
                        return
                    self.condition.wait(self._pause_s())
                    work = self._work()
                self._since_s = time.monotonic()
            work()
            with self.condition:
                self._since_s = None
                self.condition.notify_all()

    def _work(self) -> Callable[[], None] | None:
        """Return the next piece of work.

        A writer that is closing writes each file without delay.
        """
        if self._calls:
            return self._calls.popleft()[1]
        now_s = time.monotonic()
        for file in self._files.values():
            due_s = file.due_s()
            if due_s is not None and (self.is_closing or due_s <= now_s):
                return file.write_pending
        return None

    def _pause_s(self) -> float | None:
        """Return the time until the next attempt to write a file."""
        due_s = [due_s for file in self._files.values() if (due_s := file.due_s()) is not None]
        return max(0.0, min(due_s) - time.monotonic()) if due_s else None


def _read_or_none(path: str, limit: int) -> bytes | None:
    try:
        return durable.read_file(path, limit + 1)
    except FileNotFoundError:
        return None
