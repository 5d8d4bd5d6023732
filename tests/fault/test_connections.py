"""Peers of the HTTP server that send half a request, nothing, or read no answer."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from agent.access import connections
from agent.access.connections import (
    MAX_CONNECTIONS,
    MIN_CONNECTIONS,
    RESERVED_DESCRIPTORS,
    SECURITY_HEADERS,
    HttpListener,
)
from agent.config.address import ListenAddress
from agent.web.admin import create_admin_app
from agent.web.admin_socket import bind_socket, connect_socket
from agent.web.http_server import HttpServer
from tests.patience import PATIENCE_S
from tests.unit.web.view import StillView, eight_cards

FLOOD = 500
DEADLINE_S = PATIENCE_S
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET /livez HTTP/1.1\r\nX: " + b"a" * 8000
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def site() -> AsyncIterator[int]:
    """Serve the page at a port."""
    one = HttpServer((ListenAddress("127.0.0.1", 0),))
    url = await one.open(StillView(eight_cards()))
    try:
        yield int(url.rstrip("/").rpartition(":")[2])
    finally:
        await one.close()


@contextmanager
def half_open(port: int, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Hold so many connections that each have sent these bytes."""
    peers: list[socket.socket] = []
    try:
        for _ in range(count):
            peers.append(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
            if data:
                peers[-1].sendall(data)
        yield peers
    finally:
        for peer in peers:
            peer.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(bounded())


async def status(port: int, request: bytes = LIVEZ) -> bytes:
    """Return the answer to one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


async def livez(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(LIVEZ)
    head = await reader.readuntil(b"\r\n\r\n")
    return (head + await reader.readexactly(len(b"ok\n"))).splitlines()[0]


def accepted(port: int) -> int:
    """Return how many connections this process holds at its end of a port."""
    entries = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
        except OSError:  # the descriptor of the listing itself
            continue
        with socket.socket(fileno=os.dup(int(name))) as one:
            if one.family != socket.AF_INET or one.type != socket.SOCK_STREAM:
                continue
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            entries += not listens and one.getsockname()[1] == port
    return entries


@pytest.mark.parametrize("data", [b"", HALF], ids=["nothing", "half a header"])
def test_unfinished_requests_are_held_in_a_bounded_number_and_probes_answered(data: bytes) -> None:
    async def test() -> None:
        async with site() as port:
            flood = half_open(port, FLOOD, data)
            await asyncio.to_thread(flood.__enter__)
            assert (await status(port)).startswith(b"HTTP/1.1 200")
            assert accepted(port) <= MAX_CONNECTIONS + RESERVED_DESCRIPTORS
            flood.__exit__(None, None, None)

    run(test)


@pytest.mark.parametrize("data", [b"", HALF], ids=["nothing", "half a header"])
def test_a_header_that_does_not_end_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.2)

    async def test() -> None:
        async with site() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_header_that_comes_byte_by_byte_has_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.3)

    async def test() -> None:
        async with site() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nX: ")
            task = asyncio.create_task(reader.read())
            while not task.done():
                writer.write(b"a")
                await asyncio.sleep(0.01)
            writer.close()

    run(test)


def test_a_connection_that_is_idle_after_its_answer_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.2)

    async def test() -> None:
        async with site() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await livez(reader, writer) == b"HTTP/1.1 200 OK"
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_body_that_does_not_end_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0.2)

    async def test() -> None:
        async with site() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\nx")
            assert (await reader.read()).startswith(b"HTTP/1.1 405")
            writer.close()

    run(test)


def test_a_peer_that_reads_no_answer_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.4)

    async def test() -> None:
        async with site() as port:
            with half_open(port, 1, b"") as (peer,):
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                requests = LIVEZ.replace(b"/livez", b"/api/v1/snapshot") * 1000

                def ask_for_ever() -> None:
                    while True:
                        peer.sendall(requests)

                with pytest.raises(OSError, match=r"reset|Broken pipe"):
                    await asyncio.to_thread(ask_for_ever)
            assert (await status(port)).startswith(b"HTTP/1.1 200")

    run(test)


class LostLink(asyncio.Transport):
    """A connection that TLS has lost, and that its listener still counts."""

    def get_write_buffer_size(self) -> int:
        return 7

    def get_extra_info(self, name: str, default: object = None) -> object:  # noqa: ARG002
        return default


def test_a_connection_that_is_lost_just_now_has_what_it_did_not_send() -> None:
    assert connections._unsent_bytes(LostLink()) == 7


def test_clients_with_and_without_requests_do_not_exclude_each_other() -> None:
    async def test() -> None:
        async with site() as port:
            peers: list[Peer] = []
            for _ in range(MAX_CONNECTIONS // 2):
                peers.append(await asyncio.open_connection("127.0.0.1", port))
                assert await livez(*peers[-1]) == b"HTTP/1.1 200 OK"
            entries = half_open(port, MAX_CONNECTIONS, b"")
            await asyncio.to_thread(entries.__enter__)
            assert (await status(port)).startswith(b"HTTP/1.1 200")
            for peer in peers[1:]:  # the first made room for the one above
                assert await livez(*peer) == b"HTTP/1.1 200 OK"
            entries.__exit__(None, None, None)
            for _, writer in peers:
                writer.close()

    run(test)


@pytest.mark.parametrize("request_", [b"GET\r\n\r\n", b"\x16\x03\x01\x02", HALF + b"a" * 999])
def test_what_is_no_http_is_refused_with_the_headers_of_all_pages(
    request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with site() as port:
            head = (await status(port, request_ + b"\r\n\r\n")).decode()
            assert head.startswith(("HTTP/1.0 400", "HTTP/1.1 400"))
            for name, value in SECURITY_HEADERS.items():
                assert f"{name}: {value}\r\n" in head

    run(test)
    assert caplog.records == []


def test_without_a_descriptor_left_probes_are_answered_all_the_same() -> None:
    async def test() -> None:
        async with site() as port:
            mine = socket.socket()  # the peer's own
            mine.setblocking(False)
            loop = asyncio.get_running_loop()
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            top = max(map(int, os.listdir("/proc/self/fd")))
            chosen: list[int] = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + 8, before[1]))
            try:
                with pytest.raises(OSError, match="Too many open files"):
                    chosen.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(top + 99))
                for _ in range(3):
                    await loop.sock_connect(mine, ("127.0.0.1", port))
                    await loop.sock_sendall(mine, LIVEZ)
                    assert (await loop.sock_recv(mine, 100)).startswith(b"HTTP/1.1 200")
                    mine.close()
                    os.close(chosen.pop())
                    mine = socket.socket()
                    mine.setblocking(False)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                for fd in chosen:
                    os.close(fd)
                mine.close()

    run(test)


async def connected(path: str) -> Peer:
    """Connect as the command does, which waits while the queue of the socket is full."""
    return await asyncio.open_unix_connection(sock=await asyncio.to_thread(connect_socket, path))


class Refuses:
    """Nobody asks for anything to be done here."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def test_the_admin_socket_has_the_same_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.web.admin.BODY_S", 0.2)

    async def test() -> None:
        path = str(tmp_path / "admin.sock")
        runner = web.AppRunner(create_admin_app(Refuses(), StillView(eight_cards())))  # type: ignore[arg-type]  # unused
        await runner.setup()
        assert runner.server is not None
        listener = HttpListener(runner.server, bind_socket(path), MIN_CONNECTIONS)
        listener.open()
        peers = [await connected(path) for _ in range(3 * MIN_CONNECTIONS)]
        reader, writer = await connected(path)
        writer.write(b"POST /debug/rescan HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        for _, peer in (*peers, (reader, writer)):
            peer.close()
        listener.close()
        await runner.cleanup()

    run(test)


def test_a_request_that_is_answered_slowly_is_not_lost_to_those_that_come_after_it() -> None:
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await release.wait()
        return web.Response(text="ok\n")

    async def test() -> None:
        app = web.Application(middlewares=[connections.track_request])
        app.router.add_get("/{path}", slow)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        assert runner.server is not None
        listening = socket.create_server(("127.0.0.1", 0))
        listener = HttpListener(runner.server, listening, MIN_CONNECTIONS)
        listener.open()
        try:
            first = asyncio.create_task(status(listener.port, LIVEZ.replace(b"livez", b"slow")))
            peers: list[Peer] = []
            for _ in range(4 * MIN_CONNECTIONS):  # idle after their answers
                peers.append(await asyncio.open_connection("127.0.0.1", listener.port))
                assert await livez(*peers[-1]) == b"HTTP/1.1 200 OK"
            release.set()
            assert (await first).startswith(b"HTTP/1.1 200")
            for _, writer in peers:
                writer.close()
        finally:
            listener.close()
            await runner.cleanup()

    run(test)
