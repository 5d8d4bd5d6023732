"""A trunk with its other end, which speaks bytes, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from agent.nri.wire.connection import RuntimeConnection
from agent.nri.wire.errors import ConnectionClosed
from agent.nri.wire.frames import TtrpcFrame
from tests.patience import PATIENCE_S

SERVICE = "nri.pkg.api.v1alpha1.Runtime"


class Wired:
    """`taken` are the frames of the runtime's calls; `lost` why the trunk ended, each time told."""

    def __init__(self) -> None:
        self.taken: list[TtrpcFrame] = []
        self.lost: list[ConnectionClosed] = []
        self.trunk = RuntimeConnection(self.taken.append, self.lost.append, SERVICE)
        self.reader = asyncio.StreamReader()
        self.writer: asyncio.StreamWriter

    async def sent(self, count: int) -> bytes:
        """Return so many bytes that the trunk wrote."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(count)

    async def send(self, *pieces: bytes) -> None:
        """Write to the trunk, each piece for itself."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def until_taken(self, count: int) -> None:
        """Wait until so many frames were taken."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.taken) < count:
                await asyncio.sleep(0.001)

    async def until_closed(self) -> None:
        """Wait until the trunk is."""
        async with asyncio.timeout(PATIENCE_S):
            await self.trunk.closed.wait()


@contextlib.asynccontextmanager
async def wired() -> AsyncIterator[Wired]:
    """Give a trunk that is connected."""
    own_values, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    both = Wired()
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: both.trunk, sock=own_values)
    both.reader, both.writer = await asyncio.open_unix_connection(sock=theirs)
    try:
        yield both
    finally:
        both.writer.transport.abort()
        await both.trunk.wait_closed("Test")
