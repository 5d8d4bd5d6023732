"""One plug-in's socket: frames in both directions, read as Go reads them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import Literal

from tests.runtime.gobuf import MAX_FRAME, Fatal, GoReader, Message
from tests.runtime.ways import Ways

PLUGIN = 1  # the connection on which the runtime asks
RUNTIME = 2  # the one on which the plug-in asks
FRAME = struct.Struct(">II")
HEAD = struct.Struct(">IIBB")
HALVES = {"read": socket.SHUT_RD, "write": socket.SHUT_WR, "both": socket.SHUT_RDWR}


class Trunk:
    """Carry messages until either side ends; `take` gets those that came, with the connection."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        ways: Ways,
        take: Callable[[int, Message], None],
    ) -> None:
        self._reader, self._writer = streams
        self._ways = ways
        self._take = take
        self._inputs = {PLUGIN: GoReader(), RUNTIME: GoReader()}
        self._going = asyncio.Event()
        self._going.set()
        self._turn = asyncio.Lock()
        self.sent_bytes = 0
        self.got_bytes = 0

    async def read(self) -> None:
        """Read until the end. `Fatal` if the plug-in wrote what Go does not take."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                await self._going.wait()
                conn, length = FRAME.unpack(await self._reader.readexactly(FRAME.size))
                if not 0 < length <= MAX_FRAME:
                    raise Fatal(f"frame of {length} bytes")
                payload = await self._reader.readexactly(length)
                self.got_bytes += FRAME.size + length
                for message in self._inputs[conn].frame(payload) if conn in self._inputs else ():
                    self._take(conn, message)

    async def message(self, conn: int, stream: int, kind: int, data: bytes) -> None:
        """Send one message, cut into frames as `ways` says."""
        whole = HEAD.pack(len(data), stream, kind, 0) + data
        pieces = self._ways.pieces(whole)
        await self.send(b"".join(FRAME.pack(conn, len(part)) + part for part in pieces))

    async def send(self, data: bytes) -> None:
        """Send bytes; what the other end no longer takes is lost, as the kernel would lose it."""
        step = self._ways.dribble or len(data) or 1
        with contextlib.suppress(OSError):
            async with self._turn:
                for at in range(0, len(data), step):
                    self._writer.write(data[at : at + step])
                    self.sent_bytes += step
                    await self._writer.drain()
                    if self._ways.dribble:
                        await asyncio.sleep(0)

    def pause(self) -> None:
        """Read nothing more."""
        self._going.clear()
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]  # sockets have it

    def go_on(self) -> None:
        """Read again."""
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        self._going.set()

    def half_close(self, half: Literal["read", "write", "both"]) -> None:
        """Shut one direction of the socket down and keep the rest."""
        own = self._writer.get_extra_info("socket")
        with socket.socket(fileno=os.dup(own.fileno())) as same:
            same.shutdown(HALVES[half])

    def close(self) -> None:
        """Close both connections at once; what was not written yet is lost."""
        self._writer.transport.abort()
