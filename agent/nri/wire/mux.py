"""Mux frames: two byte streams over one socket.

A frame is connection id (4 bytes), length of the payload (4), payload; big-endian. Receivers in Go
take one whole frame at a read: through a buffer of 4,096 bytes where a message begins, straight
into what is left of the message afterwards. A frame larger than where it is to go ends the
connection there, and so do more than 256 frames that wait. Hence the way messages are cut here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from agent.nri.wire.errors import WireError

PLUGIN = 1  # the runtime calls, the plug-in serves
RUNTIME = 2  # the plug-in calls, the runtime serves

HEADER_BYTES = 8
FIRST_BYTES = 4096  # of the frame that begins a message, at most
MAX_PAYLOAD = 1 << 24  # what runtimes may send; newer ones stop at 4 MiB and 10 bytes

_HEADER = struct.Struct(">II")


def framed(connection: int, message: bytes) -> bytes:
    """Return one ttrpc message in mux frames: one up to 4,096 bytes, else two."""
    if len(message) <= FIRST_BYTES:
        return _HEADER.pack(connection, len(message)) + message
    rest = len(message) - FIRST_BYTES
    return b"".join(
        (
            _HEADER.pack(connection, FIRST_BYTES),
            message[:FIRST_BYTES],
            _HEADER.pack(connection, rest),
            memoryview(message)[FIRST_BYTES:],
        )
    )


class MuxReader:
    """Takes the socket's bytes apart as they come; keeps seven bytes at most."""

    def __init__(self) -> None:
        """Begin between two frames."""
        self._header = b""
        self._connection = 0
        self._left = 0  # of the frame's payload

    def feed(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield each piece of a stream with its connection; those of unknown ones too.

        Pieces are parts of `data`. Raises `WireError` for a length that no runtime sends.
        """
        at, end = 0, len(data)
        while at < end:
            if not self._left:
                at = self._begin(data, at)
                continue
            stop = min(end, at + self._left)
            self._left -= stop - at
            yield self._connection, data[at:stop]
            at = stop

    def _begin(self, data: memoryview, at: int) -> int:
        """Read a header, or as much as there is of it; return where it ends."""
        stop = at + HEADER_BYTES - len(self._header)
        header = self._header + data[at:stop]
        if len(header) < HEADER_BYTES:
            self._header = header
            return len(data)
        self._header = b""
        self._connection, self._left = _HEADER.unpack(header)
        if self._left > MAX_PAYLOAD:
            raise WireError(f"a mux frame of {self._left} bytes: at most {MAX_PAYLOAD} are sent")
        return stop
