"""The kernel's own log of this boot, read as it comes; it speaks also when drivers hang."""

from __future__ import annotations

import errno
import os
import re
import stat

import msgspec

from agent.errors import HostFileError, NotSupported
from agent.host.files import HostFiles, LiveRoot

PATH = "/dev/kmsg"
MAX_RECORD = 16 * 1024  # bytes; the kernel refuses a read with less room than a record needs
MAX_RECORDS = 1024  # taken by one `read`
MAX_TEXT = 2048  # characters of one record that are kept

_HEADER = re.compile(rb"([0-9]{1,10}),([0-9]{1,20}),([0-9]{1,20}),[^;\n]*;(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


class KernelRecord(msgspec.Struct, frozen=True):
    """One line of the log. `stamp_us` is the kernel's monotonic clock, which starts with a boot."""

    sequence: int
    stamp_us: int
    text: str


def parse_record(line: bytes) -> KernelRecord | None:
    """Read `priority,sequence,stamp,flags;text`; `None` for continuations and other facilities.

    The kernel gives what user space writes to the log another facility than its own 0, so that
    nobody can make a card fail with a line of text.
    """
    match = _HEADER.fullmatch(line)
    if match is None or int(match[1]) >> 3 != 0:
        return None
    text = match[4].decode("utf-8", "replace")[:MAX_TEXT]
    return KernelRecord(
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
        if not isinstance(host, LiveRoot):
            raise NotSupported(f"{PATH}: a recorded host has no log that goes on")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._fd = os.open(host.path(PATH), flags)
        except OSError as error:
            raise HostFileError(PATH, error.errno or 0) from error
        self._rest = b""
        self.lost = 0  # times that records were overwritten unread
        self.drained = False  # the last read left nothing behind
        # poll() tells when a device has more; a file or pipe would say so for ever
        self.pollable = stat.S_ISCHR(os.fstat(self._fd).st_mode)

    def fileno(self) -> int:
        """Return the descriptor, to be waited for if `pollable`."""
        return self._fd

    def read(self, most: int = MAX_RECORDS) -> tuple[KernelRecord, ...]:
        """Return the kernel's records since the last read, at most that many reads of them.

        Never waits; raises `HostFileError` if the log can be read no more.
        """
        found: list[KernelRecord] = []
        self.drained = False
        for _ in range(most):
            data = self._chunk()
            if not data:
                self.drained = True
                break
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()[:MAX_RECORD]
            found += [record for line in lines if (record := parse_record(line)) is not None]
        return tuple(found)

    def _chunk(self) -> bytes:
        for _ in range(2):
            try:
                return os.read(self._fd, MAX_RECORD)
            except BlockingIOError:
                return b""
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise HostFileError(PATH, error.errno or 0) from error
                self.lost += 1  # the next read begins at the oldest record that is left
        return b""

    def close(self) -> None:
        """Let go of the log."""
        os.close(self._fd)
