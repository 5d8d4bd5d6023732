"""The connection to the runtime: reads as bytes come, writes whole messages, carries both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.nri.wire.client import CallClient
from agent.nri.wire.errors import TrunkClosed, WireError
from agent.nri.wire.mux import PLUGIN, RUNTIME, MuxReader, framed
from agent.nri.wire.ttrpc import Frame, FrameReader

READ_BYTES = 64 << 10
MAX_UNWRITTEN = 16 << 20  # a runtime that takes nothing of so much is gone
CLOSE_S = 1.0  # for the last answers to leave

Take = Callable[[Frame], None]


class Trunk(asyncio.BufferedProtocol):
    """One connection. Belongs to the loop thread; no task waits for its bytes.

    `take` gets each frame of the runtime's calls, in order, and must not wait; our own calls go
    by `calls`. Once it is closed, `closed` is set and `ended` says why.
    """

    def __init__(self, take: Take, lost: Callable[[TrunkClosed], None], service: str) -> None:
        """Call the methods of `service` over the second connection; `lost` is called once."""
        self._take = take
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._mux = MuxReader()
        self._readers = {PLUGIN: FrameReader(), RUNTIME: FrameReader()}
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self.calls = CallClient(service, self._call)
        self.arrived_s = 0.0  # loop's time, of the bytes that are being read
        self.closed = asyncio.Event()
        self.ended: TrunkClosed | None = None  # why, from when it is known on

    def answer(self, message: bytes) -> None:
        """Write an answer to the runtime's call; nothing if the connection is gone."""
        self._write(PLUGIN, message)

    def end(self, reason: str, detail: str = "") -> None:
        """Close without waiting for anything; the first reason stays."""
        self._over(TrunkClosed(reason, detail))
        self._abort()

    def leave(self, reason: str) -> None:
        """Close once the answers that were written have left."""
        self._over(TrunkClosed(reason))
        if self._transport is not None:
            self._transport.close()

    async def finish(self, reason: str) -> None:
        """Leave, and return when the socket is closed; it is whether answers can leave or not."""
        self.leave(reason)
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.closed.wait()
        except TimeoutError:
            self._abort()
            await self.closed.wait()
        except asyncio.CancelledError:
            self._abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the loop."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a unix socket has
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's signature
        """Return where the next bytes go; called by the loop."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came; called by the loop."""
        self.arrived_s = self._loop.time()
        try:
            for connection, piece in self._mux.feed(self._buffer[:nbytes]):
                self._feed(connection, piece)
        except WireError as error:
            self.end("BadFrame", str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note of the end; called by the loop."""
        self._over(TrunkClosed("ClosedByRuntime", str(exc or "")))
        self._transport = None
        self.closed.set()

    def _abort(self) -> None:
        if self._transport is not None:  # a transport that is closed must not be aborted
            self._transport.abort()

    def _over(self, why: TrunkClosed) -> None:
        if self.ended is None:
            self.ended = why
            self.calls.close(why)
            self._lost(why)

    def _feed(self, connection: int, piece: memoryview) -> None:
        reader = self._readers.get(connection)
        if reader is None:
            return  # as the runtime does with what it does not know
        for frame in reader.feed(piece):
            if self.ended is not None:
                return
            if connection == PLUGIN:
                self._take(frame)
            else:
                self.calls.take(frame)

    def _call(self, message: bytes) -> None:
        self._write(RUNTIME, message)

    def _write(self, connection: int, message: bytes) -> None:
        transport = self._transport
        if self.ended is not None or transport is None:
            return
        transport.write(framed(connection, message))
        if (unwritten := transport.get_write_buffer_size()) > MAX_UNWRITTEN:
            self.end("NotReading", f"the runtime has not taken {unwritten} bytes")
