"""Frames of NRI connections: multiplexer frames, and the ttrpc frames and envelopes inside them.

A ttrpc frame is the length of the data (4 bytes), stream id (4), type (1), flags (1), data. A
mux frame carries one of two byte streams over one socket: connection id (4 bytes), length of the
payload (4), payload. All numbers are big-endian.

Receivers written in Go read one whole mux frame at a time: into a buffer of 4,096 bytes where a
message begins, after that into the rest of the message. They end the connection if a frame is
larger than its buffer, or if more than 256 frames wait. `mux_frames` cuts messages accordingly.
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
    """One frame. `length` comes from its header; if it exceeds `MAX_DATA`, `data` is empty."""

    stream: int
    type: int
    length: int
    data: bytes

    @property
    def is_oversized(self) -> bool:
        """Return whether the data exceed the limit of ttrpc and were discarded."""
        return self.length > MAX_DATA


def oversize_message(length: int) -> str:
    """Return the error text for a message above the limit, in the words of Go's ttrpc."""
    return f"message length {length} exceed maximum message size of {MAX_DATA}"


def encode_frame(stream: int, frame_type: int, data: bytes) -> bytes:
    """Return a frame; raises `CallError` if the data exceed the limit."""
    if len(data) > MAX_DATA:
        raise CallError(RESOURCE_EXHAUSTED, oversize_message(len(data)))
    return _HEADER.pack(len(data), stream, frame_type, 0) + data


def request_frame(
    stream: int, service: str, method: str, payload: bytes, timeout_s: float
) -> bytes:
    """Return the frame of a call; `timeout_s` 0 means no timeout."""
    envelope = ttrpc_pb2.Request(
        service=service, method=method, payload=payload, timeout_nano=round(timeout_s * 1e9)
    )
    return encode_frame(stream, REQUEST, envelope.SerializeToString())


def response_frame(stream: int, payload: bytes) -> bytes:
    """Return the frame of a successful answer, without a status; an empty answer has no data."""
    if not payload:
        return _HEADER.pack(0, stream, RESPONSE, 0)
    return encode_frame(stream, RESPONSE, ttrpc_pb2.Response(payload=payload).SerializeToString())


def error_frame(stream: int, code: int, message: str) -> bytes:
    """Return the frame of an error; invalid characters are replaced, long messages are cut."""
    text = message[:MAX_MESSAGE].encode("utf-8", "replace").decode()
    answer = ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=text))
    return encode_frame(stream, RESPONSE, answer.SerializeToString())


class FrameReader:
    """Assembles the frames of one stream; buffers one frame at most, never more than 4 MiB.

    Memory grows with the bytes that arrive, not with the length that a header claims.
    """

    def __init__(self) -> None:
        """Start between two frames."""
        self._buffer = bytearray()  # a header or a frame that is not whole yet
        self._skipped_bytes = 0  # bytes of an oversized frame still to pass over

    def feed(self, data: memoryview) -> Iterator[TtrpcFrame]:
        """Yield each complete frame; an oversized one as soon as its header is complete."""
        at, end = 0, len(data)
        while at < end:
            if self._skipped_bytes:
                skipped = min(self._skipped_bytes, end - at)
                self._skipped_bytes -= skipped
                at += skipped
                continue
            at, frame = self._read_frame(data, at)
            if frame is not None:
                yield frame

    def _read_frame(self, data: memoryview, at: int) -> tuple[int, TtrpcFrame | None]:
        """Return the position after the data read, and the frame that ends there, if any."""
        buffer = self._buffer
        if not buffer and len(data) - at >= HEADER_BYTES:  # the usual case: all in one piece
            length, stream, kind, _ = _HEADER.unpack_from(data, at)
            stop = at + HEADER_BYTES + length
            if stop <= len(data) and length <= MAX_DATA:
                return stop, TtrpcFrame(stream, kind, length, bytes(data[at + HEADER_BYTES : stop]))
        if len(buffer) < HEADER_BYTES:
            stop = at + HEADER_BYTES - len(buffer)
            buffer += data[at:stop]
            if len(buffer) < HEADER_BYTES:
                return len(data), None
            at = stop
        length, stream, kind, _ = _HEADER.unpack_from(buffer)
        if length > MAX_DATA:
            self._buffer, self._skipped_bytes = bytearray(), length
            return at, TtrpcFrame(stream, kind, length, b"")
        stop = at + HEADER_BYTES + length - len(buffer)
        buffer += data[at:stop]
        if len(buffer) < HEADER_BYTES + length:
            return len(data), None
        self._buffer = bytearray()
        return stop, TtrpcFrame(stream, kind, length, bytes(memoryview(buffer)[HEADER_BYTES:]))


PLUGIN_STREAM = 1  # the runtime calls, the plug-in serves
RUNTIME_STREAM = 2  # the plug-in calls, the runtime serves
MUX_HEADER_BYTES = 8
FIRST_FRAME_BYTES = 4096  # of the frame that begins a message, at most
MAX_PAYLOAD = 1 << 24  # what runtimes may send; newer ones stop at 4 MiB and 10 bytes
_MUX_HEADER = struct.Struct(">II")


def mux_frames(connection: int, message: bytes) -> bytes:
    """Return one ttrpc message as mux frames: one if it has up to 4,096 bytes, else two."""
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
    """Splits the socket's bytes into mux frames; buffers seven bytes at most."""

    def __init__(self) -> None:
        """Start between two frames."""
        self._header = b""
        self._connection = 0
        self._remaining = 0  # of the frame's payload

    def feed(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield each piece of a stream with its connection id, also of unknown connections.

        Pieces are slices of `data`. Raises `FrameError` for a length that no runtime sends.
        """
        at, end = 0, len(data)
        while at < end:
            if not self._remaining:
                at = self._begin(data, at)
                continue
            stop = min(end, at + self._remaining)
            self._remaining -= stop - at
            yield self._connection, data[at:stop]
            at = stop

    def _begin(self, data: memoryview, at: int) -> int:
        """Read a header, or the part of it that is there; return the position after it."""
        stop = at + MUX_HEADER_BYTES - len(self._header)
        header = self._header + data[at:stop]
        if len(header) < MUX_HEADER_BYTES:
            self._header = header
            return len(data)
        self._header = b""
        self._connection, self._remaining = _MUX_HEADER.unpack(header)
        if self._remaining > MAX_PAYLOAD:
            raise FrameError(
                f"a mux frame of {self._remaining} bytes: at most {MAX_PAYLOAD} are sent"
            )
        return stop
