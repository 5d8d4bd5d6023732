"""The serving side of ttrpc: which frames are calls, and what is answered to all others. Pure."""

from __future__ import annotations

from collections.abc import Container

import msgspec
from google.protobuf.message import DecodeError

from agent.nri.wire.errors import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED
from agent.nri.wire.ttrpc import DATA, REQUEST, Frame, refusal, too_long
from proto.gen import ttrpc_pb2

MAX_IN_FLIGHT = 1024  # a runtime asks one thing at a time, or a few
MAX_NAME = 128  # characters of a foreign name that are repeated


class Call(msgspec.Struct, frozen=True, gc=False):
    """A call of a method that is served; `timeout_s` 0: the caller named none."""

    stream: int
    method: str
    payload: bytes
    timeout_s: float


class CallServer:
    """Knows one connection's streams. Never raises: what is wrong is answered."""

    def __init__(self, service: str, methods: Container[str]) -> None:
        """Serve the methods of one service."""
        self._service = service
        self._methods = methods
        self._last = 0
        self._active: set[int] = set()
        self.unknown_methods = 0
        self.oversized = 0

    def take(self, frame: Frame) -> Call | bytes | None:
        """Return the call, which is to be `finish`ed; or an answer; or nothing for what is none."""
        stream = frame.stream
        if frame.oversized:
            self.oversized += 1
            return refusal(stream, RESOURCE_EXHAUSTED, too_long(frame.length))
        if frame.type not in (REQUEST, DATA):
            return None
        if not stream % 2:
            text = "StreamID must be odd for client initiated streams"
            return refusal(stream, INVALID_ARGUMENT, text)
        if frame.type == DATA:
            if stream in self._active:
                return None  # no method that is served takes any
            return refusal(stream, INVALID_ARGUMENT, "StreamID is no longer active")
        if stream <= self._last:
            text = "StreamID cannot be re-used and must increment"
            return refusal(stream, INVALID_ARGUMENT, text)
        self._last = stream
        return self._call(frame)

    def finish(self, stream: int) -> bool:
        """Say whether the call was still open, and close it: it is answered once."""
        if stream not in self._active:
            return False
        self._active.discard(stream)
        return True

    def _call(self, frame: Frame) -> Call | bytes:
        try:
            asked = ttrpc_pb2.Request.FromString(frame.data)
        except DecodeError as error:
            text = f"unmarshal request error: {error}"
            return refusal(frame.stream, INVALID_ARGUMENT, text)
        if asked.service != self._service:
            self.unknown_methods += 1
            return refusal(frame.stream, UNIMPLEMENTED, f"service {asked.service[:MAX_NAME]}")
        method = asked.method
        if method not in self._methods:
            self.unknown_methods += 1
            return refusal(frame.stream, UNIMPLEMENTED, f"method {method[:MAX_NAME]}")
        if len(self._active) >= MAX_IN_FLIGHT:
            text = f"{MAX_IN_FLIGHT} calls are waiting for their answers already"
            return refusal(frame.stream, RESOURCE_EXHAUSTED, text)
        self._active.add(frame.stream)
        return Call(frame.stream, method, asked.payload, max(0, asked.timeout_nano) / 1e9)
