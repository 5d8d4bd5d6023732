"""An NRI connection: serves the runtime's calls and makes the plug-in's own calls.

`CallServer` decides which frames are calls and how all others are answered; `CallClient` assigns
streams and matches answers. Neither does I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container

import msgspec
from google.protobuf.message import DecodeError

from agent.nri.wire.errors import (
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    CallError,
    ConnectionClosed,
    FrameError,
)
from agent.nri.wire.frames import (
    DATA,
    PLUGIN_STREAM,
    REQUEST,
    RESPONSE,
    RUNTIME_STREAM,
    FrameReader,
    MuxReader,
    TtrpcFrame,
    error_frame,
    mux_frames,
    oversize_message,
    request_frame,
)
from proto.gen import ttrpc_pb2

READ_BYTES = 64 << 10
MAX_UNWRITTEN = 16 << 20  # a runtime that leaves so much unread is considered hung
CLOSE_S = 1.0  # time for the last answers to be sent

FrameHandler = Callable[[TtrpcFrame], None]


class RuntimeConnection(asyncio.BufferedProtocol):
    """One connection. Belongs to the loop thread; no task waits for its bytes.

    `handle_call` gets each frame of the runtime's calls, in order, and must not wait; the plug-in's
    own calls go through `calls`. When it ends, `closed` is set and `close_reason` has the reason.
    """

    def __init__(
        self,
        handle_call: FrameHandler,
        handle_close: Callable[[ConnectionClosed], None],
        service: str,
    ) -> None:
        """Call the methods of `service` on the second stream; `handle_close` is called once."""
        self._handle_call = handle_call
        self._handle_close = handle_close
        self._loop = asyncio.get_running_loop()
        self._mux = MuxReader()
        self._readers = {PLUGIN_STREAM: FrameReader(), RUNTIME_STREAM: FrameReader()}
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self.calls = CallClient(service, self._write_call)
        self.arrived_s = 0.0  # loop's time at which the bytes being read arrived
        self.closed = asyncio.Event()
        self.close_reason: ConnectionClosed | None = None  # set as soon as the reason is known

    def answer(self, message: bytes) -> None:
        """Write an answer to a call of the runtime; do nothing if the connection is closed."""
        self._write(PLUGIN_STREAM, message)

    def abort(self, reason: str, detail: str = "") -> None:
        """Close immediately; the first reason stays."""
        self._set_closed(ConnectionClosed(reason, detail))
        self._abort_transport()

    def close(self, reason: str) -> None:
        """Close after the written answers have been sent."""
        self._set_closed(ConnectionClosed(reason))
        if self._transport is not None:
            self._transport.close()

    async def wait_closed(self, reason: str) -> None:
        """Close, and return when the socket is closed, whether or not answers could be sent."""
        self.close(reason)
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.closed.wait()
        except TimeoutError:
            self._abort_transport()
            await self.closed.wait()
        except asyncio.CancelledError:
            self._abort_transport()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; called by the loop."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - unix sockets have one
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's signature
        """Return the buffer for the next bytes; called by the loop."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read the bytes that arrived; called by the loop."""
        self.arrived_s = self._loop.time()
        try:
            for connection, piece in self._mux.feed(self._buffer[:nbytes]):
                self._handle_piece(connection, piece)
        except FrameError as error:
            self.abort("BadFrame", str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection; called by the loop."""
        self._set_closed(ConnectionClosed("ClosedByRuntime", str(exc or "")))
        self._transport = None
        self.closed.set()

    def _abort_transport(self) -> None:
        if self._transport is not None:  # a closed transport must not be aborted
            self._transport.abort()

    def _set_closed(self, reason: ConnectionClosed) -> None:
        if self.close_reason is None:
            self.close_reason = reason
            self.calls.close(reason)
            self._handle_close(reason)

    def _handle_piece(self, connection: int, data: memoryview) -> None:
        reader = self._readers.get(connection)
        if reader is None:
            return  # unknown streams are ignored, as the runtime does
        for frame in reader.feed(data):
            if self.close_reason is not None:
                return
            if connection == PLUGIN_STREAM:
                self._handle_call(frame)
            else:
                self.calls.handle_answer(frame)

    def _write_call(self, message: bytes) -> None:
        self._write(RUNTIME_STREAM, message)

    def _write(self, connection: int, message: bytes) -> None:
        transport = self._transport
        if self.close_reason is not None or transport is None:
            return
        transport.write(mux_frames(connection, message))
        if (unwritten := transport.get_write_buffer_size()) > MAX_UNWRITTEN:
            self.abort("NotReading", f"the runtime has not taken {unwritten} bytes")


MAX_IN_FLIGHT = 1024  # a runtime has one call open, or a few

MAX_NAME = 128  # characters of a peer's name that are repeated


class RuntimeCall(msgspec.Struct, frozen=True, gc=False):
    """A call of a served method; `timeout_s` is 0 if the caller named none."""

    stream: int
    method: str
    payload: bytes
    timeout_s: float


class CallServer:
    """Tracks the runtime's calls on one connection. Never raises: errors become answers."""

    def __init__(self, service: str, methods: Container[str]) -> None:
        """Serve the methods of one service."""
        self._service = service
        self._methods = methods
        self._last = 0
        self._active: set[int] = set()
        self.unknown_methods = 0
        self.oversized = 0

    def accept(self, frame: TtrpcFrame) -> RuntimeCall | bytes | None:
        """Return the call, which `finish` closes, or an error frame, or `None`."""
        stream = frame.stream
        if frame.is_oversized:
            self.oversized += 1
            return error_frame(stream, RESOURCE_EXHAUSTED, oversize_message(frame.length))
        if frame.type not in (REQUEST, DATA):
            return None
        if not stream % 2:
            text = "StreamID must be odd for client initiated streams"
            return error_frame(stream, INVALID_ARGUMENT, text)
        if frame.type == DATA:
            if stream in self._active:
                return None  # no served method takes data
            return error_frame(stream, INVALID_ARGUMENT, "StreamID is no longer active")
        if stream <= self._last:
            text = "StreamID cannot be re-used and must increment"
            return error_frame(stream, INVALID_ARGUMENT, text)
        self._last = stream
        return self._call(frame)

    def finish(self, stream: int) -> bool:
        """Close the call; return whether it was open: each call is answered once."""
        if stream not in self._active:
            return False
        self._active.discard(stream)
        return True

    def _call(self, frame: TtrpcFrame) -> RuntimeCall | bytes:
        try:
            request = ttrpc_pb2.Request.FromString(frame.data)
        except DecodeError as error:
            text = f"unmarshal request error: {error}"
            return error_frame(frame.stream, INVALID_ARGUMENT, text)
        if request.service != self._service:
            self.unknown_methods += 1
            return error_frame(frame.stream, UNIMPLEMENTED, f"service {request.service[:MAX_NAME]}")
        method = request.method
        if method not in self._methods:
            self.unknown_methods += 1
            return error_frame(frame.stream, UNIMPLEMENTED, f"method {method[:MAX_NAME]}")
        if len(self._active) >= MAX_IN_FLIGHT:
            text = f"{MAX_IN_FLIGHT} calls are waiting for their answers already"
            return error_frame(frame.stream, RESOURCE_EXHAUSTED, text)
        self._active.add(frame.stream)
        return RuntimeCall(
            frame.stream, method, request.payload, max(0, request.timeout_nano) / 1e9
        )


MAX_PENDING = 64


class CallClient:
    """Makes calls over one connection. Belongs to the loop thread, so that ids rise on the wire."""

    def __init__(self, service: str, write: Callable[[bytes], None]) -> None:
        """Call the methods of one service; `write` takes a whole frame."""
        self._service = service
        self._write = write
        self._next = 1
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._closed: ConnectionClosed | None = None
        self.stray = 0  # answers that no call waits for

    async def call(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Return the answer's payload.

        Raises `CallError`, `TimeoutError`, or `ConnectionClosed` if the connection is closed.
        """
        if self._closed is not None:
            raise self._closed
        if len(self._pending) >= MAX_PENDING:
            raise CallError(RESOURCE_EXHAUSTED, f"{MAX_PENDING} calls are waiting already")
        stream = self._next
        message = request_frame(stream, self._service, method, payload, timeout_s)
        self._next += 2
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[stream] = answer
        try:
            self._write(message)
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._pending.pop(stream, None)

    def handle_answer(self, frame: TtrpcFrame) -> None:
        """Pass an answer to its call; other frames are ignored."""
        if frame.type != RESPONSE:
            return
        pending = self._pending.pop(frame.stream, None)
        if pending is None or pending.done():
            self.stray += 1
            return
        if frame.is_oversized:
            pending.set_exception(CallError(RESOURCE_EXHAUSTED, oversize_message(frame.length)))
            return
        try:
            answer = ttrpc_pb2.Response.FromString(frame.data)
        except DecodeError as error:
            pending.set_exception(CallError(INTERNAL, f"unreadable answer: {error}"))
            return
        if answer.status.code:
            pending.set_exception(CallError(answer.status.code, answer.status.message))
        else:
            pending.set_result(answer.payload)

    def close(self, reason: ConnectionClosed) -> None:
        """Fail all pending and future calls."""
        self._closed = reason
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(reason)
        self._pending.clear()
