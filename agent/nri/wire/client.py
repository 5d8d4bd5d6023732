"""The calling side of ttrpc: streams, answers, and what becomes of those that never come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from agent.nri.wire.errors import INTERNAL, RESOURCE_EXHAUSTED, CallFailed, TrunkClosed
from agent.nri.wire.ttrpc import RESPONSE, Frame, request, too_long
from proto.gen import ttrpc_pb2

MAX_PENDING = 64


class CallClient:
    """Calls over one connection. Belongs to the loop thread, so that ids rise on the wire."""

    def __init__(self, service: str, write: Callable[[bytes], None]) -> None:
        """Call the methods of one service; `write` takes a whole frame."""
        self._service = service
        self._write = write
        self._next = 1
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._closed: TrunkClosed | None = None
        self.stray = 0  # answers that nobody waits for any more

    async def call(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Return the answer's payload.

        Raises `CallFailed`, `TrunkClosed` if the connection is or gets lost, `TimeoutError`.
        """
        if self._closed is not None:
            raise self._closed
        if len(self._pending) >= MAX_PENDING:
            raise CallFailed(RESOURCE_EXHAUSTED, f"{MAX_PENDING} calls are waiting already")
        stream = self._next
        message = request(stream, self._service, method, payload, timeout_s)
        self._next += 2
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[stream] = answer
        try:
            self._write(message)
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._pending.pop(stream, None)

    def take(self, frame: Frame) -> None:
        """Give an answer to whom waits for it; any other frame is passed over."""
        if frame.type != RESPONSE:
            return
        waiting = self._pending.pop(frame.stream, None)
        if waiting is None or waiting.done():
            self.stray += 1
            return
        if frame.oversized:
            waiting.set_exception(CallFailed(RESOURCE_EXHAUSTED, too_long(frame.length)))
            return
        try:
            answer = ttrpc_pb2.Response.FromString(frame.data)
        except DecodeError as error:
            waiting.set_exception(CallFailed(INTERNAL, f"unreadable answer: {error}"))
            return
        if answer.status.code:
            waiting.set_exception(CallFailed(answer.status.code, answer.status.message))
        else:
            waiting.set_result(answer.payload)

    def close(self, why: TrunkClosed) -> None:
        """Fail all calls, those to come as well."""
        self._closed = why
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(why)
        self._pending.clear()
