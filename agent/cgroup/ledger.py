"""The ledger of changes: entries with checksums, and the file that is synced before each write."""

from __future__ import annotations

import errno
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable
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

OPERATIONS = ("set", "undone", "gone")

MAX_LINE = 16 * 1024  # bytes; a longer one is not ours

MAX_OWN_VALUES = 8  # values of ours that are told from foreign ones: the last, and those on the way

OOM_HIERARCHY, CORE_HIERARCHY = (
    "oom",
    "core",
)  # hierarchies of entries about processes instead of files

SYSCTL_HIERARCHY = "sysctl"  # of the kernel's switches, whose path is that of the file

# the kernel's switches that the agent writes: entries name no other file below /proc
CORE_SWITCH = "/proc/sys/kernel/sched_core"

IDENTITY_SWITCH = "/proc/sys/kernel/sched_group_identity_enabled"

SWITCHES = (CORE_SWITCH, IDENTITY_SWITCH)

_LineT = TypeVar("_LineT")

_LINE_START = re.compile(rb'\{"crc":([0-9]{1,10}),')


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What stood in one file before our first write, and what we wrote.

    `hierarchy` is version 1's controller, `v2`, `oom`, `core` or `sysctl`;
    `inode` is the directory's, so that a new group of the same name is not taken for the old one.
    """

    hierarchy: str
    path: str  # of the cgroup
    inode: int
    key: str
    owner: str  # the hook
    original: str
    ours: tuple[str, ...] = ()  # the newest last; also those between two wanted ones

    @property
    def id(self) -> tuple[str, str, str]:
        """Return what there is one entry of."""
        return self.hierarchy, self.path, self.key


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line: an entry as it is from now on, or (`undone`, `gone`) that it is no more."""

    v: int
    boot: str
    seq: int
    op: str  # set, undone, gone
    entry: LedgerEntry


class NewerLedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a newer version that this version cannot read; the ledger keeps it as it is."""

    boot: str
    data: bytes  # without its end


class _LineHeader(msgspec.Struct, frozen=True):
    """The fields that the lines of every version have."""

    v: int
    boot: str = ""


_encoder = msgspec.json.Encoder()

_decoder = msgspec.json.Decoder(LedgerLine)

_head_decoder = msgspec.json.Decoder(_LineHeader)


def encode_line(line: LedgerLine) -> bytes:
    """Return the line with its checksum and its end."""
    body = _encoder.encode(line)
    return b'{"crc":%d,%b\n' % (zlib.crc32(body), body[1:])


def decode_line(data: bytes) -> LedgerLine | NewerLedgerLine | None:
    """Return what a line says, without its end; `None` for one that is damaged, or not ours.

    Of a newer version's line the fields that this version has are read, so that a node can be
    restored after its agent was rolled back.
    """
    head = _LINE_START.match(data)
    if head is None or len(data) > MAX_LINE:
        return None
    body = b"{" + data[head.end() :]
    if zlib.crc32(body) != int(head[1]):
        return None
    line = _decode_or_none(_decoder, body)
    if (
        line is not None
        and line.v >= VERSION
        and line.op in OPERATIONS
        and _is_plain_path(line.entry.path)
    ):
        return line
    version = _decode_or_none(_head_decoder, body)
    if version is not None and version.v > VERSION:
        return NewerLedgerLine(boot=version.boot, data=data)
    return None


def _decode_or_none(decoder: msgspec.json.Decoder[_LineT], body: bytes) -> _LineT | None:
    try:
        return decoder.decode(body)
    # UnicodeDecodeError: bytes that are no UTF-8; RecursionError: thousands of nested lists
    except JSON_ERRORS:
        return None


def _is_plain_path(path: str) -> bool:
    """Return whether a path is absolute, stays below its mount, and can be opened."""
    return path.startswith("/") and ".." not in path.split("/") and "\0" not in path


LEDGER_MODE = 0o600

FOLDER_MODE = 0o750

MAX_LEDGER_BYTES = 64 << 20  # a larger file is not ours

COMPACT_FACTOR, COMPACT_LEAST = 4, 256  # lines to entries; below the least nothing is compacted

MAX_PENDING = 4096  # lines kept for a disk that takes none

MAX_LINES = 1 << 30  # more than the file can have: rewrite it whatever it has

QUARANTINE = ".bad"

EntryId = tuple[str, str, str]

_T = TypeVar("_T")


class LedgerError(AgentError):
    """The ledger cannot be read or written; names the path and the cause."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"ledger {path}: {error.strerror or error}")
        self.errno = error.errno or 0

    @property
    def is_hanging(self) -> bool:
        """Return whether the file system has not answered, so that the outcome is not known."""
        return self.errno == errno.ETIMEDOUT


class _LedgerWrite(msgspec.Struct, frozen=True):
    """A write that was begun, and the state of the file after it."""

    future: Future[None]
    begun_s: float  # monotonic
    pending: int  # how many of the pending lines it writes
    lines: int  # of the file
    size: int  # of the file


class ChangeLedger:
    """What was found before our first writes. Not for two threads.

    Entries of an earlier boot are dropped, for its cgroups are gone. Without a path everything is
    kept in memory only: undoing works until the process ends.

    With a `writer`, which no other file uses, its thread makes the calls that may hang; each
    method waits for it for a limited time.
    """

    def __init__(self, path: str | None, boot_id: str, writer: StateWriter | None = None) -> None:
        self.path = path
        self._writer = writer
        self._write: _LedgerWrite | None = None  # begun, and not known to have ended
        self._cleared = False  # pending lines were dropped after that write was begun
        self._unread = OSError(errno.EIO, "it could not be read")
        self.entries: dict[EntryId, LedgerEntry] = {}
        self.problem = ""  # what was found wrong with the file, for people
        self.newer_lines: list[
            NewerLedgerLine
        ] = []  # of a newer version: kept in the file for that version
        self._loaded = path is None
        self._boot = boot_id
        self._pending: list[LedgerLine] = []
        self._seq = 0
        self._lines = 0
        self._size = 0

    def load(self) -> None:
        """Read what an earlier run left. Raise `LedgerError` if the disk does not let us.

        A bad last line is that of a run that was killed: it is cut off. A bad line elsewhere is
        damage: the file is put aside whole, and what is readable of it goes on in a new one. It
        stays where it is until that one is there, so that a run that is killed loses nothing.
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
                self._unread = error
            raise LedgerError(self.path, error) from error
        self._take_all(lines)
        if damaged:
            self.problem = f"damaged, put aside as {self.path}{QUARANTINE}"
            self._rewrite()
        else:
            self._lines, self._size = len(lines), good

    def _take_all(self, lines: Iterable[LedgerLine | NewerLedgerLine]) -> None:
        """Take the lines of the file, then the entries that were added before it could be read."""
        added, self.entries = self.entries, {}
        self._pending.clear()
        for line in lines:
            if isinstance(line, NewerLedgerLine):
                if line.boot in ("", self._boot):
                    self.newer_lines.append(line)
            else:
                self._take(line)
        self._loaded = True
        for entry in added.values():
            if entry.id not in self.entries:
                self.set(entry)

    def set(self, entry: LedgerEntry) -> None:
        """Have an entry from the next flush on; one that is there is replaced."""
        entry = LedgerEntry(
            hierarchy=entry.hierarchy,
            path=entry.path,
            inode=entry.inode,
            key=entry.key,
            owner=entry.owner,
            original=entry.original,
            ours=tuple(dict.fromkeys(reversed(entry.ours)))[:MAX_OWN_VALUES][::-1],
        )
        if self.entries.get(entry.id) != entry:
            self._add("set", entry)
            self.entries[entry.id] = entry

    def drop(self, entry: LedgerEntry, op: str) -> None:
        """Have no such entry from the next flush on; `op` is `undone` or `gone`."""
        if self.entries.pop(entry.id, None) is not None:
            self._add(op, entry)

    def flush(self) -> None:
        """Have everything so far on the disk, with one sync. Raise `LedgerError` if it is not.

        What could not be written stays to be written by the next flush. Nothing is ever written
        over a file that could not be read.
        """
        self._finish()
        if self.path is None or not (self._pending or self._lines == MAX_LINES):
            self._pending.clear()
            return
        if not self._loaded:
            raise self._failed(self._unread)
        lines = [encode_line(line) for line in self._pending]
        if self._too_long(len(lines)):
            self._rewrite()
            return
        data = b"".join(lines)
        work = partial(_append, self.path, self._size, data)
        self._begin(work, self._lines + len(lines), self._size + len(data))
        self._finish()

    def remove_if_empty(self) -> None:
        """Remove the file when nothing is left to undo, by any version. Raise `LedgerError`."""
        self.flush()
        if self.path is None or self.entries or self.newer_lines:
            return
        try:
            self._call(partial(Path(self.path).unlink, missing_ok=True))
        except OSError as error:
            raise LedgerError(self.path, error) from error
        self._lines = self._size = 0

    def _add(self, op: str, entry: LedgerEntry) -> None:
        self._seq += 1
        self._pending.append(
            LedgerLine(v=VERSION, boot=self._boot, seq=self._seq, op=op, entry=entry)
        )

    def _call(self, work: Callable[[], _T]) -> _T:
        if self._writer is None:
            return work()
        return self._writer.call(work, str(self.path), READ_DEADLINE_S)

    def _begin(self, work: Callable[[], None], lines: int, size: int) -> None:
        """Begin a write that has all pending lines in it."""
        try:
            future = _run_now(work) if self._writer is None else self._writer.begin(work, "")
        except OSError as error:
            raise self._failed(error) from error
        self._cleared = False
        self._write = _LedgerWrite(future, time.monotonic(), len(self._pending), lines, size)

    def _finish(self) -> None:
        """Take the result of the write that was begun; wait for it for `CALL_S` at most."""
        write = self._write
        if write is None:
            return
        left_s = max(0.0, write.begun_s + CALL_DEADLINE_S - time.monotonic())
        if not wait((write.future,), left_s).done:
            raise self._failed(OSError(errno.ETIMEDOUT, NO_ANSWER))
        self._write = None
        error = write.future.exception()
        if isinstance(error, OSError):
            raise self._failed(error) from error
        if error is not None:
            raise error
        if not self._cleared:
            del self._pending[: write.pending]
            self._lines, self._size = write.lines, write.size

    def _failed(self, error: OSError) -> LedgerError:
        self._bound()
        return LedgerError(str(self.path), error)

    def _bound(self) -> None:
        """Keep no more lines than that for a disk that takes none: a rewrite has all entries."""
        if len(self._pending) > MAX_PENDING:
            self._pending.clear()
            self._cleared, self._lines = True, MAX_LINES

    def _take(self, line: LedgerLine) -> None:
        self._seq = max(self._seq, line.seq)
        if line.boot != self._boot:
            return
        if line.op == "set":
            self.entries[line.entry.id] = line.entry
        else:
            self.entries.pop(line.entry.id, None)

    def _parse(self, data: bytes) -> tuple[list[LedgerLine | NewerLedgerLine], int, bool]:
        """Return the good lines, where the last of them ends, and whether the file is damaged.

        It is where more is bad than the last line.
        """
        if len(data) > MAX_LEDGER_BYTES:
            return [], 0, True
        lines: list[LedgerLine | NewerLedgerLine] = []
        at = good = bad = 0
        damaged = False
        for raw in data.split(b"\n")[:-1]:  # behind the last end is nothing, or a line cut short
            at += len(raw) + 1
            line = decode_line(raw)
            if line is None:
                bad += 1
                continue
            lines.append(line)
            good, damaged, bad = at, damaged or bad > 0, 0
        return lines, good, damaged or bad > 1 or (bad > 0 and not lines)

    def _too_long(self, more: int = 0) -> bool:
        lines = self._lines + more
        if lines >= MAX_LINES:
            return True
        return lines > COMPACT_LEAST and lines > COMPACT_FACTOR * (
            len(self.entries) + len(self.newer_lines)
        )

    def _rewrite(self) -> None:
        """Replace the file by one that has newer lines, the entries, and nothing else.

        Newer lines come first, so that an entry of this version wins over an older one in them.
        """
        if self.path is None:
            return
        newer = b"".join(line.data + b"\n" for line in self.newer_lines)
        data = newer + b"".join(self._as_lines(self.entries.values()))
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
    """Do a piece of work now, and return its result."""
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


def _append(path: str, size: int, data: bytes) -> None:
    """Write behind the last good line, and have it on the disk; else leave the file as it was."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    if size == 0:
        Path(path).parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    fd = os.open(path, flags, LEDGER_MODE)
    try:
        try:
            os.ftruncate(fd, size)  # a line that was cut short
            _write_all(fd, data, size)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
        if size == 0:  # the name is new, and is the folder's
            _sync_folder(path)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(fd, left, at)
        left, at = left[done:], at + done


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
