"""Reads new lines of the kernel log of this boot, which drivers write even while they hang."""

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
MAX_RECORD = 16 * 1024  # bytes; the kernel refuses a read with less room than a record needs
MAX_RECORDS = 1024  # taken by one `read`
MAX_TEXT = 2048  # characters of one record that are kept

_HEADER = re.compile(rb"([0-9]{1,10}),([0-9]{1,20}),([0-9]{1,20}),[^;\n]*;(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


class KernelLogRecord(msgspec.Struct, frozen=True):
    """One line of the log. `stamp_us` is the kernel's monotonic clock, which starts with a boot."""

    sequence: int
    stamp_us: int
    text: str


def parse_record(line: bytes) -> KernelLogRecord | None:
    """Read `priority,sequence,stamp,flags;text`; `None` for continuations and other facilities.

    The kernel gives what user space writes to the log another facility than its own 0, so that
    nobody can make a card fail with a line of text.
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
    """An open log; each read goes on where the last one ended, the first one at the oldest record.

    One thread uses it. What the kernel overwrote before it was read is counted in `lost`.
    """

    def __init__(self, host: HostFiles) -> None:
        """Open the log: `NotSupported` on a recorded host, `HostFileError` if it is refused."""
        if not isinstance(host, LiveHostFiles):
            raise NotSupported(f"{PATH}: a recorded host has no log that goes on")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._fd = os.open(host.path(PATH), flags)
        except OSError as error:
            raise HostFileError(PATH, error.errno or 0) from error
        self._rest = b""
        self.is_drained = False  # the last read left nothing behind
        # poll() tells when a device has more; a file or pipe would say so for ever
        self.is_pollable = stat.S_ISCHR(os.fstat(self._fd).st_mode)

    def fileno(self) -> int:
        """Return the descriptor, to be waited for if `pollable`."""
        return self._fd

    def read(self, most: int = MAX_RECORDS) -> tuple[KernelLogRecord, ...]:
        """Return the kernel's records since the last read, at most that many reads of them.

        Never waits; raises `HostFileError` if the log can be read no more.
        """
        records: list[KernelLogRecord] = []
        self.is_drained = False
        for _ in range(most):
            data = self._chunk()
            if not data:
                self.is_drained = True
                break
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()[:MAX_RECORD]
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
                # records were overwritten: the next read begins at the oldest that is left
        return b""

    def close(self) -> None:
        """Let go of the log."""
        os.close(self._fd)
