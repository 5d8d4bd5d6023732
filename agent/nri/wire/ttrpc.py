"""ttrpc: frames with a length, a stream and a type, and the envelope of calls inside them.

A frame is length of the data (4 bytes), stream id (4), type (1), flags (1), data; big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from agent.nri.wire.errors import MAX_MESSAGE, RESOURCE_EXHAUSTED, CallFailed
from proto.gen import ttrpc_pb2

HEADER_BYTES = 10
MAX_DATA = 4 << 20

REQUEST = 1
RESPONSE = 2
DATA = 3

_HEADER = struct.Struct(">IIBB")


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame. `length` is what its header says; beyond `MAX_DATA` the data were passed over."""

    stream: int
    type: int
    length: int
    data: bytes

    @property
    def oversized(self) -> bool:
        """Say whether the data are above what ttrpc carries, and so not there."""
        return self.length > MAX_DATA


def too_long(length: int) -> str:
    """Return what is said of a message above the limit, as Go's ttrpc says it."""
    return f"message length {length} exceed maximum message size of {MAX_DATA}"


def frame(stream: int, frame_type: int, data: bytes) -> bytes:
    """Return a frame; `CallFailed` if the data are more than one carries."""
    if len(data) > MAX_DATA:
        raise CallFailed(RESOURCE_EXHAUSTED, too_long(len(data)))
    return _HEADER.pack(len(data), stream, frame_type, 0) + data


def request(stream: int, service: str, method: str, payload: bytes, timeout_s: float) -> bytes:
    """Return the frame of a call; `timeout_s` 0 is none."""
    envelope = ttrpc_pb2.Request(
        service=service, method=method, payload=payload, timeout_nano=round(timeout_s * 1e9)
    )
    return frame(stream, REQUEST, envelope.SerializeToString())


def response(stream: int, payload: bytes) -> bytes:
    """Return the frame of a good answer: without a status; of nothing, without data."""
    if not payload:
        return _HEADER.pack(0, stream, RESPONSE, 0)
    return frame(stream, RESPONSE, ttrpc_pb2.Response(payload=payload).SerializeToString())


def refusal(stream: int, code: int, message: str) -> bytes:
    """Return the frame of an error; what is no text, or too much of it, is left out."""
    text = message[:MAX_MESSAGE].encode("utf-8", "replace").decode()
    answer = ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=text))
    return frame(stream, RESPONSE, answer.SerializeToString())


class FrameReader:
    """Puts the frames of one stream together; holds what came of one frame, never more than 4 MiB.

    Nothing is set aside for a length before its bytes are there.
    """

    def __init__(self) -> None:
        """Begin between two frames."""
        self._held = bytearray()  # a header or a frame that is not whole yet
        self._passing = 0  # bytes of an oversized frame still to pass over

    def feed(self, data: memoryview) -> Iterator[Frame]:
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

    def _take(self, data: memoryview, at: int) -> tuple[int, Frame | None]:
        """Return where reading goes on, and the frame that ends there, if one does."""
        held = self._held
        if not held and len(data) - at >= HEADER_BYTES:  # the usual case: all in one piece
            length, stream, kind, _ = _HEADER.unpack_from(data, at)
            stop = at + HEADER_BYTES + length
            if stop <= len(data) and length <= MAX_DATA:
                return stop, Frame(stream, kind, length, bytes(data[at + HEADER_BYTES : stop]))
        if len(held) < HEADER_BYTES:
            stop = at + HEADER_BYTES - len(held)
            held += data[at:stop]
            if len(held) < HEADER_BYTES:
                return len(data), None
            at = stop
        length, stream, kind, _ = _HEADER.unpack_from(held)
        if length > MAX_DATA:
            self._held, self._passing = bytearray(), length
            return at, Frame(stream, kind, length, b"")
        stop = at + HEADER_BYTES + length - len(held)
        held += data[at:stop]
        if len(held) < HEADER_BYTES + length:
            return len(data), None
        self._held = bytearray()
        return stop, Frame(stream, kind, length, bytes(memoryview(held)[HEADER_BYTES:]))
