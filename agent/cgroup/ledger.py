"""The ledger of changes: entries with checksums in a file that is written before each change.

The file is synced when an original value is added to it. All other lines describe values that end
with the kernel that has them: no process that comes after them needs more than the page cache.
"""

from __future__ import annotations

import errno
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from agent.durable import read_file, replace_file
from agent.errors import AgentError
from agent.state_writer import CALL_DEADLINE_S, NO_ANSWER, READ_DEADLINE_S, StateWriter
from agent.wire_formats.json_values import JSON_ERRORS

VERSION = 1
LEDGER_FILE = "ledger.log"  # in `node.state_dir`
OPERATIONS = ("set", "undone", "gone")
# bytes; a longer line is not the agent's: a value has up to `LARGE_READ` bytes
MAX_LINE = 64 * 1024
MAX_NEW_VALUES = 8  # that are added to an entry at once: the last one, and intermediate ones
RECENT_VALUES = 4  # of one entry; the next values that are added leave them in it
MAX_OWN_VALUES = RECENT_VALUES + MAX_NEW_VALUES

# hierarchies of entries about processes instead of files
OOM_HIERARCHY, CORE_HIERARCHY = ("oom", "core")

# of resctrl groups, which did not exist before; `path` is the path of their folder
RESCTRL_HIERARCHY, RESCTRL_KEY = "resctrl", "group"
GROUP_ABSENT, GROUP_PRESENT = "absent", "present"

SYSCTL_HIERARCHY = "sysctl"  # of the kernel's switches; `path` is the path of their file

# the kernel's switches that the agent writes: entries have no other file below /proc
CORE_SWITCH = "/proc/sys/kernel/sched_core"
IDENTITY_SWITCH = "/proc/sys/kernel/sched_group_identity_enabled"
SWITCHES = (CORE_SWITCH, IDENTITY_SWITCH)

_LineT = TypeVar("_LineT")

_LINE_START = re.compile(rb'\{"crc":([0-9]{1,10}),')


class LedgerEntry(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, rename={"own_values": "ours"}
):
    """The value of one file before the agent's first write, and the values that the agent wrote.

    `hierarchy` is version 1's controller, `v2`, `oom`, `core`, `sysctl` or `resctrl`; `inode` is
    that of the directory, so that a new group of the same name is not mistaken for the old one.
    """

    hierarchy: str
    path: str  # of the cgroup
    inode: int
    key: str
    owner: str  # the hook
    original: str
    own_values: tuple[str, ...] = ()  # also values between two desired ones

    @property
    def id(self) -> tuple[str, str, str]:
        """Return the key of the entry."""
        return self.hierarchy, self.path, self.key

    def with_own_values(
        self, texts: Sequence[str], owner: str = "", in_force: str | None = None
    ) -> LedgerEntry:
        """Return the entry with these values, at most `MAX_NEW_VALUES`; a new owner wrote them.

        It is the same entry if they are among its recent values: a strategy that goes back and
        forth between a few values adds nothing to the ledger. Of the older values the entry has as
        many as `MAX_OWN_VALUES` allows, always `in_force`: a value of the agent that the file has
        until the write.
        """
        if owner in ("", self.owner) and {*texts} <= {*self.own_values[-RECENT_VALUES:]}:
            return self
        new = texts if in_force is None or in_force in texts else (in_force, *texts)
        older = [text for text in self.own_values if text not in new]
        own_values = (*older, *new)[-MAX_OWN_VALUES:]
        return msgspec.structs.replace(self, owner=owner or self.owner, own_values=own_values)


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line: an entry from now on, or (`undone`, `gone`) the end of an entry."""

    v: int
    boot: str
    seq: int
    op: str  # set, undone, gone
    entry: LedgerEntry


class NewerLedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a newer version that this version cannot read; the ledger keeps it unchanged."""

    boot: str
    data: bytes  # without the newline


class _LineHeader(msgspec.Struct, frozen=True):
    """The fields that the lines of every version have."""

    v: int
    boot: str = ""


_encoder = msgspec.json.Encoder()

_decoder = msgspec.json.Decoder(LedgerLine)

_head_decoder = msgspec.json.Decoder(_LineHeader)


def encode_line(line: LedgerLine) -> bytes:
    """Return the line with its checksum and newline."""
    body = _encoder.encode(line)
    return b'{"crc":%d,%b\n' % (zlib.crc32(body), body[1:])


def decode_line(data: bytes) -> LedgerLine | NewerLedgerLine | None:
    """Parse a line without its newline; `None` if it is damaged or not the agent's.

    A line of a newer version is read as far as this version has its fields, so that a node can be
    restored after its agent was rolled back.
    """
    match = _LINE_START.match(data)
    if match is None or len(data) > MAX_LINE:
        return None
    body = b"{" + data[match.end() :]
    if zlib.crc32(body) != int(match[1]):
        return None
    line = _decode_or_none(_decoder, body)
    if (
        line is not None
        and line.v >= VERSION
        and line.op in OPERATIONS
        and _is_plain_path(line.entry.path)
    ):
        return line
    header = _decode_or_none(_head_decoder, body)
    if header is not None and header.v > VERSION:
        return NewerLedgerLine(boot=header.boot, data=data)
    return None


def _decode_or_none(decoder: msgspec.json.Decoder[_LineT], body: bytes) -> _LineT | None:
    try:
        return decoder.decode(body)
    # UnicodeDecodeError: invalid UTF-8; RecursionError: thousands of nested lists
    except JSON_ERRORS:
        return None


def _is_plain_path(path: str) -> bool:
    """Return whether a path is absolute, stays below its mount, and can be opened."""
    return path.startswith("/") and ".." not in path.split("/") and "\0" not in path


LEDGER_MODE = 0o600
FOLDER_MODE = 0o750
MAX_LEDGER_BYTES = 64 << 20  # a larger file is not the agent's

# ratio of lines to entries, and the number of lines, above which the file is compacted
COMPACT_FACTOR, COMPACT_LEAST = 4, 256
# ratio of its size to that of the last compacted file, and the size, above which it is, too
COMPACT_GROWTH, COMPACT_BYTES = 2, 16 << 20
MAX_PENDING = 4096  # lines in memory while the disk accepts none
MAX_LINES = 1 << 30  # more than the file can have: it must be rewritten
QUARANTINE = ".bad"

EntryId = tuple[str, str, str]

_T = TypeVar("_T")


class LedgerError(AgentError):
    """The ledger cannot be read or written; has the path and the cause."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"ledger {path}: {error.strerror or error}")
        self.errno = error.errno or 0

    @property
    def is_hanging(self) -> bool:
        """Return whether the file system has not answered, so that the outcome is unknown."""
        return self.errno == errno.ETIMEDOUT


class _LedgerWrite(msgspec.Struct, frozen=True):
    """A write in progress, and the state of the file after it."""

    future: Future[None]
    begun_s: float  # monotonic
    pending: int  # number of pending lines in it
    lines: int  # of the file
    size: int  # of the file


class ChangeLedger:
    """The original values of changed files. For one thread.

    Entries of an earlier boot are dropped, because its cgroups do not exist any more. Without a
    path the ledger is in memory only, and changes can be undone until the process ends. With a
    `writer`, which no other file uses, its thread makes the calls that may hang; each method waits
    for it for a limited time.
    """

    def __init__(self, path: str | None, boot_id: str, writer: StateWriter | None = None) -> None:
        self.path = path
        self._writer = writer
        self._write: _LedgerWrite | None = None  # begun, and not known to have ended
        self._is_pending_cleared = False  # pending lines were dropped after that write began
        self._read_error = OSError(errno.EIO, "it could not be read")
        self.entries: dict[EntryId, LedgerEntry] = {}
        self.problem = ""  # of the file that was read, for people
        # of a newer version, which needs them
        self.newer_lines: list[NewerLedgerLine] = []
        self._is_loaded = path is None
        self._boot = boot_id
        self._pending: list[LedgerLine] = []
        self._is_original_pending = False  # a line has an original value that is not on the disk
        self._seq = 0
        self.revision = 0  # of the entries: another one after each change
        self._lines = 0
        self._size = 0
        self._compacted_size = 0  # of the file when it was compacted last; 0: not known

    def load(self) -> None:
        """Read the file of an earlier run. Raises `LedgerError` if the disk fails.

        An invalid last line is that of a run that was killed: it is cut off. An invalid line
        elsewhere is damage: the file is copied aside, and its valid lines go into a new file. The
        old file stays until the new one is complete, so that a run that is killed loses nothing.
        """
        if self.path is None:
            return
        try:
            data = self._call(partial(_read, self.path))
            lines, good, damaged = self._parse(data)
            if damaged:
                self._call(partial(replace_file, self.path + QUARANTINE, data, LEDGER_MODE))
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                self._read_error = error
            raise LedgerError(self.path, error) from error
        self._apply_lines(lines)
        if damaged:
            self.problem = f"damaged, put aside as {self.path}{QUARANTINE}"
            self._rewrite()
        else:
            self._lines, self._size = len(lines), good

    def _apply_lines(self, lines: Iterable[LedgerLine | NewerLedgerLine]) -> None:
        """Apply the lines of the file, then the entries that were added before it could be read."""
        early_entries, self.entries = self.entries, {}
        self.revision += 1
        self._pending.clear()
        for line in lines:
            if isinstance(line, NewerLedgerLine):
                if line.boot in ("", self._boot):
                    self.newer_lines.append(line)
            else:
                self._apply_line(line)
        self._is_loaded = True
        for entry in early_entries.values():
            if entry.id not in self.entries:
                self.set(entry)

    def set(self, entry: LedgerEntry) -> None:
        """Add or replace an entry; the next flush writes it."""
        entry_id = entry.id
        before = self.entries.get(entry_id)
        if before != entry:
            if before is None or before.original != entry.original or before.inode != entry.inode:
                self._is_original_pending = True
            self._add("set", entry)
            self.entries[entry_id] = entry

    def drop(self, entry: LedgerEntry, op: str) -> None:
        """Remove an entry; the next flush writes that; `op` is `undone` or `gone`."""
        if self.entries.pop(entry.id, None) is not None:
            self._add(op, entry)

    def flush(self) -> None:
        """Write all changes; original values are on the disk then. Raises `LedgerError`.

        One sync is made for all of them. A file that has become much larger than its entries is
        written anew, always before it is larger than `load` reads. Lines that could not be written
        stay for the next flush. A file that could not be read is never overwritten.
        """
        self._finish()
        if self.path is None or not (self._pending or self._lines == MAX_LINES):
            self._pending.clear()
            return
        if not self._is_loaded:
            raise self._error(self._read_error)
        lines = [encode_line(line) for line in self._pending]
        data = b"".join(lines)
        if self._needs_rewrite(len(lines), len(data)):
            self._rewrite()
            return
        work = partial(_append, self.path, self._size, data, sync=self._is_original_pending)
        self._begin(work, self._lines + len(lines), self._size + len(data))
        self._finish()

    def remove_if_empty(self) -> None:
        """Remove the file if nothing is left to undo, by any version. Raises `LedgerError`."""
        self.flush()
        if self.path is None or self.entries or self.newer_lines:
            return
        try:
            self._call(partial(Path(self.path).unlink, missing_ok=True))
        except OSError as error:
            raise LedgerError(self.path, error) from error
        self._lines = self._size = self._compacted_size = 0

    def _add(self, op: str, entry: LedgerEntry) -> None:
        self._seq += 1
        self.revision += 1
        self._pending.append(
            LedgerLine(v=VERSION, boot=self._boot, seq=self._seq, op=op, entry=entry)
        )

    def _call(self, work: Callable[[], _T]) -> _T:
        if self._writer is None:
            return work()
        return self._writer.call(work, str(self.path), READ_DEADLINE_S)

    def _begin(self, work: Callable[[], None], lines: int, size: int) -> None:
        """Begin a write of all pending lines."""
        try:
            future = _run_now(work) if self._writer is None else self._writer.begin(work, "")
        except OSError as error:
            raise self._error(error) from error
        self._is_pending_cleared = False
        self._write = _LedgerWrite(future, time.monotonic(), len(self._pending), lines, size)

    def _finish(self) -> None:
        """Take the result of the write in progress; wait for it for `CALL_DEADLINE_S` at most."""
        write = self._write
        if write is None:
            return
        remaining_s = max(0.0, write.begun_s + CALL_DEADLINE_S - time.monotonic())
        if not wait((write.future,), remaining_s).done:
            raise self._error(OSError(errno.ETIMEDOUT, NO_ANSWER))
        self._write = None
        error = write.future.exception()
        if isinstance(error, OSError):
            raise self._error(error) from error
        if error is not None:
            raise error
        if not self._is_pending_cleared:
            del self._pending[: write.pending]
            self._lines, self._size = write.lines, write.size
            if not self._pending:
                self._is_original_pending = False

    def _error(self, error: OSError) -> LedgerError:
        self._limit_pending()
        return LedgerError(str(self.path), error)

    def _limit_pending(self) -> None:
        """Limit the pending lines while the disk accepts none: a rewrite has all entries."""
        if len(self._pending) > MAX_PENDING:
            self._pending.clear()
            self._is_pending_cleared, self._lines = True, MAX_LINES

    def _apply_line(self, line: LedgerLine) -> None:
        self._seq = max(self._seq, line.seq)
        if line.boot != self._boot:
            return
        if line.op == "set":
            self.entries[line.entry.id] = line.entry
        else:
            self.entries.pop(line.entry.id, None)

    def _parse(self, data: bytes) -> tuple[list[LedgerLine | NewerLedgerLine], int, bool]:
        """Return the valid lines, the end of the last of them, and whether the file is damaged.

        The file is damaged if more than its last line is invalid.
        """
        if len(data) > MAX_LEDGER_BYTES:
            return [], 0, True
        lines: list[LedgerLine | NewerLedgerLine] = []
        at = end = invalid_count = 0
        damaged = False
        # after the last newline is nothing, or an incomplete line
        for raw in data.split(b"\n")[:-1]:
            at += len(raw) + 1
            line = decode_line(raw)
            if line is None:
                invalid_count += 1
                continue
            lines.append(line)
            end, damaged, invalid_count = at, damaged or invalid_count > 0, 0
        return lines, end, damaged or invalid_count > 1 or (invalid_count > 0 and not lines)

    def _needs_rewrite(self, more_lines: int, more_bytes: int) -> bool:
        lines, size = self._lines + more_lines, self._size + more_bytes
        if lines >= MAX_LINES or size > MAX_LEDGER_BYTES:
            return True
        if size > COMPACT_BYTES and size > COMPACT_GROWTH * self._compacted_size:
            return True
        return lines > COMPACT_LEAST and lines > COMPACT_FACTOR * (
            len(self.entries) + len(self.newer_lines)
        )

    def _rewrite(self) -> None:
        """Replace the file by one with the newer lines and the entries only.

        Newer lines come first, so that an entry of this version wins over an older one in them.
        """
        if self.path is None:
            return
        newer = b"".join(line.data + b"\n" for line in self.newer_lines)
        data = newer + b"".join(self._as_lines(self.entries.values()))
        if len(data) > MAX_LEDGER_BYTES:  # it could not be read again
            message = f"the original values are more than {MAX_LEDGER_BYTES >> 20} MiB"
            raise self._error(OSError(errno.EFBIG, message))
        self._compacted_size = len(data)
        work = partial(replace_file, self.path, data, LEDGER_MODE)
        self._begin(work, data.count(b"\n"), len(data))
        self._finish()

    def _as_lines(self, entries: Iterable[LedgerEntry]) -> Iterable[bytes]:
        for entry in entries:
            self._seq += 1
            yield encode_line(
                LedgerLine(v=VERSION, boot=self._boot, seq=self._seq, op="set", entry=entry)
            )


def _run_now(work: Callable[[], None]) -> Future[None]:
    """Call `work` now, and return its result as a future."""
    future: Future[None] = Future()
    try:
        work()
    except OSError as error:
        future.set_exception(error)
    else:
        future.set_result(None)
    return future


def _read(path: str) -> bytes:
    try:
        return read_file(path, MAX_LEDGER_BYTES + 1, os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""


def _append(path: str, size: int, data: bytes, *, sync: bool) -> None:
    """Append after the last valid line, and sync if asked; on failure leave the file as it was."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    if size == 0:
        Path(path).parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    fd = os.open(path, flags, LEDGER_MODE)
    try:
        try:
            os.ftruncate(fd, size)  # an incomplete line
            _write_all(fd, data, size)
            if sync:
                os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
        if size == 0:  # a new file name is an entry of the folder
            _sync_folder(path)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes, at: int) -> None:
    remaining = memoryview(data)
    while remaining:
        written_bytes = os.pwrite(fd, remaining, at)
        remaining, at = remaining[written_bytes:], at + written_bytes


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
