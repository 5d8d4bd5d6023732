"""Frames of NRI connections: multiplexer frames, and the ttrpc frames and envelopes inside them.

A frame is length of the data (4 bytes), stream id (4), type (1), flags (1), data; big-endian.

Mux frames: two byte streams over one socket. A frame is connection id (4 bytes), length of the
payload (4), payload; big-endian. Receivers in Go take one whole frame at a read: through a
buffer of 4,096 bytes where a message begins, straight into what is left of the message
afterwards. A frame larger than where it is to go ends the connection there, and so do more than
256 frames that wait. Hence the way messages are cut here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from agent.nri.wire.errors import MAX_MESSAGE, RESOURCE_EXHAUSTED, CallError, FrameError
from proto.gen import ttrpc_pb2

HEADER_BYTES = 10

MAX_DATA = 4 << 20

REQUEST = 1

RESPONSE = 2

DATA = 3

_HEADER = struct.Struct(">IIBB")


class TtrpcFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame. `length` is what its header says; beyond `MAX_DATA` the data were passed over."""

    stream: int
    type: int
    length: int
    data: bytes

    @property
    def is_oversized(self) -> bool:
        """Say whether the data are above what ttrpc carries, and so not there."""
        return self.length > MAX_DATA


def oversize_message(length: int) -> str:
    """Return what is said of a message above the limit, as Go's ttrpc says it."""
    return f"message length {length} exceed maximum message size of {MAX_DATA}"


def encode_frame(stream: int, frame_type: int, data: bytes) -> bytes:
    """Return a frame; `CallFailed` if the data are more than one carries."""
    if len(data) > MAX_DATA:
        raise CallError(RESOURCE_EXHAUSTED, oversize_message(len(data)))
    return _HEADER.pack(len(data), stream, frame_type, 0) + data


def request_frame(
    stream: int, service: str, method: str, payload: bytes, timeout_s: float
) -> bytes:
    """Return the frame of a call; `timeout_s` 0 is none."""
    envelope = ttrpc_pb2.Request(
        service=service, method=method, payload=payload, timeout_nano=round(timeout_s * 1e9)
    )
    return encode_frame(stream, REQUEST, envelope.SerializeToString())


def response_frame(stream: int, payload: bytes) -> bytes:
    """Return the frame of a good answer: without a status; of nothing, without data."""
    if not payload:
        return _HEADER.pack(0, stream, RESPONSE, 0)
    return encode_frame(stream, RESPONSE, ttrpc_pb2.Response(payload=payload).SerializeToString())


def error_frame(stream: int, code: int, message: str) -> bytes:
    """Return the frame of an error; what is no text, or too much of it, is left out."""
    text = message[:MAX_MESSAGE].encode("utf-8", "replace").decode()
    answer = ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=text))
    return encode_frame(stream, RESPONSE, answer.SerializeToString())


class FrameReader:
    """Puts the frames of one stream together; holds what came of one frame, never more than 4 MiB.

    Nothing is set aside for a length before its bytes are there.
    """

    def __init__(self) -> None:
        """Begin between two frames."""
        self._held = bytearray()  # a header or a frame that is not whole yet
        self._passing = 0  # bytes of an oversized frame still to pass over

    def feed(self, data: memoryview) -> Iterator[TtrpcFrame]:
        """Yield each frame that is whole now; an oversized one when its header is."""
        at, end = 0, len(data)
        while at < end:
            if self._passing:
                passed = min(self._passing, end - at)
                self._passing -= passed
                at += passed
                continue
            at, found = self._take(data, at)
            if found is not None:
                yield found

    def _take(self, data: memoryview, at: int) -> tuple[int, TtrpcFrame | None]:
        """Return where reading goes on, and the frame that ends there, if one does."""
        held = self._held
        if not held and len(data) - at >= HEADER_BYTES:  # the usual case: all in one piece
            length, stream, kind, _ = _HEADER.unpack_from(data, at)
            stop = at + HEADER_BYTES + length
            if stop <= len(data) and length <= MAX_DATA:
                return stop, TtrpcFrame(stream, kind, length, bytes(data[at + HEADER_BYTES : stop]))
        if len(held) < HEADER_BYTES:
            stop = at + HEADER_BYTES - len(held)
            held += data[at:stop]
            if len(held) < HEADER_BYTES:
                return len(data), None
            at = stop
        length, stream, kind, _ = _HEADER.unpack_from(held)
        if length > MAX_DATA:
            self._held, self._passing = bytearray(), length
            return at, TtrpcFrame(stream, kind, length, b"")
        stop = at + HEADER_BYTES + length - len(held)
        held += data[at:stop]
        if len(held) < HEADER_BYTES + length:
            return len(data), None
        self._held = bytearray()
        return stop, TtrpcFrame(stream, kind, length, bytes(memoryview(held)[HEADER_BYTES:]))


PLUGIN_STREAM = 1  # the runtime calls, the plug-in serves

RUNTIME_STREAM = 2  # the plug-in calls, the runtime serves

MUX_HEADER_BYTES = 8

FIRST_FRAME_BYTES = 4096  # of the frame that begins a message, at most

MAX_PAYLOAD = 1 << 24  # what runtimes may send; newer ones stop at 4 MiB and 10 bytes

_MUX_HEADER = struct.Struct(">II")


def mux_frames(connection: int, message: bytes) -> bytes:
    """Return one ttrpc message in mux frames: one up to 4,096 bytes, else two."""
    if len(message) <= FIRST_FRAME_BYTES:
        return _MUX_HEADER.pack(connection, len(message)) + message
    rest = len(message) - FIRST_FRAME_BYTES
    return b"".join(
        (
            _MUX_HEADER.pack(connection, FIRST_FRAME_BYTES),
            message[:FIRST_FRAME_BYTES],
            _MUX_HEADER.pack(connection, rest),
            memoryview(message)[FIRST_FRAME_BYTES:],
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
        stop = at + MUX_HEADER_BYTES - len(self._header)
        header = self._header + data[at:stop]
        if len(header) < MUX_HEADER_BYTES:
            self._header = header
            return len(data)
        self._header = b""
        self._connection, self._left = _MUX_HEADER.unpack(header)
        if self._left > MAX_PAYLOAD:
            raise FrameError(f"a mux frame of {self._left} bytes: at most {MAX_PAYLOAD} are sent")
        return stop
