"""How Go reads a plug-in's bytes: frames through a small buffer. A model, without I/O."""

from __future__ import annotations

from collections import deque

MAX_DATA = 4 << 20
HEADER = 10
MAX_FRAME = MAX_DATA + HEADER
BUFFER = 4096
QUEUE = 256

Message = tuple[int, int, bytes, int]  # stream, type, data, and what its header said of its length


class Fatal(Exception):
    """The runtime ends the connection; the text says what the plug-in did."""


class GoReader:
    """One connection's reader: `frame` takes a frame and returns the messages that it completes.

    A message's bytes are asked for in two reads, ten bytes and the rest. A read of fewer than
    4,096 bytes goes through the buffer, which takes one whole frame when it is empty; a longer
    one takes one whole frame straight into the message.
    """

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._bytes = 0  # in the frames
        self._unread = 0  # frames since the last message that was whole
        self._buffer = b""
        self._got = bytearray()  # of the read that is under way
        self._header: tuple[int, int, int] | None = None
        self._discard = 0  # bytes of a message that is too long

    def frame(self, payload: bytes) -> list[Message]:
        """Take one frame. `Fatal` if Go could not, or might not, read it."""
        if not 0 < len(payload) <= MAX_FRAME:
            raise Fatal(f"frame of {len(payload)} bytes")
        self._frames.append(payload)
        self._bytes += len(payload)
        self._unread += 1
        if self._unread > QUEUE:
            raise Fatal("failed to queue payload for reading")
        messages: list[Message] = []
        while (message := self._message()) is not None:
            messages.append(message)
            self._unread = len(self._frames)
        return messages

    def _message(self) -> Message | None:
        if self._header is None:
            head = self._read(HEADER)
            if head is None:
                return None
            self._header = int.from_bytes(head[:4]), int.from_bytes(head[4:8]), head[8]
            self._discard = self._header[0] if self._header[0] > MAX_DATA else 0
        length, stream, kind = self._header
        if length > MAX_DATA:
            if not self._discarded():
                return None
            data: bytes | None = b""
        else:
            # the worst case: the reader is not scheduled before all of the message has come
            data = self._read(length) if self._all() >= length else None
        if data is None:
            return None
        self._header = None
        return stream, kind, data, length

    def _all(self) -> int:
        return len(self._got) + len(self._buffer) + self._bytes

    def _discarded(self) -> bool:
        while self._discard and (self._buffer or self._frames):
            if not self._buffer:
                self._buffer = self._take()
            removed = min(self._discard, len(self._buffer))
            self._buffer = self._buffer[removed:]
            self._discard -= removed
            self._unread = 0
        return not self._discard

    def _take(self) -> bytes:
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        return frame

    def _read(self, desired: int) -> bytes | None:
        """Read so many bytes as `io.ReadFull` does; `None` while frames are missing."""
        while len(self._got) < desired:
            if not self._buffer and not self._frames:
                return None
            room = desired - len(self._got)
            if self._buffer:
                self._got += self._buffer[:room]
                self._buffer = self._buffer[room:]
                continue
            frame = self._take()
            if room >= BUFFER:
                if len(frame) > room:
                    raise Fatal(f"ENOMEM: frame of {len(frame)} bytes, {room} are left to read")
                self._got += frame
            else:
                if len(frame) > BUFFER:
                    raise Fatal(f"ENOMEM: frame of {len(frame)} bytes, the buffer has {BUFFER}")
                self._buffer = frame
        got = bytes(self._got)
        self._got.clear()
        return got
