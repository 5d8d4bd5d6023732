"""Servers that answer byte by byte as a test says: real sockets and real TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import trustme

from agent.clock import Clock, SystemClock
from agent.kube.api import ApiRequest
from agent.kube.credentials import TlsContextCache, TlsFiles, TokenFile
from agent.kube.endpoint import Endpoint
from agent.kube.session import ApiSession
from tests.patience import PATIENCE_S

HOSTS = ("127.0.0.1", "::1", "localhost", "api.test")
GET = ApiRequest(method="GET", path="/api/v1/nodes/n", deadline_s=PATIENCE_S)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Authority:
    """A certificate authority with its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.ca_file = folder / "ca.crt"
        self.ca.cert_pem.write_to_path(self.ca_file)
        self._server = self.context(*HOSTS)

    @property
    def server(self) -> ssl.SSLContext:
        """Return a server's context, for every name that loopback has."""
        return self._server

    def context(self, *hosts: str, not_after: dt.datetime | None = None) -> ssl.SSLContext:
        """Return a server's context for these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*hosts, not_after=not_after).configure_cert(context)
        return context

    def client_files(self, name: str) -> tuple[Path, Path]:
        """Return the files of a client's certificate and key."""
        issued = self.ca.issue_cert(f"{name}@test")
        cert, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return cert, key


class ServedRequest:
    """One request as it came, and the way to answer it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str, body: bytes
    ) -> None:
        self.reader, self.writer, self.head, self.body = reader, writer, head, body
        self.line, *fields = head.splitlines()
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (field.partition(":") for field in fields)
        }

    async def answer(self, *chunks: bytes) -> None:
        """Send bytes, each part in a write of its own."""
        for part in chunks:
            self.writer.write(part)
            await self.writer.drain()

    async def status(self, status: int, body: bytes = b"", *fields: str) -> None:
        """Send a whole answer."""
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *fields, "", ""]
        await self.answer("\r\n".join(lines).encode() + body)

    async def hold(self) -> None:
        """Send nothing more until the client leaves."""
        with contextlib.suppress(OSError):
            await self.reader.read(1)

    def reset(self) -> None:
        """Tear the connection."""
        self.writer.transport.abort()


Answer = Callable[[ServedRequest], Awaitable[None]]


class Server:
    """What a running server has seen."""

    def __init__(self, host: str, port: int) -> None:
        self.port = port
        self.url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self.requests: list[ServedRequest] = []
        self.connections = 0
        self.disconnected = asyncio.Event()  # a connection ended


@contextlib.asynccontextmanager
async def serving(
    answer: Answer, tls: ssl.SSLContext | None, host: str = "127.0.0.1"
) -> AsyncIterator[Server]:
    """Serve requests, many on one connection, until `answer` closes it."""
    tasks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    request = await _read(reader, writer)
                    server.requests.append(request)
                    await answer(request)
        finally:
            server.disconnected.set()
            writer.close()

    listener = await asyncio.start_server(talk, host, 0, ssl=tls)
    server = Server(host, listener.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ServedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request = ServedRequest(reader, writer, head, b"")
    length = int(request.headers.get("content-length", "0"))
    if length:
        request.body = await reader.readexactly(length)
    return request


@contextlib.asynccontextmanager
async def session_with(
    url: str, account: Path, clock: Clock | None = None, endpoint: Endpoint | None = None
) -> AsyncIterator[ApiSession]:
    """Open a session with the account of a pod."""
    clock = clock or SystemClock()
    files = TlsFiles(ca_file=str(account / "ca.crt"))
    session = ApiSession(
        endpoint or Endpoint(url=url),
        TokenFile(str(account / "token"), clock),
        TlsContextCache(lambda: files, clock),
        clock,
    )
    try:
        yield session
    finally:
        await session.close()
