"""Reads new lines of this boot's kernel log, which drivers write even while they hang."""

from __future__ import annotations

import errno
import os
import re
import stat

import msgspec

from agent.errors import HostFileError, NotSupported
from agent.host.files import LiveHostFiles
from agent.snapshot.host_files import HostFiles

PATH = "/dev/kmsg"
MAX_RECORD = 16 * 1024  # bytes; the kernel refuses a read with a smaller buffer than a record
MAX_RECORDS = 1024  # read by one call of `read`
MAX_TEXT = 2048  # characters of one record that are kept

_HEADER = re.compile(rb"([0-9]{1,10}),([0-9]{1,20}),([0-9]{1,20}),[^;\n]*;(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


class KernelLogRecord(msgspec.Struct, frozen=True):
    """One line of the log. `stamp_us` is the kernel's monotonic clock, which starts with a boot."""

    sequence: int
    stamp_us: int
    text: str


def parse_record(line: bytes) -> KernelLogRecord | None:
    """Parse `priority,sequence,stamp,flags;text`; `None` for continuations and other facilities.

    The kernel gives records of user space another facility than its own 0, so that a program cannot
    make a card fail by writing a line.
    """
    match = _HEADER.fullmatch(line)
    if match is None or int(match[1]) >> 3 != 0:
        return None
    text = match[4].decode("utf-8", "replace")[:MAX_TEXT]
    return KernelLogRecord(
        sequence=int(match[2]),
        stamp_us=int(match[3]),
        text=_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text),
    )


class KernelLog:
    """An open log; each read continues after the last one, the first one at the oldest record.

    It belongs to one thread. `lost_count` counts records that were overwritten before they were
    read.
    """

    def __init__(self, host: HostFiles) -> None:
        """Open the log; `NotSupported` on a recorded host, `HostFileError` if it is refused."""
        if not isinstance(host, LiveHostFiles):
            raise NotSupported(f"{PATH}: a recorded host has no log that goes on")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._fd = os.open(host.path(PATH), flags)
        except OSError as error:
            raise HostFileError(PATH, error.errno or 0) from error
        self._remainder = b""
        self.is_drained = False  # the last read returned all records
        # poll() works for a device; a file or pipe would always be readable
        self.is_pollable = stat.S_ISCHR(os.fstat(self._fd).st_mode)

    def fileno(self) -> int:
        """Return the descriptor, which can be polled if `is_pollable`."""
        return self._fd

    def read(self, max_reads: int = MAX_RECORDS) -> tuple[KernelLogRecord, ...]:
        """Return the kernel's records since the last read, from at most `most` reads.

        Never waits; raises `HostFileError` if the log cannot be read any more.
        """
        records: list[KernelLogRecord] = []
        self.is_drained = False
        for _ in range(max_reads):
            data = self._chunk()
            if not data:
                self.is_drained = True
                break
            lines = (self._remainder + data).split(b"\n")
            self._remainder = lines.pop()[:MAX_RECORD]
            records += [record for line in lines if (record := parse_record(line)) is not None]
        return tuple(records)

    def _chunk(self) -> bytes:
        for _ in range(2):
            try:
                return os.read(self._fd, MAX_RECORD)
            except BlockingIOError:
                return b""
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise HostFileError(PATH, error.errno or 0) from error
                # records were overwritten: the next read starts at the oldest one
        return b""

    def close(self) -> None:
        """Close the log."""
        os.close(self._fd)
