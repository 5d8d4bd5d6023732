"""Clients of the extender that do not finish what they began."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from agent.access.connections import MIN_CONNECTIONS
from plugins.scheduler.server import http_server
from plugins.scheduler.server.extender_wire import BindRequest
from plugins.scheduler.server.http_server import ExtenderServer, Term

DEADLINE_S = 60.0
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
BIND = b'{"PodName":"a","PodNamespace":"b","PodUID":"c","Node":"d"}'
CALL = b"POST /bind HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BIND)
UNFINISHED = {
    "nothing": b"",
    "half a header": b"GET /livez HTTP/1.1\r\nX: ",
    "half a body": CALL + BIND[:9],
    "idle after an answer": LIVEZ,
    "idle after a call": b"POST /bind HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n{",
}
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Silent:
    """A replica that is not the leader."""

    def current_term(self) -> Term | None:
        return None

    def why_silent(self) -> str:
        return "a test"


class WaitingBinder:
    """A binder whose calls wait, as those of a gang do for its other pods."""

    def __init__(self) -> None:
        self.waiting = 0
        self.end = asyncio.Event()

    async def bind(self, _: BindRequest) -> None:
        self.waiting += 1
        await self.end.wait()


class Leader:
    """A leader that binds."""

    def __init__(self) -> None:
        self.binder = WaitingBinder()
        self.extender = self

    def current_term(self) -> Term | None:
        return cast("Term", self)  # a bind needs no other part of it

    def why_silent(self) -> str:
        return ""

    def record_binding(self, *_: object) -> None:
        """Record nothing."""


@contextlib.asynccontextmanager
async def site(leader: Leader) -> AsyncIterator[Callable[[], Awaitable[Peer]]]:
    """Serve the extender; the value opens a connection to it."""
    server, writers = ExtenderServer(leader, None), []
    port = int((await server.open("127.0.0.1", 0)).rpartition(":")[2])

    async def connect() -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.close()
        await server.close()


async def first_line(peer: Peer, request: bytes) -> bytes:
    reader, writer = peer
    writer.write(request)
    return await reader.readline()


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", MIN_CONNECTIONS)
    monkeypatch.setattr(http_server, "BODY_S", 2 * DEADLINE_S)
    return MIN_CONNECTIONS


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_clients_that_finish_nothing_are_bounded_and_others_answered(
    few_connections: int, sent: bytes
) -> None:
    async def test() -> None:
        async with site(Leader()) as connect:
            flood = [await connect() for _ in range(few_connections * 4)]
            for _, writer in flood:
                writer.write(sent)
            assert await first_line(await connect(), LIVEZ) == b"HTTP/1.1 200 OK\r\n"
            ends = [asyncio.create_task(reader.read()) for reader, _ in flood]
            while sum(end.done() for end in ends) <= len(flood) - few_connections:
                await asyncio.wait(
                    [end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED
                )
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


def test_calls_that_wait_are_answered_however_many_others_come(few_connections: int) -> None:
    async def test() -> None:
        leader = Leader()
        async with site(leader) as connect:
            calls = [
                asyncio.create_task(first_line(await connect(), CALL + BIND))
                for _ in range(few_connections // 2)
            ]
            while leader.binder.waiting < len(calls):
                await asyncio.sleep(0)
            for _ in range(few_connections * 4):
                await connect()
            assert await first_line(await connect(), LIVEZ) == b"HTTP/1.1 200 OK\r\n"
            leader.binder.end.set()
            assert set(await asyncio.gather(*calls)) == {b"HTTP/1.1 200 OK\r\n"}

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


class BrokenLeader(Leader):
    """A leader whose decisions end in an error that nobody expected."""

    def filter(self, _: object) -> bytes:
        raise RuntimeError("a test")


def test_a_call_that_ends_in_an_unexpected_error_is_counted_as_one() -> None:
    async def test() -> None:
        server = ExtenderServer(BrokenLeader(), None)
        port = int((await server.open("127.0.0.1", 0)).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            body = b'{"Pod":{"metadata":{}},"NodeNames":[]}'
            head = b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            assert (await reader.readline()).startswith(b"HTTP/1.1 500")
            assert server.statistics.counts == {("filter", "error"): 1}
        finally:
            writer.close()
            await server.close()

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


def test_a_body_that_does_not_end_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_S", 0.1)

    async def test() -> None:
        server = ExtenderServer(Silent(), None)
        port = int((await server.open("127.0.0.1", 0)).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"POST /bind HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        finally:
            writer.close()
            await server.close()

    asyncio.run(asyncio.wait_for(test(), 60))
