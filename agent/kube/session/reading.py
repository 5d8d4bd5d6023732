"""What is read of an answer: a whole body, or lines as they come; neither without a limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent.kube.errors import BadAnswer
from agent.kube.session.edge import Way, ours

if TYPE_CHECKING:
    import aiohttp


@contextlib.contextmanager
def ending_with_its_connection(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Let whoever reads the body see that its connection is gone.

    The library tells by itself, but for one case: a broken chunk after the head (aiohttp 3.14
    closes the connection then, and leaves the reader waiting).
    """
    protocol = response.connection.protocol if response.connection is not None else None
    lost = protocol.closed if protocol is not None else None
    if lost is None:  # all of the body has come
        yield
        return

    def end(_: asyncio.Future[None]) -> None:
        import aiohttp  # noqa: PLC0415 - whoever has an answer has loaded it

        if not response.content.is_eof() and response.content.exception() is None:
            response.content.set_exception(aiohttp.ClientPayloadError("the connection is gone"))

    lost.add_done_callback(end)
    try:
        yield
    finally:
        lost.remove_done_callback(end)
        lost.remove_done_callback(_seen)  # of an answer before, on the same connection
        lost.add_done_callback(_seen)


def _seen(lost: asyncio.Future[None]) -> None:
    """Take notice of how a connection ended; else the loop logs that nobody did."""
    if not lost.cancelled():
        lost.exception()


async def body_of(response: aiohttp.ClientResponse, what: str, way: Way, limit_bytes: int) -> bytes:
    """Return a whole body; raise `BadAnswer` as soon as it is longer than that."""
    too_long = BadAnswer(what, f"an answer of more than {limit_bytes} bytes")
    if (response.content_length or 0) > limit_bytes:
        raise too_long
    body = bytearray()
    with ours(what, way, begun=True):
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > limit_bytes:
                raise too_long
    return bytes(body)


async def chunk_of(response: aiohttp.ClientResponse, what: str, way: Way, until_s: float) -> bytes:
    """Return what comes next, empty at an orderly end; raise `TimeoutError`.

    `until_s` is of the loop's clock.
    """
    async with asyncio.timeout_at(until_s):
        with ours(what, way, begun=True):
            return await response.content.readany()


class Lines:
    """Puts lines together that are spread over chunks; each byte is copied once.

    A line of more than `limit_bytes` is a `BadAnswer` as soon as it is that long.
    """

    def __init__(self, what: str, limit_bytes: int) -> None:
        """Take what is read, for messages, and the limit of one line."""
        self._what = what
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self.pending_bytes = 0
        """Bytes of a line whose end has not come yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk ends, without their ends; empty ones are left out."""
        first, *rest = chunk.split(b"\n")
        self._keep(first)
        whole: list[bytes] = []
        for part in rest:
            whole.append(b"".join(self._parts))
            self._parts.clear()
            self.pending_bytes = 0
            self._keep(part)
        return [line for line in (line.rstrip(b"\r") for line in whole) if line]

    def _keep(self, part: bytes) -> None:
        self.pending_bytes += len(part)
        if self.pending_bytes > self._limit_bytes:
            raise BadAnswer(self._what, f"a line of more than {self._limit_bytes} bytes")
        if part:
            self._parts.append(part)
